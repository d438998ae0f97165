"""The settings in which a model differs from what another system can express."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from flaxformer_lite.config.settings import has_mark
from flaxformer_lite.core.base.annotations import Answers, type_hints
from flaxformer_lite.core.model import Attention, DotProduct, ModelConfig
from flaxformer_lite.core.model.config import DecoderSize
from flaxformer_lite.core.model.kernels import SplashBlocks

FREE = (
    "dropout",
    "dtype",
    "padding_id",
    *(name for name in type_hints(ModelConfig) if has_mark(f"model.{name}", Answers.SAME)),
)
"""Settings that change no number of a model in evaluation, so systems may differ in them (but see `compared_settings`)."""


class CannotExpress(ValueError):
    """A model of ours that another system cannot express; `settings` are the paths in the way, as far as they are known."""

    def __init__(self, reason: str, settings: Iterable[str] = (), system: str = "") -> None:
        super().__init__(f"{system} has no model like this one: {reason}" if system else reason)
        self.reason = reason
        self.settings = tuple(settings)

    @classmethod
    def of(cls, system: str, error: ValueError) -> "CannotExpress":
        """Returns the error of a system for what was raised when our model was put in its terms."""
        return cls(str(error), getattr(error, "settings", ()), system)


def check_same(model: ModelConfig, theirs: ModelConfig) -> None:
    """Raises: CannotExpress with the settings in which the other system's model differs from ours."""
    expected = compared_settings(theirs)
    unlike = list[tuple[str, Any, Any]]()
    for path, value in compared_settings(model).items():
        unlike += unequal(path, value, expected[path])
    if unlike:
        reasons = [f"{path} is {value}, not {other}" for path, value, other in unlike]
        raise CannotExpress("; ".join(reasons), [path for path, _, _ in unlike])


def unequal(path: str, ours: object, theirs: object) -> Iterator[tuple[str, Any, Any]]:
    """Yields path and both values of each setting that differs: field by field for variants of exactly the same type."""
    if type(ours) is type(theirs) and dataclasses.is_dataclass(ours):
        for field in dataclasses.fields(ours):
            yield from unequal(f"{path}.{field.name}", getattr(ours, field.name), getattr(theirs, field.name))
    elif ours != theirs:
        yield path, as_words(ours), as_words(theirs)


def as_words(value: object) -> str:
    """Returns the name of a variant; any other value as Python writes it."""
    return type(value).__name__ if dataclasses.is_dataclass(value) else repr(value)


def compared_settings(model: ModelConfig) -> dict[str, object]:
    """Returns every setting that decides numbers in evaluation, by path; None is replaced by the value that it stands for."""
    settings = {
        f"model.{field.name}": getattr(model, field.name)
        for field in dataclasses.fields(ModelConfig)
        if field.name not in FREE
    }
    rates, window = model.dropout, model.sliding_window
    if window is not None and window.positions == model.positions:
        window = dataclasses.replace(window, positions=None)
    return settings | {
        "model.sliding_window": window,
        "model.feed_forward_out_bias": model.feed_forward_bias
        if model.feed_forward_out_bias is None
        else model.feed_forward_out_bias,
        "model.attention": dataclasses.replace(resolved_attention(model), implementation="auto", splash=SplashBlocks()),
        "model.head": None if model.head is None else dataclasses.replace(model.head, loss_chunk=None),
        "model.target_vocab_size": model.output_size,
        "model.decoder": DecoderSize(num_heads=model.for_decoder.num_heads, d_ff=model.for_decoder.d_ff),
        "model.dropout.residual_scaling": rates.residual_scaling if rates.residual_rate else "training",
        # Only with this scaling does dropout change evaluation.
        "model.dropout.residual_rate": rates.residual_rate if rates.residual_scaling == "evaluation" else 0.0,
    }


def resolved(model: ModelConfig) -> ModelConfig:
    """Returns the model with its attention resolved; as it is where encoder and decoder have other numbers of heads."""
    if model.decoder is not None and model.decoder.num_heads is not None:
        return model
    return dataclasses.replace(model, attention=resolved_attention(model))


def resolved_attention(model: ModelConfig) -> Attention:
    """Returns the attention variant with every None replaced by the value that it stands for."""
    attention, heads = model.attention, model.heads
    values: dict[str, Any] = {
        "scale": attention.score_scale(heads.d_key),
        "out_bias": attention.bias if attention.out_bias is None else attention.out_bias,
    }
    if type(attention) is DotProduct:
        values |= heads._asdict()
    return dataclasses.replace(attention, **values)
