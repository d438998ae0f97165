"""A Hugging Face family that is written outside the package: a table of options, a table of weights, and nothing else.

Oracle: a folder made here with numpy and safetensors, under names of its own; importing and exporting it gives it back.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flaxformer_lite.config import outside
from flaxformer_lite.core.model import DotProduct, DropoutRates, LanguageModelHead, LayerNorm, ModelConfig, Rotary
from flaxformer_lite.interop import FAMILIES, read_folder
from flaxformer_lite.interop.exporting import export, first_fitting
from flaxformer_lite.interop.hf import families
from flaxformer_lite.interop.hf.family import Family, tied_copies
from flaxformer_lite.interop.hf.options import ACTIVATION
from flaxformer_lite.interop.importing import import_hf
from flaxformer_lite.interop.name_map import prefixed
from flaxformer_lite.interop.options import Entry, only, option, required
from flaxformer_lite.run import load
from tests.support.commands import Command

TEMPLATE = ModelConfig(
    vocab_size=1,
    num_encoder_layers=0,
    positions=Rotary(),
    activation="gelu",
    norm=LayerNorm(epsilon=1e-5),
    dropout=DropoutRates(embedding_rate=0.0, attention_rate=0.0, feed_forward_rate=0.0, residual_rate=0.0),
    scale_embeddings=False,
)

TABLE = (
    required("vocabulary", "vocab_size"),
    required("width", "d_model"),
    required("heads", "num_heads"),
    required("depth", "num_decoder_layers"),
    Entry(  # two options that make one setting
        lambda options, draft: draft.set("d_ff", options.integer("growth") * options.integer("width")),
        lambda model: {"growth": model.d_ff // model.d_model},
    ),
    option("turn_base", "positions.base"),
    option("bend", "activation", kind=ACTIVATION),
    option("epsilon", "norm.epsilon"),
    only("parallel_residual", False),
)


LAYER = {
    "attention_pre_norm": "before_look",
    "attention/{query,key,value}": "look.in",
    "attention/out": "look.out",
    "feed_forward_pre_norm": "before_think",
    "feed_forward/up": "think.up",
    "feed_forward/down": "think.down",
}
NAMES = {
    "embedding": "pebble.words",
    **prefixed("decoder/layers/", "pebble.stones.{i}.", LAYER),
    "decoder/final_norm": "pebble.last",
}

PEBBLE = Family(
    model_type="pebble",
    prefix="pebble.",
    base="PebbleModel",
    template=TEMPLATE,
    table=TABLE,
    read_heads=lambda options, draft, tensors: draft.set("head", LanguageModelHead()),
    architecture=lambda model, names: "PebbleForCausalLM",
    names=lambda model, architecture: NAMES,
    ignorable=tuple(tied_copies("pebble.words.weight", "answer.weight")),
)

OPTIONS: dict[str, Any] = {"model_type": "pebble", "architectures": ["PebbleForCausalLM"], "dtype": "float32"}
OPTIONS |= {"vocabulary": 23, "width": 12, "heads": 3, "depth": 2, "growth": 2, "turn_base": 500.0, "bend": "gelu"}
OPTIONS |= {"epsilon": 1e-3}
SHAPES = {"look.in": (36, 12), "look.out": (12, 12), "think.up": (24, 12), "think.down": (12, 24)}
NORMS = ("stones.0.before_look", "stones.0.before_think", "stones.1.before_look", "stones.1.before_think", "last")


@pytest.fixture
def tensors() -> dict[str, np.ndarray]:
    shapes: dict[str, tuple[int, ...]] = {"words.weight": (23, 12)}
    for i in range(2):
        for name, shape in SHAPES.items():
            shapes |= {f"stones.{i}.{name}.weight": shape, f"stones.{i}.{name}.bias": shape[:1]}
    for name in NORMS:
        shapes |= {f"{name}.weight": (12,), f"{name}.bias": (12,)}
    rng = np.random.default_rng(7)
    return {f"pebble.{name}": rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def make_folder(folder: Path, tensors: dict[str, np.ndarray], **options: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(OPTIONS | {"bos_token_id": 1, "eos_token_id": 2} | options))
    save_file(tensors, folder / "model.safetensors")
    return folder


FAMILIES_AND_MINE = FAMILIES | {"pebble": PEBBLE}
OTHERS = {name: FAMILIES[name] for name in ("gpt2", "llama", "bert")}
"""Families without a model of Pebble's shape, which StarCoder2 and GPT-NeoX have."""


