"""Oracle: `config.json` and `generation_config.json` of well-known checkpoints, and how many parameters these are known to have.

The weights are not needed: `tensors` names those by which a family tells its heads.
"""

import json
import math
from typing import Any

import numpy as np
import pytest

from flaxformer_lite.interop import FAMILIES, Options
from flaxformer_lite.interop.hf.decoding import decode_config
from flaxformer_lite.interop.hf.options import refuse_unread
from flaxformer_lite.interop.name_map import our_shapes
from tests.support.paths import FIXTURES
from tests.support.quick import quick

PUBLISHED = json.loads((FIXTURES / "published_configs.json").read_text())
QUICK = (
    *("facebook/opt-125m", "EleutherAI/gpt-neo-125m", "microsoft/Phi-3-mini-4k-instruct"),
    *("bert-base-uncased", "gpt2", "meta-llama/Llama-3.2-1B", "google/gemma-3-1b-it", "google/t5-v1_1-small"),
    *("Qwen/Qwen3-0.6B", "facebook/bart-large-cnn", "Helsinki-NLP/opus-mt-en-de", "jhu-clsp/mmBERT-base"),
    *("bert-base-chinese", "HuggingFaceTB/SmolLM2-360M-Instruct", "google/umt5-small", "sshleifer/distilbart-cnn-12-6"),
    *("sentence-transformers/all-mpnet-base-v2", "microsoft/deberta-v3-base", "albert/albert-base-v2"),
    *("google/electra-base-discriminator", "nomic-ai/nomic-embed-text-v1.5", "google/pegasus-xsum"),
)
"""One of each architecture; the others are slow tests."""


@pytest.mark.parametrize("name", quick(PUBLISHED, QUICK.__contains__))
def test_a_published_checkpoint_is_read(name: str) -> None:
    given = PUBLISHED[name]
    config, generation = given["config"], given["generation_config"]
    family, options = FAMILIES[config["model_type"]], Options(config)
    tensors = {tensor: np.full((2, 2), i) for i, tensor in enumerate(given["tensors"])}
    model = family.model_config(options, tensors)
    refuse_unread(options, family.model_type)
    ours_alone = model.d_model if family.unused_norm else 0
    assert sum(map(math.prod, our_shapes(model).values())) - ours_alone == given["parameters"]
    decode, notes = decode_config(config, generation or None, model, family.special)
    found: dict[str, Any] = {setting: getattr(decode, setting) for setting in given["decode"]}
    if decode.sampling is not None:
        found["sampling"] = {
            setting: getattr(decode.sampling, setting) for setting in ("temperature", "top_k", "top_p")
        }
    assert json.loads(json.dumps(found)) == given["decode"]
    skipped = "encoder_no_repeat_ngram_size" if model.num_encoder_layers else "max_length"
    assert bool(notes) == (skipped in generation)
