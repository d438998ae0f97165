"""Dropout: the rates, place by place, and the one function that drops."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from flaxformer_lite.bounds import Rate, check_bounds
from flaxformer_lite.model.numerics import accumulation_dtype

DropoutScaling = Literal["training", "evaluation"]


def dropout(x: Float[Array, "*B T D"], rate: float, key: Array, *, rescale: bool = True) -> Float[Array, "*B T D"]:
    """Zeroes elements with probability `rate` and divides the rest by `1 - rate`, unless told not to `rescale`.

    One 32-bit random word serves two elements, 16 bits each, which halves the cost of the random bits (a quarter of a
    training step on a CPU otherwise). The rate is so rounded to a multiple of 2^-16; the division uses the rounded rate,
    hence the expectation is exact. The two are T/2 rows apart, not neighbours: so nothing has to be moved, least of all on a TPU.

    Reference: Srivastava et al. 2014, Journal of Machine Learning Research 15, section 4 (there scaled at test time).
    """
    *batch, length, width = x.shape
    threshold = min(round(rate * 2**16), 2**16 - 1)
    words = jax.random.bits(key, (*batch, (length + 1) // 2, width), jnp.uint32)
    low, high = (words & 0xFFFF) >= threshold, words >= jnp.uint32(threshold << 16)
    keep = jnp.concatenate([low, high], axis=-2)[..., :length, :]
    kept = x.astype(accumulation_dtype(x)) / (1 - threshold / 2**16) if rescale else x
    return jnp.where(keep, kept, 0).astype(x.dtype)


@dataclass(frozen=True, kw_only=True)
class DropoutRates:
    """The probability of dropping an element, for each place separately."""

    embedding_rate: Rate = 0.1
    """On the sum of token and position embeddings."""
    attention_rate: Rate = 0.1
    """On the attention weights, after the softmax."""
    feed_forward_rate: Rate = 0.1
    """On the inner activations of the feed-forward layer."""
    residual_rate: Rate = 0.1
    """Wherever a residual command says `d`: by convention on a sublayer's output, before it joins the residual."""
    residual_scaling: DropoutScaling = "training"
    """When residual dropout makes up for what it drops: in training (divide by 1 - rate) or in evaluation (multiply by it)."""

    def __post_init__(self) -> None:
        check_bounds(self, "model.dropout")


def apply_dropout(
    module: nn.Module, x: Float[Array, "*B T D"], rate: float, scaling: DropoutScaling = "training"
) -> Float[Array, "*B T D"]:
    """`dropout` with the module's next "dropout" key. Without one the module evaluates: `x`, times `1 - rate` if scaled then."""
    if rate == 0:
        return x
    if module.has_rng("dropout"):
        return dropout(x, rate, module.make_rng("dropout"), rescale=scaling == "training")
    return x if scaling == "training" else x * jnp.asarray(1 - rate, x.dtype)
