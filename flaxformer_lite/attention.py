"""Masks, attention variants, and multi-head attention in the matrix layout. The alphabet is in `layers.py`.

Kernels are matrices: query `[D, N*H]`, key and value `[D, K*H]`, output `[N*H, D]`. Each projection is one matmul of the
activations seen as a matrix `[B*T, D]`; heads appear only where scores are computed.
"""

import functools
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.layers import accumulation_dtype, apply_dropout

# Masks: True = may attend; shapes broadcast to [B, N, T, S] -----------------------------------------------------------


def padding_mask(is_token: Bool[Array, "B S"]) -> Bool[Array, "B 1 1 S"]:
    """Every query may attend to the keys that are tokens.

    keys  a b ·        query 0   x x .
                       query 1   x x .
                       query 2   x x .
    """
    return is_token[:, None, None, :]


def causal_mask(length: int) -> Bool[Array, "1 1 T T"]:
    """Each query may attend to itself and to what came before.

    query 0   x . .
    query 1   x x .
    query 2   x x x
    """
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


def prefix_mask(index: Int[Array, ""], length: int) -> Bool[Array, "1 1 1 S"]:
    """The one query at `index` of a cache with room for `length` keys may attend to keys 0 … index."""
    return (jnp.arange(length) <= index)[None, None, None, :]


def combine_masks(*masks: Bool[Array, "..."] | None) -> Bool[Array, "..."] | None:
    """Where all the given masks allow it; None (everything allowed) if there are none."""
    given = [mask for mask in masks if mask is not None]
    return functools.reduce(jnp.logical_and, given) if given else None


# The core -------------------------------------------------------------------------------------------------------------


class KeyValue(NamedTuple):
    """What there is to attend to, projected and split into heads. As a decode cache S is the room, not the fill."""

    key: Float[Array, "B S K H"]
    value: Float[Array, "B S K Hv"]

    def write(self, new: "KeyValue", index: Int[Array, ""]) -> "KeyValue":
        """The cache with `new` (one or more positions) put at `index`."""
        return KeyValue(
            *(jax.lax.dynamic_update_slice_in_dim(old, n, index, 1) for old, n in zip(self, new, strict=True))
        )


def attention_weights(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    *,
    mask: Bool[Array, "..."] | None,
    bias: Float[Array, "..."] | None,
    scale: float,
) -> Float[Array, "B N T S"]:
    """`softmax(scale * query key^T + bias)` over the keys the mask allows; a row with no such key is all zero.

    Query head n reads key/value head `n // G`. Scores are accumulated in at least float32.

    Reference: Vaswani et al. 2017, arXiv:1706.03762, section 3.2; Ainslie et al. 2023, arXiv:2305.13245 (grouped heads).
    """
    batch, length, num_heads, width = query.shape
    dtype = accumulation_dtype(query)
    grouped = query.reshape(batch, length, key.shape[2], -1, width)
    scores = jnp.einsum("BTKGH,BSKH->BKGTS", grouped, key, preferred_element_type=dtype)
    scores = scale * scores.reshape(batch, num_heads, length, -1)
    if bias is not None:
        scores = scores + bias
    if mask is None:
        return jax.nn.softmax(scores)
    weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(dtype).min))
    return jnp.where(mask.any(-1, keepdims=True), weights, 0)


def weighted_values(weights: Float[Array, "B N T S"], value: Float[Array, "B S K Hv"]) -> Float[Array, "B T N Hv"]:
    """For each query the sum of the values, by the weights of its head."""
    batch, num_heads, length, _ = weights.shape
    grouped = weights.reshape(batch, value.shape[2], -1, length, weights.shape[-1])
    mixed = jnp.einsum("BKGTS,BSKH->BTKGH", grouped, value)
    return mixed.reshape(batch, length, num_heads, -1)


