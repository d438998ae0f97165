"""Converts a checkpoint of MetricX into a folder that `flaxformer-lite import hf` reads (docs/neural-scores.md).

python examples/convert_metricx.py google/metricx-24-hybrid-large-v2p6 24 google/mt5-xl metricx24
"""

import json
import sys
from pathlib import Path

if len(sys.argv) != 5:
    sys.exit(__doc__)

import torch
from huggingface_hub import snapshot_download
from safetensors.torch import save_file
from transformers import AutoConfig, AutoTokenizer

ROW = 250089  # the row of the head that gives the number: that of <extra_id_10>

name, version, tokenizer, output = sys.argv[1:]  # version: 23, 23-qe or 24
folder, output = Path(name) if Path(name).is_dir() else Path(snapshot_download(name)), Path(output)
state = {}
for file in folder.glob("pytorch_model*.bin"):
    state |= torch.load(file, map_location="cpu", weights_only=True)
head = state.pop("lm_head.weight")[ROW : ROW + 1].clone()
for copy in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
    state.pop(copy, None)

AutoTokenizer.from_pretrained(tokenizer).save_pretrained(output)
config = AutoConfig.from_pretrained(folder)
assert not config.tie_word_embeddings, "the head should be a matrix of its own"
config.architectures = ["MT5Model"]
config.save_pretrained(output)
save_file({key: x.clone() for key, x in state.items()}, output / "model.safetensors", {"format": "pt"})
save_file({"lm_head.weight": head}, output / "metric.safetensors")
(output / "metric.json").write_text(json.dumps({"metric": "metricx", "version": version}))
