"""Dropout: the rates, and the one function that applies dropout."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from flaxformer_lite.base.bounds import Checked, Rate
from flaxformer_lite.model.numerics import accumulation_dtype

DropoutScaling = Literal["training", "evaluation"]


def dropout(x: Float[Array, "*B T D"], rate: float, key: Array, *, rescale: bool = True) -> Float[Array, "*B T D"]:
    """Zeroes elements with probability `rate` and divides the rest by `1 - rate`; without `rescale` it does not divide.

    One 32-bit random word serves two elements, 16 bits each, which halves the cost of the random bits (otherwise a quarter of a
    training step on a CPU). So the rate is rounded to a multiple of 2^-16. The division uses the rounded rate, hence the
    expectation is exact. The two elements are T/2 rows apart, not neighbours, so that no data moves within a row.

    Reference: Srivastava et al. 2014, Journal of Machine Learning Research 15, section 4 (there scaled at test time).
    """
    *batch, length, width = x.shape
    threshold = min(round(rate * 2**16), 2**16 - 1)
    words = jax.random.bits(key, (*batch, (length + 1) // 2, width), jnp.uint32)
    low, high = (words & 0xFFFF) >= threshold, words >= jnp.uint32(threshold << 16)
    is_kept = jnp.concatenate([low, high], axis=-2)[..., :length, :]
    kept = x.astype(accumulation_dtype(x)) / (1 - threshold / 2**16) if rescale else x
    return jnp.where(is_kept, kept, 0).astype(x.dtype)


@dataclass(frozen=True, kw_only=True)
class DropoutRates(Checked, at="model.dropout"):
    """Dropout rates: the probability of zeroing an element, by place."""

    embedding_rate: Rate = 0.1
    """Rate on the sum of token and position embeddings."""
    attention_rate: Rate = 0.1
    """Rate on the attention weights."""
    feed_forward_rate: Rate = 0.1
    """Rate on the inner activations of the feed-forward layer."""
    residual_rate: Rate = 0.1
    """Rate at each `d` of a residual command: usually on a sublayer's output, before the residual sum."""
    residual_scaling: DropoutScaling = "training"
    """When residual dropout is rescaled: in training (divided by 1 - rate), or in evaluation (multiplied by 1 - rate)."""


def apply_dropout(
    module: nn.Module, x: Float[Array, "*B T D"], rate: float, scaling: DropoutScaling = "training"
) -> Float[Array, "*B T D"]:
    """Applies `dropout` with the module's next "dropout" key. Without a key (evaluation) returns `x`, rescaled by `scaling`."""
    if rate == 0:
        return x
    if module.has_rng("dropout"):
        return dropout(x, rate, module.make_rng("dropout"), rescale=scaling == "training")
    return x if scaling == "training" else x * jnp.asarray(1 - rate, x.dtype)
