"""Tied and scaled tables of T5, BART and Marian, as files spell them. Oracle: by hand from the library's own classes."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flaxformer_lite import import_hf, load
from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.optim.selection import split
from flaxformer_lite.interop import FAMILIES, Options, read_folder
from flaxformer_lite.interop.exporting import export
from tests.support.hf_folders import DATA

T5 = FAMILIES["t5"]
T5_FILE = dict.fromkeys(("shared.weight", "decoder.block.0.layer.0.layer_norm.weight"), np.zeros((3, 2)))
OWN_HEAD = {"lm_head.weight": np.ones((3, 2))}


@pytest.mark.parametrize(
    ("options", "tensors", "scaled", "tied"),
    [
        ({}, {}, True, True),
        ({"tie_word_embeddings": True}, {"lm_head.weight": np.zeros((3, 2))}, True, True),
        ({"tie_word_embeddings": False}, OWN_HEAD, False, False),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, OWN_HEAD, False, False),
        ({"tie_word_embeddings": True}, OWN_HEAD, True, False),
        ({"tie_word_embeddings": False}, {}, False, False),
        ({"tie_word_embeddings": False}, {"lm_head.weight": np.zeros((3, 2))}, False, True),
    ],
)
def test_the_file_decides_whether_t5_has_a_head_of_its_own(
    options: dict[str, Any], tensors: dict[str, np.ndarray], scaled: bool, tied: bool
) -> None:
    model = T5.model_config(Options({"d_model": 16} | options), T5_FILE | tensors)
    assert model.head is not None and model.share_target_output is tied
    assert model.head.scale == (0.25 if scaled else 1.0)
    there = Options(T5.options_for(model))
    assert T5.model_config(there, T5_FILE | ({} if tied else OWN_HEAD)).head == model.head


@pytest.mark.parametrize(
    ("options", "activation"),
    [
        ({}, "relu"),
        ({"feed_forward_proj": "gelu"}, "gelu"),
        ({"feed_forward_proj": "gated-gelu"}, "geglu_tanh"),
        ({"feed_forward_proj": "gated-silu"}, "swiglu"),
        ({"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new", "is_gated_act": True}, "geglu_tanh"),
        ({"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu"}, "geglu"),
    ],
)
def test_t5s_feed_forward_layers_and_back(options: dict[str, Any], activation: str) -> None:
    model = T5.model_config(Options(options), T5_FILE)
    assert model.activation == activation
    assert T5.model_config(Options(T5.options_for(model)), T5_FILE).activation == activation


@pytest.mark.parametrize("label", ["bart/plain", "marian/shared", "t5/relu_tied"])
def test_a_head_of_its_own_is_exported_and_imported(label: str) -> None:
    """The library reads it from the tensor; `tie_word_embeddings` is about the other tables."""
    found = read_folder(DATA / label)
    model = dataclasses.replace(found.model, share_target_output=False)
    kernel = np.random.default_rng(0).standard_normal((model.d_model, model.output_size)).astype(np.float32)
    params = found.params | {"head": {**found.params.get("head", {}), "kernel": kernel}}
    exported = export(model, params, found.family)
    np.testing.assert_array_equal(exported.tensors["lm_head.weight"], kernel.T)


def test_copies_that_differ_are_refused() -> None:
    """A table of positions that is none of sines, and a stored table that should be the shared one."""
    found = read_folder(DATA / "marian/shared")
    wanted = {name for weight in found.names for name in weight.names}
    tensors = dict(export(found.model, found.params, found.family).tensors)
    positions, table = "model.encoder.embed_positions.weight", "model.encoder.embed_tokens.weight"
    for name, wrong in ((positions, np.zeros((29, 16))), (table, np.zeros((41, 16)))):
        with pytest.raises(ValueError, match=rf"the tensor {name} should be "):
            found.family.split_ignorable(tensors | {name: wrong}, wanted, found.model)


@pytest.mark.parametrize(("folder", "padding_id"), [("marian/shared", 40), ("bart/summary", None)])
def test_an_import_trains_what_the_library_trains(folder: str, padding_id: int | None, tmp_path: Path) -> None:
    """Oracle: the library's classes. `final_logits_bias` is a buffer; only Marian's decoders read the padding embedding."""
    run = load(import_hf(DATA / folder, tmp_path / "run"))
    assert run.config.train.trainable == ("*", "!head/bias")
    assert run.config.model.padding_id == padding_id
    assert not any(path == "head/bias" for path in leaves_by_path(split(run.params, run.config.train.trainable)[0]))
