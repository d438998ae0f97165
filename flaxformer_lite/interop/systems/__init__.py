"""Weights to and from other systems: name maps, reshapes and config translation, and nothing that computes."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from flaxformer_lite.interop.name_map import WeightName
from flaxformer_lite.interop.systems import bert_tf, matrix_view, nlp_in_action, paddle, torch_transformer
from flaxformer_lite.model.attention import DotProduct
from flaxformer_lite.model.config import ModelConfig


class System(NamedTuple):
    """Another system: its config (a JSON object) and ours, both ways, and its names of parameters."""

    model_config: Callable[[Mapping[str, Any]], ModelConfig]
    settings_of: Callable[[ModelConfig], dict[str, Any]]
    name_map: Callable[[Mapping[str, Any]], list[WeightName]]


SYSTEMS = {
    "paddle": System(paddle.model_config, paddle.settings_of, paddle.name_map),
    "nlp-in-action": System(nlp_in_action.model_config, nlp_in_action.settings_of, nlp_in_action.name_map),
    "bert-tf": System(bert_tf.model_config, bert_tf.settings_of, bert_tf.name_map),
    "matrix-view": System(matrix_view.model_config, matrix_view.settings_of, matrix_view.name_map),
    "torch-transformer": System(
        torch_transformer.model_config, torch_transformer.settings_of, torch_transformer.name_map
    ),
}
"""By the name that `import` and `export` take."""

FREE = ("dropout", "dtype", "scan_unroll", "initializer")
"""Settings that change no number of a model that evaluates, so that systems may differ in them (but see `plain`)."""


def settings_for(name: str, model: ModelConfig) -> dict[str, Any]:
    """The system's config for this model. Raises: ValueError that lists what the system cannot express."""
    system = SYSTEMS[name]
    try:
        settings = system.settings_of(model)
        unlike = differing(model, system.model_config(settings))
    except ValueError as error:
        raise ValueError(f"{name} has no model like this one: {error}") from None
    if unlike:
        raise ValueError(f"{name} has no model like this one: {unlike}")
    return settings


def differing(model: ModelConfig, there: ModelConfig) -> str:
    """The settings by which the other system's model differs from ours, in words; empty where both say the same."""
    theirs = plain(there)
    pairs = [pair for setting, value in plain(model).items() for pair in unlike(setting, value, theirs[setting])]
    return "; ".join(f"{setting} is {value} (there: {other})" for setting, value, other in pairs)


def unlike(setting: str, ours: Any, theirs: Any) -> Iterator[tuple[str, Any, Any]]:
    """The settings in which two values differ, with both values: of two variants of one kind their fields, else their kinds."""
    if type(ours) is type(theirs) and dataclasses.is_dataclass(ours):
        for field in dataclasses.fields(ours):
            yield from unlike(f"{setting}.{field.name}", getattr(ours, field.name), getattr(theirs, field.name))
    elif ours != theirs:
        yield setting, kind(ours), kind(theirs)


def kind(value: Any) -> str:
    """The name of a variant; any other value as Python writes it."""
    return type(value).__name__ if dataclasses.is_dataclass(value) else repr(value)


def plain(model: ModelConfig) -> dict[str, Any]:
    """Every setting that decides the numbers of evaluation, with what None stands for written out."""
    settings = {
        f"model.{field.name}": getattr(model, field.name)
        for field in dataclasses.fields(ModelConfig)
        if field.name not in FREE
    }
    attention, heads = model.attention, model.attention.heads(model.d_model, model.num_heads)
    resolved: dict[str, Any] = {
        "scale": heads.d_key**-0.5 if attention.scale is None else attention.scale,
        "out_bias": attention.bias if attention.out_bias is None else attention.out_bias,
    }
    if isinstance(attention, DotProduct):
        resolved |= heads._asdict()
    rates = model.dropout
    return settings | {
        "model.attention": dataclasses.replace(attention, **resolved),
        "model.target_vocab_size": model.output_size,
        "model.decoder_num_heads": model.for_decoder.num_heads,
        "model.decoder_d_ff": model.for_decoder.d_ff,
        "model.dropout.residual_scaling": rates.residual_scaling if rates.residual_rate else "training",
        # Only there, dropout shows in evaluation.
        "model.dropout.residual_rate": rates.residual_rate if rates.residual_scaling == "evaluation" else 0.0,
    }
