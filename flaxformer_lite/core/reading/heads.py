"""Heads that read the last layer of whole texts: their settings, and their mathematics for arrays of JAX and of NumPy.

The layers and activations of a head are functions that are passed in: Linen modules in `core/model/heads.py`, and those of
`engine/heads.py` where a model is used without JAX.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Bool, Float, Int

from flaxformer_lite.core.base.bounds import Checked, NonNegativeInt, Width

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh", "linear", "reglu", "geglu", "geglu_tanh", "swiglu"]

# Settings -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Pooler(Checked, at="model.pooler"):
    """One vector for a whole text, or for each token, from the last layer of the last stack."""

    token: Literal["first", "last", "mean", "late_mean", "each"] = "first"
    """Token whose last layer is read: the first, or the last that is not padding; mean: the mean of all that are not padding;
    late_mean: their mean after the dense layer, the activation and the norm (EuroBERT); each: every token has a vector, and its
    classes are labels of tokens."""
    activation: Activation | None = "tanh"
    """Activation after a dense layer of width `d_model`; None: neither."""
    dense_bias: bool = True
    """Add a learned bias in that dense layer."""
    norm: bool = False
    """Normalise after the activation, by the model's norm (ModernBERT)."""
    num_classes: NonNegativeInt = 0
    """Number of classes scored from the pooled vector (BERT's next-sentence prediction has 2); 0: none."""
    class_bias: bool = True
    """Add a learned bias to each class's logit."""


@dataclass(frozen=True, kw_only=True)
class DenseLayer(Checked, at="model.sentence_embedding.dense"):
    """A dense layer over the vector of a text."""

    width: Width
    """Width of the vector that it gives."""
    activation: Literal["linear", "relu", "gelu", "gelu_tanh", "silu", "tanh"] = "linear"
    """Activation after it; linear: none."""
    bias: bool = True
    """Add a learned bias."""


@dataclass(frozen=True, kw_only=True)
class SentenceEmbedding(Checked, at="model.sentence_embedding"):
    """One vector for a whole text, for comparing texts."""

    pooling: Literal["mean", "weighted_mean", "mean_sqrt_length", "max", "cls", "last"] = "mean"
    """Reduction of the last layer: mean or maximum over the tokens, the first token (cls), or the last. weighted_mean: token n of a
    text has the weight n (SGPT); mean_sqrt_length: the sum divided by the square root of the number of tokens."""
    dense: tuple[DenseLayer, ...] = ()
    """Dense layers after that, one after the other (EmbeddingGemma has two); (): none, and no parameters."""
    normalize: bool = True
    """Scale the vector to length 1, so that the product of two vectors is their cosine."""
    learned_temperature: bool = False
    """Whether training learns the temperature of its cosines, starting at that of the objective: a parameter of its own."""

    def width(self, d_model: int) -> int:
        """Returns the width of the vector, in a model of that width."""
        return self.dense[-1].width if self.dense else d_model


# Mathematics --------------------------------------------------------------------------------------------------------------


Layer = Callable[[Any], Any]
"""A layer with its parameters, or an activation."""


def sums(x: Any) -> Any:
    """Returns the values in the type of their sums, at least float32."""
    return x.astype(x.__array_namespace__().promote_types(x.dtype, "float32"))


def mean_token(hidden: Float[Any, "B T D"], mask: Bool[Any, "B T"] | None) -> Float[Any, "B D"]:
    """Returns the mean over the tokens of each text, in at least float32; 0 for a text without tokens."""
    x = sums(hidden)
    xp = hidden.__array_namespace__()
    if mask is None:
        return x.mean(1)
    return xp.where(mask[..., None], x, 0).sum(1) / xp.maximum(mask.sum(1), 1)[:, None]


def last_token(
    hidden: Float[Any, "B T D"], mask: Bool[Any, "B T"] | None, last: Int[Any, "B"] | None = None
) -> Float[Any, "B D"]:
    """Returns the vector of each text's last token: at position `last`; None: the last token that is not padding."""
    xp = hidden.__array_namespace__()
    if last is None:
        if mask is None:
            return hidden[:, -1]
        last = xp.where(mask, xp.arange(hidden.shape[1]), 0).max(1)
    return xp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]


def pooled(
    settings: Pooler,
    hidden: Float[Any, "B T D"],
    mask: Bool[Any, "B T"] | None,
    last: Int[Any, "B"] | None,
    layers: Mapping[str, Layer],
    activations: Mapping[str, Layer],
) -> tuple[Float[Any, "B *T D"], Float[Any, "B *T C"] | None]:
    """Returns the vectors of a pooler and the logits of its classes, by its layers `dense`, `norm` and `classes`."""
    if settings.token in ("each", "late_mean"):
        x = hidden
    elif settings.token == "mean":
        x = mean_token(hidden, mask).astype(hidden.dtype)
    else:
        x = hidden[:, 0] if settings.token == "first" else last_token(hidden, mask, last)
    if settings.activation is not None:
        x = activations[settings.activation](layers["dense"](x))
    x = layers["norm"](x) if settings.norm else x
    x = mean_token(x, mask).astype(hidden.dtype) if settings.token == "late_mean" else x
    return x, layers["classes"](x) if settings.num_classes else None


def text_vector(
    settings: SentenceEmbedding,
    hidden: Float[Any, "B T D"],
    mask: Bool[Any, "B T"] | None,
    layers: Sequence[Layer],
    activations: Mapping[str, Layer],
) -> Float[Any, "B E"]:
    """Returns the vector of each text before it is scaled, in at least float32, by the dense layers."""
    x = sums(hidden)
    xp = hidden.__array_namespace__()
    shown = xp.ones(x.shape[:2], bool) if mask is None else mask
    if settings.pooling == "mean":
        vector = mean_token(hidden, mask)
    elif settings.pooling == "mean_sqrt_length":
        vector = mean_token(hidden, mask) * xp.sqrt(shown.sum(1).astype(x.dtype))[:, None]
    elif settings.pooling == "weighted_mean":
        weights = xp.where(shown, shown.astype(x.dtype).cumsum(1), 0)[..., None]
        total = (xp.where(shown[..., None], x, 0) * weights).sum(1)
        vector = total / xp.maximum(weights.sum(1), 1)
    elif settings.pooling == "max":
        has_tokens = shown.any(1)[:, None]
        largest = xp.where(shown[..., None], x, -xp.inf).max(1)
        vector = xp.where(has_tokens, largest, 0)
    else:
        vector = x[:, 0] if settings.pooling == "cls" else last_token(x, mask)
    for dense, layer in zip(layers, settings.dense, strict=True):
        vector = activations[layer.activation](dense(vector))
    return vector


def check_one_stack(model: Any, what: str) -> None:
    """Raises: ValueError where the model has two stacks. `what` names the caller that needs one stack."""
    if model.has_two_stacks:
        raise ValueError(
            f"the model has an encoder and a decoder (model.num_encoder_layers {model.num_encoder_layers}, "
            f"model.num_decoder_layers {model.num_decoder_layers}), but {what} needs a model with one of them: set one of "
            "the two to 0"
        )