# Variants -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DotProduct:
    """Scaled dot-product attention: scores are `query key^T / sqrt(H)`."""

    kind: Literal["dot_product"] = "dot_product"
    d_key: int | None = None
    """Width of a query or key head; None means `d_model / num_heads`."""
    d_value: int | None = None
    """Width of a value head; None means the same as a key head."""
    num_kv_heads: int | None = None
    """Key/value heads, a divisor of `num_heads`; None means one for each query head, 1 is multi-query attention."""
    bias: bool = True
    """Biases in the query, key, value and output projections."""

    def __post_init__(self) -> None:
        for name in ("d_key", "d_value", "num_kv_heads"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"model.attention.{name} is {value}: give at least 1, or leave it out for the default")

    def check(self, d_model: int, num_heads: int) -> None:
        """Raises: ValueError where the heads do not divide."""
        if self.d_key is None and d_model % num_heads:
            raise ValueError(
                f"model.d_model {d_model} is not divisible by model.num_heads {num_heads}: change one, or set model.attention.d_key"
            )
        if self.num_kv_heads is not None and num_heads % self.num_kv_heads:
            raise ValueError(
                f"model.num_heads {num_heads} is not divisible by model.attention.num_kv_heads {self.num_kv_heads}: "
                "give a divisor of model.num_heads, or leave it out for one each"
            )


class MultiHeadAttention(nn.Module):
    """Multi-head attention; parameters `query`, `key`, `value` and `out`, each a kernel matrix and perhaps a bias.

    `__call__` is self-attention of `query`, or cross-attention to `key` (and `value`, which is `key` if not given). A decoder
    with a cache calls `key_value` and `attend` itself. The attention weights (after the softmax, before dropout) are sown as the
    intermediate `weights`.
    """

    d_model: int
    num_heads: int
    variant: "AttentionVariant" = DotProduct()
    dropout_rate: float = 0.0
    dtype: Any = jnp.float32
    kernel_init: nn.initializers.Initializer = nn.initializers.xavier_uniform()

    def setup(self) -> None:
        v = self.variant
        self.d_key = v.d_key or self.d_model // self.num_heads
        self.d_value = v.d_value or self.d_key
        self.num_kv_heads = v.num_kv_heads or self.num_heads

        def dense(width: int) -> nn.Dense:
            return nn.Dense(width, use_bias=v.bias, dtype=self.dtype, kernel_init=self.kernel_init)

        self.query = dense(self.num_heads * self.d_key)
        self.key = dense(self.num_kv_heads * self.d_key)
        self.value = dense(self.num_kv_heads * self.d_value)
        self.out = dense(self.d_model)

    def __call__(
        self,
        query: Float[Array, "B T D"],
        key: Float[Array, "B S D2"] | None = None,
        value: Float[Array, "B S D3"] | None = None,
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
    ) -> Float[Array, "B T D"]:
        return self.attend(query, self.key_value(query if key is None else key, value), mask=mask, bias=bias)

    def key_value(self, key: Float[Array, "B S D2"], value: Float[Array, "B S D3"] | None = None) -> KeyValue:
        """Keys and values of what is attended to, in heads."""
        keys, values = self.key(key), self.value(key if value is None else value)
        return KeyValue(
            keys.reshape(*keys.shape[:2], self.num_kv_heads, self.d_key),
            values.reshape(*values.shape[:2], self.num_kv_heads, self.d_value),
        )

    def attend(
        self,
        query: Float[Array, "B T D"],
        key_value: KeyValue,
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
    ) -> Float[Array, "B T D"]:
        """The queries' answer from keys and values that are already in heads."""
        batch, length, _ = query.shape
        heads = self.query(query).reshape(batch, length, self.num_heads, self.d_key)
        weights = attention_weights(heads, key_value.key, mask=mask, bias=bias, scale=self.d_key**-0.5)
        self.sow("intermediates", "weights", weights)
        weights = apply_dropout(self, weights.astype(self.dtype), self.dropout_rate)
        mixed = weighted_values(weights, key_value.value)
        return self.out(mixed.reshape(batch, length, self.num_heads * self.d_value))


AttentionVariant = DotProduct
