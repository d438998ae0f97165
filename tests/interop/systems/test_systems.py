"""Laws of the older systems' configs: they translate there and back, and whatever does not fit is named."""

import dataclasses

import pytest

from flaxformer_lite.core.model import DotProduct, RMSNorm
from flaxformer_lite.interop.differences import FREE
from flaxformer_lite.interop.systems import SYSTEMS
from tests.support.oracles import WHOLE, load_case, whole_models
from tests.support.seed_models import SYSTEM_OF


@pytest.mark.parametrize("name", whole_models())
def test_a_config_translates_back(name: str) -> None:
    """Our config makes theirs, and that the same names and the same model; only a stack's own name is lost."""
    config, _ = load_case(name)
    system = SYSTEM_OF[config["system"]]
    model = SYSTEMS[system].model_config(config)
    settings = SYSTEMS[system].config_for(model) | {"name": config.get("name", "")}
    assert SYSTEMS[system].model_config(settings) == model
    assert SYSTEMS[system].name_map(settings) == SYSTEMS[system].name_map(config)
    assert all(config[key] == value for key, value in settings.items() if key in config)


def test_dropout_that_shows_in_evaluation_is_no_free_setting() -> None:
    config, _ = load_case(WHOLE["paddle"])
    model = SYSTEMS["paddle"].model_config(config | {"prepostprocess_dropout": 0.3})
    usual = dataclasses.replace(model, dropout=dataclasses.replace(model.dropout, residual_scaling="training"))
    with pytest.raises(ValueError, match=r"model\.dropout\.residual_scaling is 'training'"):
        SYSTEMS["paddle"].config_for(usual)


def test_equal_models_that_are_spelt_otherwise_are_the_same() -> None:
    config, _ = load_case(WHOLE["bert-tf"])
    model = SYSTEMS["bert-tf"].model_config(config)
    assert isinstance(model.attention, DotProduct)
    attention = dataclasses.replace(model.attention, d_key=model.d_model // model.num_heads, out_bias=True)
    assert SYSTEMS["bert-tf"].config_for(dataclasses.replace(model, attention=attention)) == SYSTEMS[
        "bert-tf"
    ].config_for(model)


@pytest.mark.parametrize("system", WHOLE)
def test_a_model_of_another_kind_is_refused(system: str) -> None:
    model = SYSTEMS[system].model_config(load_case(WHOLE[system])[0])
    with pytest.raises(ValueError, match=rf"{system} has no model like this one: model\.norm is RMSNorm"):
        SYSTEMS[system].config_for(dataclasses.replace(model, norm=RMSNorm()))
    free = dataclasses.replace(model, scan_unroll=2)
    assert "scan_unroll" in FREE and SYSTEMS[system].config_for(free) == SYSTEMS[system].config_for(model)


@pytest.mark.parametrize("system", WHOLE)
def test_a_config_without_a_setting_or_with_a_wrong_one_is_refused(system: str) -> None:
    config, _ = load_case(WHOLE[system])
    width = {"paddle": "d_model", "nlp-in-action": "d_model", "bert-tf": "hidden_size", "matrix-view": "embed_size"}[
        system
    ]
    with pytest.raises(ValueError, match=f"the config's {width} is missing"):
        SYSTEMS[system].model_config({key: x for key, x in config.items() if key != width})
    with pytest.raises(ValueError, match=f'the config\'s {width} is "16": it should be a whole number'):
        SYSTEMS[system].model_config(config | {width: "16"})


def test_the_first_systems_broken_relu_dropout_works_here() -> None:
    config, _ = load_case(WHOLE["paddle"])
    model = SYSTEMS["paddle"].model_config(config | {"relu_dropout": 0.25})
    assert model.dropout.feed_forward_rate == 0.25
