"""Oracle: tiny models that Hugging Face's library made and ran (tests/fixtures/hf); both ways, every family."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from flaxformer_lite.core.model.transformer import Transformer
from flaxformer_lite.core.predictions.forward import ModelOutput, arguments, forward
from flaxformer_lite.interop import FAMILIES, Imported, read_folder
from flaxformer_lite.interop.differences import check_same
from flaxformer_lite.interop.exporting import export
from flaxformer_lite.interop.hf.decoding import generation_config, written_special_ids
from flaxformer_lite.interop.hf.folder import read_tensors, write_folder
from flaxformer_lite.interop.hf.sentence import weight_files, without_dense
from flaxformer_lite.interop.options import replaced
from tests.support.hf_folders import DATA, fixture, imported, refused
from tests.support.quick import quick

TOLERANCE = 1e-5
"""The largest difference, in relation to the largest number of an output."""
QUICK = {
    *("bart/scaled", "bert/pretraining", "distilbert/sinusoidal", "gemma/untied_bias", "gemma2/plain"),
    *("gemma3/scaled", "gpt2/untied", "llama/gqa_llama3", "m2m_100/odd_width", "marian/separate", "mbart/fifty"),
    *("embeddinggemma/two_dense", "minilm/mean", "mistral/window", "qwen2/hub_window", "qwen3/window"),
    *(
        "hunyuan/hub_layout",
        "phi3/part_window",
        "phi3/longrope_long",
        "llama/dynamic",
        "glm/plain",
        "glm4/whole_tied",
        "starcoder2/window_untied",
    ),
    *("stablelm/bias_part", "helium/bias_tied", "ernie4_5/bias_untied", "seed_oss/out_bias", "ministral/mixed"),
    *("gpt_neo/local_untied", "opt/norms_after", "bloom/plain", "xglm/odd_untied"),
    "exaone4/plain",
    "smollm3/bias_window",
    "olmo3/two_rotaries",
    "olmo2/bias_yarn",
    "olmo/bias_tied",
    "granite/bias_linear",
    *("mt5/hub_layout", "umt5/deep_decoder", "xlm_roberta/masked_lm", "camembert/masked_lm"),
    *(
        "eurobert/tied_biases",
        "gemma3/both_ways_wide",
        "modernbert/no_biases",
        "t5gemma/uneven",
        "roberta/classification",
        "t5/deep_decoder",
        "t5_1_1/gated_gelu",
    ),
    *("data2vec_text/masked_lm_untied", "electra/discriminator", "megatron_bert/pretraining", "mvp/scaled"),
    *(
        "roberta_prelayernorm/masked_lm_untied",
        "roformer/classification",
        "nomic_bert/masked_lm",
        "jina_v3/masked_lm",
        "gte/masked_lm_untied",
    ),
    *(
        "gpt_neox/sequential_tied",
        "gptj/whole_tied",
        "phi/grouped_norms",
        "falcon/grouped",
        "cohere/head_norms",
        "stablelm/head_norms",
    ),
    *("pegasus/odd_width", "blenderbot/scaled", "t5/classification", "umt5/token_classification", "mpnet/masked_lm"),
    *(
        "deberta_v2/masked_lm_untied",
        "deberta_v2/hub_layout",
        "electra/small_masked_lm",
        "opt/narrow",
        "albert/pretraining",
    ),
}
"""A fixture of each family, with its rarest parts: those that the fast suite exports."""
COMPUTED = {
    *("bert/pretraining", "gemma2/plain", "hunyuan/hub_layout", "m2m_100/odd_width", "umt5/deep_decoder"),
    *("electra/discriminator", "nomic_bert/masked_lm", "mpnet/masked_lm", "falcon/grouped"),
    *("deberta_v2/hub_layout", "opt/narrow", "albert/pretraining", "phi3/longrope_long"),
}
"""Those whose outputs the fast suite computes, of an encoder, a decoder, and both with and without position tables; the others are
slow tests."""


def variants() -> list[str]:
    """Every fixture of a family that is supported."""
    folders = sorted(file.parent for file in DATA.glob("*/*/config.json"))
    supported = [f for f in folders if json.loads((f / "config.json").read_text())["model_type"] in FAMILIES]
    return [str(folder.relative_to(DATA)) for folder in supported]


def answer(found: Imported, given: dict[str, np.ndarray]) -> ModelOutput:
    """What the model says. The library chooses a rotation by the longest text of a call, and we by a setting."""
    model, width = found.model, given["input_ids"].shape[1]
    scaling = getattr(model.positions, "scaling", None)
    if scaling is not None and scaling.length is not None and scaling.length < width:
        with pytest.raises(ValueError, match=f"max_positions is {scaling.length}|between 0 and {scaling.length - 1}"):
            forward(Transformer(model), {"params": found.params}, found.decode, **given)
        model = replaced(model, {"positions.scaling.length": width})
    return forward(Transformer(model), {"params": found.params}, found.decode, **given)


def worst(found: ModelOutput, expected: dict[str, np.ndarray], masks: dict[str, np.ndarray]) -> float:
    """The largest difference of any output in relation to its largest number, where the mask is 1."""
    errors = []
    for name in ("logits", "last_hidden_state", "pooled", "next_sentence_logits", "encoder_last_hidden_state"):
        if name in expected:
            ours = getattr(found, name.replace("next_sentence", "class"))
            mask = masks.get("attention_mask" if name.startswith("encoder") else "decoder_attention_mask")
            mask = masks["attention_mask"] if mask is None else mask
            shown = np.broadcast_to(mask[..., None].astype(bool), ours.shape) if ours.ndim == 3 else ...
            assert ours.shape == expected[name].shape, name
            differences, theirs = np.abs(ours - expected[name])[shown], np.abs(expected[name])[shown]
            errors.append(float(differences.max() / theirs.max()))
    assert errors
    return max(errors)


def test_the_quick_fixtures_are_of_every_family():
    assert {label.split("/")[0] for label in QUICK} == {label.split("/")[0] for label in variants()}
    assert set(variants()) >= QUICK >= COMPUTED


@pytest.mark.parametrize("label", quick(variants(), COMPUTED.__contains__))
def test_outputs_equal_those_of_the_library(label: str, record_property: Any) -> None:
    if refused(label):
        return
    found, (arrays, meta) = imported(label), fixture(label)
    for side in ("in", "left"):
        given = {name.partition("/")[2]: x for name, x in arrays.items() if name.startswith(f"{side}/")}
        expected = given if side == "left" else {n.partition("/")[2]: x for n, x in arrays.items() if n[:4] == "out/"}
        given = {name: x for name, x in given.items() if name not in ModelOutput._fields}
        if given.keys() - arguments(found.model):  # options of the call that ordinary checkpoints do not need
            assert meta["exotic"]
            with pytest.raises(ValueError, match="is no argument of this model"):
                answer(found, given)
        elif given:
            error = worst(answer(found, given), expected, given)
            record_property(f"{label} {side}", error)
            assert error < TOLERANCE


@pytest.mark.parametrize("label", quick(variants(), QUICK.__contains__))
def test_exported_tensors_equal_the_imported_ones(label: str, tmp_path: Path) -> None:
    """Bit for bit, half precision as equal float32 numbers; and the new folder has the same model."""
    if refused(label):
        return
    found = imported(label)
    exported = export(found.model, found.params, found.family, found.architecture)
    full = found.family.full_names(without_dense(exported.tensors))
    theirs = found.family.full_names(read_tensors(DATA / label))
    # Of tensors that a file has under other names alone, the exported names are those of the family.
    theirs |= {
        original: theirs[name]
        for name in found.skipped
        for known in found.family.ignorable
        for original in known.copy_of
        if re.fullmatch(known.pattern, name) and original not in theirs
    }
    assert theirs.keys() - full.keys() == set(found.skipped) - full.keys() and not full.keys() - theirs.keys()
    for name, array in full.items():
        assert array.tobytes() == theirs[name].astype(np.float32).tobytes(), name
        assert array.shape == theirs[name].shape, name
    documents = {
        "config.json": written_special_ids(found.decode, found.model) | exported.config,
        "generation_config.json": generation_config(found.decode, found.model, 20),
    }
    limit = documents["generation_config.json"].get("max_new_tokens") if found.model.num_decoder_layers else None
    documents |= weight_files(exported.tensors)
    write_folder(tmp_path / "out", documents, without_dense(exported.tensors), DATA / label)
    again = read_folder(tmp_path / "out")
    check_same(again.model, found.model)
    assert again.decode == dataclasses.replace(found.decode, max_new_tokens=limit)
    pairs = zip(jax.tree.leaves(again.params), jax.tree.leaves(found.params), strict=True)
    assert all(x.tobytes() == y.tobytes() for x, y in pairs)
