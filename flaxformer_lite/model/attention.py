"""Attention variants, and multi-head attention in the matrix layout. The alphabet is in `model/__init__.py`.

Kernels are matrices: query `[D, N*H]`, key and value `[D, K*H]`, output `[N*H, D]`. Each projection is one matmul of the
activations seen as a matrix `[B*T, D]`; heads appear only where scores are computed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float
from pydantic import Discriminator

from flaxformer_lite.model import kernels
from flaxformer_lite.model.cache import KeyValue
from flaxformer_lite.model.dropout import apply_dropout
from flaxformer_lite.model.masks import EXCLUDE, ByLayer, Masking, MaskStructure
from flaxformer_lite.model.norms import Normalize, OptionalNorm
from flaxformer_lite.model.numerics import accumulation_dtype


def attention_scores(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    *,
    bias: Float[Array, "..."] | None,
    scale: float,
    soft_cap: float | None = None,
) -> Float[Array, "B N T S"]:
    """`scale * query key^T + bias`, accumulated in at least float32. Query head n reads key/value head `n // G`.

    With a `soft_cap` the product is bent to stay within it before the bias joins.

    Reference: Vaswani et al. 2017, arXiv:1706.03762, section 3.2; Ainslie et al. 2023, arXiv:2305.13245 (grouped heads).
    """
    batch, length, num_heads, width = query.shape
    grouped = query.reshape(batch, length, key.shape[2], -1, width)
    scores = jnp.einsum("BTKGH,BSKH->BKGTS", grouped, key, preferred_element_type=accumulation_dtype(query))
    scores = scale * scores.reshape(batch, num_heads, length, -1)
    scores = scores if soft_cap is None else soft_cap * jnp.tanh(scores / soft_cap)
    return scores if bias is None else scores + bias


def attention_weights(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    *,
    mask: Bool[Array, "..."] | None,
    bias: Float[Array, "..."] | None,
    scale: float,
    soft_cap: float | None = None,
    masking: Masking = EXCLUDE,
) -> Float[Array, "B N T S"]:
    """`softmax(scale * query key^T + bias)` over the keys; `masking` says what becomes of those that the mask forbids."""
    scores = attention_scores(query, key, bias=bias, scale=scale, soft_cap=soft_cap)
    return jax.nn.softmax(scores) if mask is None else masking.softmax(scores, mask)


def weighted_values(weights: Float[Array, "B N T S"], value: Float[Array, "B S K Hv"]) -> Float[Array, "B T N Hv"]:
    """For each query the sum of the values, by the weights of its head."""
    batch, num_heads, length, _ = weights.shape
    grouped = weights.reshape(batch, value.shape[2], -1, length, weights.shape[-1])
    mixed = jnp.einsum("BKGTS,BSKH->BTKGH", grouped, value)
    return mixed.reshape(batch, length, num_heads, -1)


class Heads(NamedTuple):
    """The sizes of the heads."""

    num_kv_heads: int
    d_key: int
    d_value: int


@dataclass(frozen=True, kw_only=True)
class DotProduct:
    """Scaled dot-product attention, each head with its own projections: kernels are matrices `[D, N*H]`."""

    kind: Literal["dot_product"] = "dot_product"
    d_key: int | None = None
    """Width of a query or key head; None means `d_model / num_heads`."""
    d_value: int | None = None
    """Width of a value head; None means the same as a key head."""
    num_kv_heads: int | None = None
    """Key/value heads, a divisor of `num_heads`; None means one for each query head, 1 is multi-query attention."""
    bias: bool = True
    """Biases in the query, key and value projections."""
    out_bias: bool | None = None
    """A bias in the output projection; None means as in the others."""
    scale: float | None = None
    """Factor of the scores `query key^T`; None means `1 / sqrt(d_key)`."""
    soft_cap: float | None = None
    """Scores are bent smoothly to stay within plus and minus this, `cap * tanh(score / cap)`; None leaves them alone."""
    qk_norm: OptionalNorm = None
    """Normalises each head of queries and keys, before positions turn them; None does not."""
    masking: Masking = EXCLUDE
    """What becomes of the score of a masked key."""
    implementation: kernels.Implementation = "auto"
    """What computes scores and answers: xla, which can do everything, cudnn on an NVIDIA GPU, splash on a TPU; auto takes what
    the device has where it can do what is asked. Decoding is always by xla."""

    def __post_init__(self) -> None:
        for name in ("d_key", "d_value", "num_kv_heads"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"model.attention.{name} is {value}: give at least 1, or leave it out for the default")
        check_scores(self.scale, self.soft_cap)

    def check(self, d_model: int, num_heads: int, setting: str = "model.num_heads") -> None:
        """Raises: ValueError where the heads do not divide; `setting` says where their number is from."""
        if self.d_key is None:
            check_heads_divide(d_model, num_heads, setting, ", or set model.attention.d_key")
        if self.num_kv_heads is not None and num_heads % self.num_kv_heads:
            raise ValueError(
                f"{setting} {num_heads} is not divisible by model.attention.num_kv_heads {self.num_kv_heads}: "
                f"give a divisor of {setting}, or leave it out for one each"
            )

    def heads(self, d_model: int, num_heads: int) -> Heads:
        d_key = self.d_key or d_model // num_heads
        return Heads(self.num_kv_heads or num_heads, d_key, self.d_value or d_key)

    def width(self, num_heads: int, d_head: int) -> int:
        """What a projection to that many heads puts out."""
        return num_heads * d_head

    def split(
        self, x: Float[Array, "B T D"], project: Callable[[Array], Array], num_heads: int, d_head: int
    ) -> Float[Array, "B T N H"]:
        """The projection, then the cut into heads."""
        return project(x).reshape(*x.shape[:2], num_heads, d_head)


@dataclass(frozen=True, kw_only=True)
class SharedProjection:
    """Scaled dot-product attention of heads that are cut first and projected after, all by the same matrix `[H, H]`."""

    kind: Literal["shared_projection"] = "shared_projection"
    bias: bool = False
    """Biases in the query, key and value projections."""
    out_bias: bool | None = True
    """A bias in the output projection; None means as in the others."""
    scale: float | None = None
    """Factor of the scores `query key^T`; None means `1 / sqrt(H)`."""
    soft_cap: float | None = None
    """Scores are bent smoothly to stay within plus and minus this, `cap * tanh(score / cap)`; None leaves them alone."""
    qk_norm: OptionalNorm = None
    """Normalises each head of queries and keys, before positions turn them; None does not."""
    masking: Masking = EXCLUDE
    """What becomes of the score of a masked key."""
    implementation: kernels.Implementation = "auto"
    """What computes scores and answers: xla, which can do everything, cudnn on an NVIDIA GPU, splash on a TPU; auto takes what
    the device has where it can do what is asked. Decoding is always by xla."""

    def __post_init__(self) -> None:
        check_scores(self.scale, self.soft_cap)

    def check(self, d_model: int, num_heads: int, setting: str = "model.num_heads") -> None:
        """Raises: ValueError where the heads do not divide; `setting` says where their number is from."""
        check_heads_divide(d_model, num_heads, setting)

    def heads(self, d_model: int, num_heads: int) -> Heads:
        return Heads(num_heads, d_model // num_heads, d_model // num_heads)

    def width(self, num_heads: int, d_head: int) -> int:
        """What a projection puts out, whatever the number of heads."""
        return d_head

    def split(
        self, x: Float[Array, "B T D"], project: Callable[[Array], Array], num_heads: int, d_head: int
    ) -> Float[Array, "B T N H"]:
        """The cut into heads, then the projection of each."""
        return project(x.reshape(*x.shape[:2], num_heads, d_head))


def check_scores(scale: float | None, soft_cap: float | None) -> None:
    if soft_cap is not None and soft_cap <= 0:
        raise ValueError(f"model.attention.soft_cap is {soft_cap}: give a number above 0, or leave it out")
    if scale is not None and scale <= 0:
        raise ValueError(
            f"model.attention.scale is {scale}: give a factor above 0, or leave it out for 1 / sqrt(d_key)"
        )


def check_heads_divide(d_model: int, num_heads: int, setting: str, also: str = "") -> None:
    if d_model % num_heads:
        raise ValueError(f"model.d_model {d_model} is not divisible by {setting} {num_heads}: change one" + also)


AttentionVariant = Annotated[DotProduct | SharedProjection, Discriminator("kind")]


Rotate = Callable[[Array], Array]
"""Turns heads `[B, T, N, H]` by the positions they stand at."""


class MultiHeadAttention(nn.Module):
    """Multi-head attention; parameters `query`, `key`, `value` and `out`, each a kernel matrix and perhaps a bias.

    `__call__` is self-attention of `query`, or cross-attention to `key` (and `value`, which is `key` if not given). A decoder
    with a cache calls `key_value` and `attend` itself. The attention weights (after the softmax, before dropout) are sown as the
    intermediate `weights`.
    """

    d_model: int
    num_heads: int
    variant: AttentionVariant = DotProduct()
    dropout_rate: float = 0.0
    dtype: Any = jnp.float32
    kernel_init: nn.initializers.Initializer = nn.initializers.xavier_uniform()

    def setup(self) -> None:
        v = self.variant
        heads = v.heads(self.d_model, self.num_heads)

        def dense(width: int, bias: bool) -> nn.Dense:
            return nn.Dense(width, use_bias=bias, dtype=self.dtype, kernel_init=self.kernel_init)

        self.query = dense(v.width(self.num_heads, heads.d_key), v.bias)
        self.key = dense(v.width(heads.num_kv_heads, heads.d_key), v.bias)
        self.value = dense(v.width(heads.num_kv_heads, heads.d_value), v.bias)
        self.out = dense(self.d_model, v.bias if v.out_bias is None else v.out_bias)
        self.query_norm = None if v.qk_norm is None else Normalize(v.qk_norm)
        self.key_norm = None if v.qk_norm is None else Normalize(v.qk_norm)

    def __call__(
        self,
        query: Float[Array, "B T D"],
        key: Float[Array, "B S D2"] | None = None,
        value: Float[Array, "B S D3"] | None = None,
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
    ) -> Float[Array, "B T D"]:
        structure = MaskStructure() if mask is None else None
        key_value = self.key_value(query if key is None else key, value)
        return self.attend(query, key_value, mask=mask, bias=bias, structure=structure)

    def key_value(
        self, key: Float[Array, "B S D2"], value: Float[Array, "B S D3"] | None = None, rotate: Rotate | None = None
    ) -> KeyValue:
        """Keys and values of what is attended to, in heads; `rotate` turns the keys by their positions."""
        heads = self.variant.heads(self.d_model, self.num_heads)
        keys = self.variant.split(key, self.key, heads.num_kv_heads, heads.d_key)
        keys = keys if self.key_norm is None else self.key_norm(keys)
        return KeyValue(
            keys if rotate is None else rotate(keys),
            self.variant.split(key if value is None else value, self.value, heads.num_kv_heads, heads.d_value),
        )

    def attend(
        self,
        query: Float[Array, "B T D"],
        key_value: KeyValue,
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        rotate: Rotate | None = None,
        structure: MaskStructure | ByLayer | None = None,
        cached: bool = False,
    ) -> Float[Array, "B T D"]:
        """The queries' answer from keys and values that are already in heads, which are a decoder's cache where `cached`.

        `structure` is what `mask` is made of, where that is known.
        """
        v = self.variant
        d_key = key_value.key.shape[-1]
        heads = v.split(query, self.query, self.num_heads, d_key)
        heads = heads if self.query_norm is None else self.query_norm(heads)
        heads = heads if rotate is None else rotate(heads)
        scale = d_key**-0.5 if v.scale is None else v.scale
        asked = kernels.AttentionCall(
            *(heads, *key_value, scale, v.soft_cap, mask, structure),
            bias=bias is not None,
            excludes=v.masking == EXCLUDE,
            drops=self.dropout_rate > 0 and self.has_rng("dropout"),
            shows=self.is_mutable_collection("intermediates"),
        )
        kernel = None if cached else kernels.choose(v.implementation, asked)
        if kernel is not None:
            mixed = kernel(asked)
            return self.out(mixed.reshape(*mixed.shape[:2], -1))
        weights = attention_weights(
            heads, key_value.key, mask=mask, bias=bias, scale=scale, soft_cap=v.soft_cap, masking=v.masking
        )
        self.sow("intermediates", "weights", weights)
        weights = apply_dropout(self, weights.astype(self.dtype), self.dropout_rate)
        mixed = weighted_values(weights, key_value.value)
        return self.out(mixed.reshape(*mixed.shape[:2], -1))
