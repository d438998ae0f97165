"""Converts a checkpoint of COMET into a folder that `flaxformer-lite import hf` reads (docs/neural-scores.md).

python examples/convert_comet.py Unbabel/wmt22-comet-da comet22
"""

import json
import sys
from pathlib import Path

if len(sys.argv) != 3:
    sys.exit(__doc__)

import torch
import yaml
from huggingface_hub import snapshot_download
from safetensors.torch import save_file
from transformers import AutoConfig, AutoTokenizer

name, output = sys.argv[1:]
folder, output = Path(name) if Path(name).is_dir() else Path(snapshot_download(name)), Path(output)
hparams = yaml.safe_load((folder / "hparams.yaml").read_text())
# This line runs what the pickle holds: only for a checkpoint that you trust.
state = torch.load(folder / "checkpoints" / "model.ckpt", map_location="cpu", weights_only=False)["state_dict"]
start, mix = "encoder.model.", "layerwise_attention.scalar_parameters."
encoder = {key.removeprefix(start): x.clone() for key, x in state.items() if key.startswith(start)}
metric = {key: x.clone() for key, x in state.items() if key.startswith("estimator.")}
metric["layer_weights"] = torch.cat([state[f"{mix}{i}"] for i in range(sum(key.startswith(mix) for key in state))])
metric["gamma"] = state["layerwise_attention.gamma"].clone()
settings = ("class_identifier", "pool", "layer", "hidden_sizes", "activations", "final_activation")
written = {"metric": "comet"} | {key: hparams.get(key) for key in settings}
weights = hparams.get("layer_transformation", "softmax")
written["layer_transformation"] = "softmax" if weights == "sparsemax_patch" else weights  # as their loader reads it
written["layer_norm"] = hparams.get("layer_norm", True)

AutoTokenizer.from_pretrained(hparams["pretrained_model"]).save_pretrained(output)
config = AutoConfig.from_pretrained(hparams["pretrained_model"])
config.architectures = ["XLMRobertaModel"]
config.save_pretrained(output)
save_file(encoder, output / "model.safetensors", {"format": "pt"})
save_file(metric, output / "metric.safetensors")
(output / "metric.json").write_text(json.dumps(written))
