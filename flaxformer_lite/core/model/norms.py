"""Norms: the mathematics as plain functions, the settings as values, the parameters in one module."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from flaxformer_lite.core.base.bounds import Checked, NonNegativeFloat
from flaxformer_lite.core.model.layers import accumulation_dtype

Param = Callable[..., Array]
"""The `param` method of a Linen module, `param(name, init, shape, dtype)`: a setting makes its parameters by it."""


def centred(x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
    """Returns `x` minus its mean over the last axis: exactly 0 where a row is constant.

    One element is subtracted first: the plain mean of D equal numbers may be off by a rounding step, which a small epsilon
    then amplifies.
    """
    y = x.astype(accumulation_dtype(x))
    y = y - jax.lax.stop_gradient(y[..., :1])  # the shift cancels, and so would its gradient
    return y - y.mean(-1, keepdims=True)


@functools.partial(jax.checkpoint, static_argnums=3, prevent_cse=False)
def layer_norm(
    x: Float[Array, "*B D"], scale: Float[Array, "*N D"] | None, bias: Float[Array, "*N D"] | None, epsilon: float
) -> Float[Array, "*B D"]:
    """Returns `scale * (x - mean) / sqrt(var + epsilon) + bias` over the last axis, with the biased variance.

    Reference: Ba et al. 2016, arXiv:1607.06450, section 3.
    """
    y = centred(x)
    y = y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + epsilon)
    y = y if scale is None else y * scale
    return (y if bias is None else y + bias).astype(x.dtype)


@functools.partial(jax.checkpoint, static_argnums=2, prevent_cse=False)
def rms_norm(x: Float[Array, "*B D"], scale: Float[Array, "*N D"], epsilon: float) -> Float[Array, "*B D"]:
    """Returns `scale * x / sqrt(mean(x^2) + epsilon)` over the last axis.

    Reference: Zhang and Sennrich 2019, arXiv:1910.07467, section 3.
    """
    y = x.astype(accumulation_dtype(x))
    return (y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + epsilon) * scale).astype(x.dtype)


@functools.partial(jax.checkpoint, static_argnums=3, prevent_cse=False)
def deviation_norm(
    x: Float[Array, "*B D"], scale: Float[Array, "*N D"], bias: Float[Array, "*N D"], epsilon: float
) -> Float[Array, "*B D"]:
    """Returns `scale * (x - mean) / (std + epsilon) + bias` over the last axis, with the unbiased deviation (divisor D - 1).

    In a constant row the deviation is 0, and so is its derivative, by convention.

    Reference: the "annotated" Transformer's LayerNorm (Rush 2018, Proceedings of NLP-OSS, section "Encoder").
    """
    y = centred(x)
    variance = jnp.square(y).sum(-1, keepdims=True) / (x.shape[-1] - 1)
    is_constant = variance == 0
    deviation = jnp.where(is_constant, 0, jnp.sqrt(jnp.where(is_constant, 1, variance)))
    return (scale * y / (deviation + epsilon) + bias).astype(x.dtype)


def unit_length(x: Float[Array, "B D"]) -> Float[Array, "B D"]:
    """Returns each vector divided by its length; the gradient at 0 is 0."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.square(x).sum(-1, keepdims=True), 1e-24))


class BaseNorm(Checked, at="model.norm"):
    """Base of all norms. Python code can pass any norm to `ModelConfig`; the union `Norm` has those of config files."""

    epsilon: float
    """Addend that keeps the divisor away from 0; other systems have one too."""

    def __call__(self, x: Float[Array, "*B D"], param: Param) -> Float[Array, "*B D"]:
        """Returns `x` normalised over the last axis; `param(name, init, shape, dtype)` makes or reads a parameter."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class LayerNorm(BaseNorm):
    """Layer normalisation, usually with a learned scale and a learned bias."""

    kind: Literal["layer_norm"] = "layer_norm"
    epsilon: NonNegativeFloat = 1e-6
    """Addend of the variance."""
    bias: bool = True
    """Learn a bias."""
    scale: bool = True
    """Learn a scale (OLMo 1: neither of the two)."""

    def __call__(self, x: Float[Array, "*B D"], param: Param) -> Float[Array, "*B D"]:
        scale = param("scale", nn.initializers.ones, x.shape[-1:], jnp.float32) if self.scale else None
        bias = param("bias", nn.initializers.zeros, x.shape[-1:], jnp.float32) if self.bias else None
        return layer_norm(x, scale, bias, self.epsilon)


@dataclass(frozen=True, kw_only=True)
class RMSNorm(BaseNorm):
    """Root-mean-square normalisation: without mean and bias."""

    kind: Literal["rms_norm"] = "rms_norm"
    epsilon: NonNegativeFloat = 1e-6
    """Addend of the mean square."""
    offset: float = 0.0
    """Addend of the learned scale, whose initial values are 1 - offset (Gemma: 1, so that weight decay pulls scales to 1)."""

    def __call__(self, x: Float[Array, "*B D"], param: Param) -> Float[Array, "*B D"]:
        scale = param("scale", nn.initializers.constant(1 - self.offset), x.shape[-1:], jnp.float32)
        return rms_norm(x, scale + self.offset, self.epsilon)


@dataclass(frozen=True, kw_only=True)
class DeviationNorm(BaseNorm):
    """Normalisation by the unbiased standard deviation, with epsilon added to the deviation itself."""

    kind: Literal["deviation_norm"] = "deviation_norm"
    epsilon: NonNegativeFloat = 1e-6
    """Addend of the standard deviation."""

    def __call__(self, x: Float[Array, "*B D"], param: Param) -> Float[Array, "*B D"]:
        scale = param("scale", nn.initializers.ones, x.shape[-1:], jnp.float32)
        return deviation_norm(x, scale, param("bias", nn.initializers.zeros, x.shape[-1:], jnp.float32), self.epsilon)


class Normalize(nn.Module):
    """Module for a norm, with the norm's parameters: usually `scale` `[D]` and `bias` `[D]`, of N heads `[N, D]`."""

    norm: BaseNorm
    num_heads: int | None = None

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        heads = () if self.num_heads is None else (self.num_heads,)
        return self.norm(x, lambda name, init, shape, dtype: self.param(name, init, (*heads, *shape), dtype))


Norm = LayerNorm | RMSNorm | DeviationNorm


OptionalNorm = LayerNorm | RMSNorm | DeviationNorm | None
