"""Laws of the name maps: there and back is the identity, bit for bit; whatever does not fit is named."""

import ast
import dataclasses
import json
from typing import Any

import jax
import numpy as np
import pytest

from flaxformer_lite.interop.name_map import from_params, to_params
from flaxformer_lite.interop.systems import FREE, SYSTEMS, settings_for
from flaxformer_lite.model.norms import RMSNorm
from tests.support.paths import FIXTURES, ROOT
from tests.support.seed_models import SYSTEM_OF

ORACLES = FIXTURES / "oracles"
WHOLE = {
    "paddle": "000_encoder_n_da_gelu",
    "nlp-in-action": "001_forward_postnorm_bias",
    "bert-tf": "002_bert_gelu",
    "matrix-view": "003_forward_padded",
}
"""One file with a whole model for each system."""


def load(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    with np.load(ORACLES / f"{name}.npz") as archive:
        arrays = dict(archive)
    config = json.loads(str(arrays["config"]))
    return config, {key.removeprefix("param/"): x for key, x in arrays.items() if key.startswith("param/")}


def models() -> list[str]:
    kinds = ("EncoderLayer", "TranslationHead.forward", "BertModel and pretraining heads", "Transformer.forward")
    return [file.stem for file in sorted(ORACLES.glob("*.npz")) if load(file.stem)[0]["kind"] in kinds]


@pytest.mark.parametrize("name", models())
def test_there_and_back_is_the_identity(name: str) -> None:
    config, weights = load(name)
    system = SYSTEMS[SYSTEM_OF[config["system"]]]
    names = system.name_map(config)
    params = to_params(weights, names, system.model_config(config))
    assert all(x.dtype == np.float32 for x in jax.tree.leaves(params))
    back = from_params(params, names)
    assert back.keys() == weights.keys()
    for key, x in weights.items():
        assert back[key].tobytes() == np.ascontiguousarray(x).tobytes() and back[key].shape == x.shape, key


@pytest.mark.parametrize("name", models())
def test_a_config_translates_back(name: str) -> None:
    """Our config makes theirs, and that the same names and the same model; only a stack's own name is lost."""
    config, _ = load(name)
    system = SYSTEM_OF[config["system"]]
    model = SYSTEMS[system].model_config(config)
    settings = settings_for(system, model) | {"name": config.get("name", "")}
    assert SYSTEMS[system].model_config(settings) == model
    assert SYSTEMS[system].name_map(settings) == SYSTEMS[system].name_map(config)
    assert all(config[key] == value for key, value in settings.items() if key in config)


@pytest.mark.parametrize("system", WHOLE)
def test_what_does_not_fit_is_named(system: str) -> None:
    config, weights = load(WHOLE[system])
    names, model = SYSTEMS[system].name_map(config), SYSTEMS[system].model_config(config)
    lost = sorted(weights)[3]
    with pytest.raises(ValueError, match="1 array missing: ") as raised:
        to_params({key: x for key, x in weights.items() if key != lost}, names, model)
    assert lost in str(raised.value)
    with pytest.raises(ValueError, match="1 array left over: stray"):
        to_params(weights | {"stray": np.zeros(3)}, names, model)
    with pytest.raises(ValueError, match=r"of another shape: .*the config needs"):
        to_params(weights, names, dataclasses.replace(model, d_ff=model.d_ff + 1))
    with pytest.raises(ValueError, match="1 array without a name there: stray"):
        from_params({"stray": np.zeros(3), **to_params(weights, names, model)}, names)


def test_a_renamed_array_is_told_twice_and_a_wider_number_refused() -> None:
    """float64 would be rounded, so that what goes back is not what came."""
    config, weights = load(WHOLE["paddle"])
    names, model = SYSTEMS["paddle"].name_map(config), SYSTEMS["paddle"].model_config(config)
    first = sorted(weights)[0]
    renamed = {("renamed" if key == first else key): x for key, x in weights.items()}
    with pytest.raises(ValueError, match=rf"1 array missing: {first} \(.*\); 1 array left over: renamed"):
        to_params(renamed, names, model)
    with pytest.raises(ValueError, match=rf"not float32, float16 or bfloat16: {first} \(float64\)"):
        to_params(weights | {first: weights[first].astype(np.float64)}, names, model)
    half = to_params(weights | {first: weights[first].astype(np.float16)}, names, model)
    assert all(x.dtype == np.float32 for x in jax.tree.leaves(half))


def test_dropout_that_shows_in_evaluation_is_no_free_setting() -> None:
    config, _ = load(WHOLE["paddle"])
    model = SYSTEMS["paddle"].model_config(config | {"prepostprocess_dropout": 0.3})
    usual = dataclasses.replace(model, dropout=dataclasses.replace(model.dropout, residual_scaling="training"))
    with pytest.raises(ValueError, match=r"model\.dropout\.residual_scaling is 'training'"):
        settings_for("paddle", usual)


def test_equal_models_that_are_spelt_otherwise_are_the_same() -> None:
    config, _ = load(WHOLE["bert-tf"])
    model = SYSTEMS["bert-tf"].model_config(config)
    attention = dataclasses.replace(model.attention, d_key=model.d_model // model.num_heads, out_bias=True)
    assert settings_for("bert-tf", dataclasses.replace(model, attention=attention)) == settings_for("bert-tf", model)


@pytest.mark.parametrize("system", WHOLE)
def test_a_model_of_another_kind_is_refused(system: str) -> None:
    model = SYSTEMS[system].model_config(load(WHOLE[system])[0])
    with pytest.raises(ValueError, match=rf"{system} has no model like this one: model\.norm is RMSNorm"):
        settings_for(system, dataclasses.replace(model, norm=RMSNorm()))
    free = dataclasses.replace(model, scan_unroll=2)
    assert "scan_unroll" in FREE and settings_for(system, free) == settings_for(system, model)


@pytest.mark.parametrize("system", WHOLE)
def test_a_config_without_a_setting_or_with_a_wrong_one_is_refused(system: str) -> None:
    config, _ = load(WHOLE[system])
    width = {"paddle": "d_model", "nlp-in-action": "d_model", "bert-tf": "hidden_size", "matrix-view": "embed_size"}[
        system
    ]
    with pytest.raises(ValueError, match=f"the config has no '{width}'"):
        SYSTEMS[system].model_config({key: x for key, x in config.items() if key != width})
    with pytest.raises(ValueError, match=f"the config's {width} is '16'"):
        SYSTEMS[system].model_config(config | {width: "16"})


def test_the_first_systems_broken_relu_dropout_works_here() -> None:
    config, _ = load(WHOLE["paddle"])
    model = SYSTEMS["paddle"].model_config(config | {"relu_dropout": 0.25})
    assert model.dropout.feed_forward_rate == 0.25


def test_interop_holds_no_modules_and_computes_nothing() -> None:
    files = sorted((ROOT / "flaxformer_lite" / "interop").glob("*.py"))
    assert len(files) > 5
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not names & {
            "einsum",
            "matmul",
            "dot",
            "dot_general",
            "tensordot",
            "nn",
            "linen",
            "Module",
            "softmax",
        }, file
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.MatMult)], file


def test_only_run_and_commands_import_interop() -> None:
    for file in sorted((ROOT / "flaxformer_lite").rglob("*.py")):
        if "interop" in file.parts or "commands" in file.parts or file.stem == "run":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(module.startswith("flaxformer_lite.interop.systems") for module in modules), file