@pytest.mark.slow
def test_a_folder_of_a_family_from_outside_goes_in_and_out(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    folder = make_folder(tmp_path / "in", tensors | {"answer.weight": tensors["pebble.words.weight"]})
    found = read_folder(folder, FAMILIES_AND_MINE)
    assert found.skipped == ["answer.weight"] and found.family is PEBBLE
    assert (found.model.d_ff, found.model.positions, found.model.norm) == (
        24,
        Rotary(base=500.0),
        LayerNorm(epsilon=1e-3),
    )
    key = found.params["decoder"]["layers"]["attention"]["key"]["kernel"]
    np.testing.assert_array_equal(key[1], tensors["pebble.stones.1.look.in.weight"][12:24].T)
    exported = export(found.model, found.params, PEBBLE)
    assert exported.config == OPTIONS and exported.tensors.keys() == tensors.keys()
    assert all(exported.tensors[name].tobytes() == x.tobytes() for name, x in tensors.items())
    with pytest.raises(ValueError, match=r"^no Hugging Face family has a model like this one"):
        first_fitting(found.model, found.params, OTHERS)
    assert first_fitting(found.model, found.params, OTHERS | {"pebble": PEBBLE}).config == OPTIONS


def test_refusals_come_with_the_tables(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    for number, (options, message) in enumerate(
        [
            ({"sparkle": 3}, r"^config\.json: sparkle is 3: this option is not implemented here"),
            ({"parallel_residual": True}, r"^config\.json: parallel_residual is true: only false is implemented"),
            ({"width": "12"}, r'^config\.json: width is "12": it should be a whole number'),
            ({"depth": None}, r"^config\.json: depth is missing"),
            ({"depth": 3}, r"arrays missing: pebble\.stones\.2\."),
        ]
    ):
        with pytest.raises(ValueError, match=message):
            read_folder(make_folder(tmp_path / str(number), tensors, **options), FAMILIES_AND_MINE)
    with pytest.raises(ValueError, match=r"^model_type 'pebble' is not a family that is known here: albert, bart, "):
        read_folder(make_folder(tmp_path / "plain", tensors))


@pytest.mark.slow
def test_a_family_comes_in_and_leaves_by_the_commands(
    tmp_path: Path, tensors: dict[str, np.ndarray], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that is named by --import is this one."""
    monkeypatch.setattr(outside, "IMPORTED", {})
    monkeypatch.setattr(families, "IMPORTED", outside.IMPORTED)
    folder, run, out = make_folder(tmp_path / "in", tensors), tmp_path / "run", tmp_path / "out"
    assert command.mistake("import", "hf", folder, run).endswith(
        "; another whose parts ModelConfig has is two tables, as docs/extending.md has them, in a file that --import FILE.py names"
    )
    command("import", "hf", folder, run, "--import", __file__)
    command("export", "hf", run, out, "--import", __file__)
    left = load_file(out / "model.safetensors")
    assert left.keys() == tensors.keys() and all(left[name].tobytes() == x.tobytes() for name, x in tensors.items())


def test_python_names_the_families_itself(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    run = import_hf(make_folder(tmp_path / "in", tensors), tmp_path / "run", families={"pebble": PEBBLE})
    assert load(run).config.model.num_decoder_layers == 2
    with pytest.raises(ValueError, match=r"^.*model_type 'pebble' is not a family that is known here: bert; "):
        import_hf(tmp_path / "in", tmp_path / "other", families={"bert": FAMILIES["bert"]})


class Sharper(DotProduct):
    """A variant that computes other scores from the same parameters."""


def test_a_variant_of_a_subclass_is_not_the_variant(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    found = read_folder(make_folder(tmp_path / "in", tensors), FAMILIES_AND_MINE)
    model = dataclasses.replace(found.model, attention=Sharper())
    with pytest.raises(ValueError, match=r"model\.attention is Sharper, not DotProduct"):
        export(model, found.params, PEBBLE)
