"""Attention variants, and multi-head attention in the matrix layout. The alphabet is in `model/__init__.py`.

Kernels are matrices: query `[D, N*H]`, key and value `[D, K*H]`, output `[N*H, D]`. Each projection is one matmul of the
activations seen as a matrix `[B*T, D]`; activations are split into heads only for the scores.

An attention variant is a value, a frozen dataclass derived from `Attention`. It owns its projections and the step from scores
to weights, so a new variant is one class in one file; `Attention` says which methods it may replace.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from flaxformer_lite.core.base.annotations import Answers, Resume
from flaxformer_lite.core.base.bounds import Checked, PositiveFloat, PositiveInt
from flaxformer_lite.core.model import fast, kernels
from flaxformer_lite.core.model.layers import Dense, accumulation_dtype, apply_dropout
from flaxformer_lite.core.model.lora import LoRA
from flaxformer_lite.core.model.masks import (
    EVERY_KEY,
    EXCLUDE,
    AttentionMask,
    Masking,
    own_mask,
    padding_mask,
    structured_mask,
)
from flaxformer_lite.core.model.norms import LayerNorm, Normalize, OptionalNorm, Param


def attention_scores(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    *,
    bias: Float[Array, "..."] | None,
    scale: float | Float[Array, "..."],
    soft_cap: float | None = None,
) -> Float[Array, "B N T S"]:
    """Returns `scale * query key^T + bias`, accumulated in at least float32. Query head n reads key/value head `n // G`.

    A `soft_cap` bends the scaled product to stay within plus and minus the cap; the bias is added after it.
    `scale` is a number, or an array that broadcasts to `[B, N, T, S]`.

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
    scale: float | Float[Array, "..."],
    soft_cap: float | None = None,
    masking: Masking = EXCLUDE,
) -> Float[Array, "B N T S"]:
    """Returns `softmax(scale * query key^T + bias)` over the keys; `masking` decides the weight of a masked key."""
    scores = attention_scores(query, key, bias=bias, scale=scale, soft_cap=soft_cap)
    return jax.nn.softmax(scores) if mask is None else masking.softmax(scores, mask)


def weighted_values(weights: Float[Array, "B N T S"], value: Float[Array, "B S K Hv"]) -> Float[Array, "B T N Hv"]:
    """Returns for each query and head the sum of the values, weighted by the head's weights."""
    batch, num_heads, length, _ = weights.shape
    grouped = weights.reshape(batch, value.shape[2], -1, length, weights.shape[-1])
    mixed = jnp.einsum("BKGTS,BSKH->BTKGH", grouped, value)
    return mixed.reshape(batch, length, num_heads, -1)


# Variants ---------------------------------------------------------------------------------------------------------------


class Heads(NamedTuple):
    num_kv_heads: int
    d_key: int
    d_value: int


@dataclass(frozen=True, kw_only=True)
class Attention(Checked, at="model.attention"):
    """Base of all attention variants: `softmax(scale * query key^T + bias) value`, in heads of width `d_model / num_heads`.

    A variant is a frozen dataclass derived from this class, or from `DotProduct` for free widths and grouped heads, with a `kind`
    of its own. It may replace these methods:

    method             decides                                                        default
    check              which d_model and num_heads fit                                num_heads divides d_model
    heads              number and widths of key and value heads                       d_model / num_heads each
    width, split       the query, key and value projections                           one matrix for all heads, `[D, N*H]`
    weights            the weights, from queries and keys                             softmax of the scaled product
    mix                a head's answer, from weights and values                       the weighted sum of the values
    answers            all from projected heads to their answers                      dropout of `weights`, then `mix`

    `MultiHeadAttention` does the rest for every variant: `qk_norm`, rotary positions, dropout of the weights, the decode cache with
    its windows and beams, the output projection. `weights` and `mix` may have parameters of their own, by `param`.

    A variant that replaces one of the last three is computed without a fused kernel: `implementation` 'auto' then reports xla, and
    a kernel that is named is refused.

    Python code and config files can pass any variant to `ModelConfig`; config.json then names its class, `module:Class`, and
    commands read such a run with `--import`. A variant in the union `AttentionVariant`, at the end of this section, needs neither.
    """

    decodes: ClassVar[bool] = True
    """Whether `answers` reads a mask without `structure`, as a decode cache has; else no answer can be searched for."""

    bias: bool = True
    """Use biases in the query, key and value projections."""
    out_bias: bool | None = None
    """Use a bias in the output projection; None: as `bias`."""
    scale: PositiveFloat | None = None
    """Factor of the scores `query key^T`; None: `1 / sqrt(H)`, where H is the width of a query or key head."""
    soft_cap: PositiveFloat | None = None
    """Bend scores to stay within plus and minus this number, `cap * tanh(score / cap)`; None: do not."""
    qk_norm: OptionalNorm = None
    """Norm of queries and keys, over each head or all; None: no norm."""
    qk_norm_width: Literal["head", "each_head", "all_heads"] = "head"
    """Elements that `qk_norm` normalises together: those of a head (Qwen3, Gemma 3), or of all heads (OLMo 2).
    each_head: those of a head, with parameters of its own for each head (StableLM 2 12B, Command R+)."""
    qk_norm_place: Literal["before_rotation", "after_rotation"] = "before_rotation"
    """Place of `qk_norm` and rotary positions: the norm before the rotation (Qwen3, Gemma 3), or after it (Hunyuan)."""
    masking: Masking = EXCLUDE
    """Treatment of the score of a masked key."""
    implementation: Annotated[kernels.Implementation, Resume.ON_REQUEST, Answers.SAME] = "auto"
    """Program that computes attention: xla (no fused kernel; can do everything), cudnn (NVIDIA GPU), splash (TPU), or auto: the
    device's kernel where it supports the model, else xla. Decoding always uses xla."""
    splash: Annotated[kernels.SplashBlocks, Resume.ON_REQUEST, Answers.SAME] = kernels.SplashBlocks()
    """The blocks of splash."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, usual in (("qk_norm_place", "before_rotation"), ("qk_norm_width", "head")):
            value = getattr(self, name)
            if self.qk_norm is None and value != usual:
                raise ValueError(
                    f"model.attention.{name} is {value!r}, but model.attention.qk_norm is None: set a norm, or leave "
                    f"model.attention.{name} at {usual!r}"
                )

    def check(self, d_model: int, num_heads: int, setting: str = "model.num_heads") -> None:
        """Checks that the model can be split into heads. `setting` names the setting that `num_heads` comes from.

        Raises: ValueError naming the settings that do not fit.
        """
        check_heads_divide(d_model, num_heads, setting)

    def heads(self, d_model: int, num_heads: int) -> Heads:
        """Returns the sizes of the heads. The decode cache is `[B, num_kv_heads, S, d_key]` and `[…, d_value]`."""
        return Heads(num_heads, d_model // num_heads, d_model // num_heads)

    def width(self, num_heads: int, d_head: int) -> int:
        """Returns the output width of a projection to `num_heads` heads."""
        return num_heads * d_head

    def split(
        self, x: Float[Array, "B T D"], project: Callable[[Array], Array], num_heads: int, d_head: int
    ) -> Float[Array, "B T N H"]:
        """Projects and splits into heads; `project` is the dense layer of output width `width(num_heads, d_head)`."""
        return project(x).reshape(*x.shape[:2], num_heads, d_head)

    def weights(
        self,
        query: Float[Array, "B T N H"],
        key: Float[Array, "B S K H"],
        *,
        mask: Bool[Array, "..."] | None,
        bias: Float[Array, "..."] | None,
        param: Param,
    ) -> Float[Array, "B N T S"]:
        """Returns the weight of each key for each query, in at least float32.

        query, key  heads after `qk_norm` and rotary positions; query head n reads key head `n // (N / K)`
        mask        True: the query may attend to the key; broadcasts to `[B, N, T, S]`; None: every query to every key
        bias        to be added to the scores, broadcasts to `[B, N, T, S]`; None: nothing is added
        param       `param(name, init, shape, dtype)` returns a parameter of this layer, `…/attention/NAME`

        A masked key must have weight 0 and pass no gradient; a query without keys must have a finite gradient. The weights may not
        depend on S: padding and the free room of a decode cache count as masked keys. Use `mask.sum(-1)` for the number of keys.
        `check_attention` compares both at the start of a training.
        """
        scale = self.score_scale(query.shape[-1])
        return attention_weights(
            query, key, mask=mask, bias=bias, scale=scale, soft_cap=self.soft_cap, masking=self.masking
        )

    def mix(
        self, weights: Float[Array, "B N T S"], value: Float[Array, "B S K Hv"], param: Param
    ) -> Float[Array, "B T N Hv"]:
        """Returns the heads' answers from the weights (after dropout) and the values; `param` as for `weights`."""
        return weighted_values(weights, value)

    def answers(
        self,
        query: Float[Array, "B T N H"],
        key: Float[Array, "B S K H"],
        value: Float[Array, "B S K Hv"],
        *,
        mask: AttentionMask,
        bias: Float[Array, "..."] | None,
        param: Param,
    ) -> Float[Array, "B T N Hv"]:
        """Returns the heads' answers where `weights` and `mix` have no part: for an attention that has no matrix of T x S weights.

        mask        `mask.structure` has the parts that it is made of (causal, padding, packed texts), `mask.allowed` the whole;
                    what is not read is not computed. A decode cache has only `allowed`, for S slots, and T is mostly 1
        bias        as for `weights`; a method that cannot add it raises a ValueError where there is one

        `model.dropout.attention_rate` must be 0: this variant has no weights that could be dropped or shown. The rules of
        `weights` on masked keys hold, and `check_attention` compares these answers too.
        """
        raise NotImplementedError(f"{type(self).__qualname__} has weights")

    @property
    def has_weights(self) -> bool:
        """Whether `weights` and `mix` make the answers; else `answers` does all of it."""
        return type(self).answers is Attention.answers

    def score_scale(self, width: int) -> float:
        """Returns the factor of the scores for heads of that width."""
        return width**-0.5 if self.scale is None else self.scale

    @property
    def is_plain_softmax(self) -> bool:
        """Whether the answers are those of this class, which is what fused kernels compute."""
        unchanged = type(self).weights is Attention.weights and type(self).mix is Attention.mix
        return unchanged and self.has_weights


@dataclass(frozen=True, kw_only=True)
class DotProduct(Attention):
    """Scaled dot-product attention, each head with its own projections: kernels are matrices `[D, N*H]`."""

    kind: Literal["dot_product"] = "dot_product"
    d_key: PositiveInt | None = None
    """Width of a query or key head; None: `d_model / num_heads`."""
    d_value: PositiveInt | None = None
    """Width of a value head; None: as `d_key`."""
    num_kv_heads: PositiveInt | None = None
    """Number of key/value heads, a divisor of `num_heads`; None: one for each query head; 1: multi-query attention."""

    def check(self, d_model: int, num_heads: int, setting: str = "model.num_heads") -> None:
        if self.d_key is None:
            check_heads_divide(d_model, num_heads, setting, ", or set model.attention.d_key")
        if self.num_kv_heads is not None and num_heads % self.num_kv_heads:
            raise ValueError(
                f"{setting} {num_heads} is not divisible by model.attention.num_kv_heads {self.num_kv_heads}: "
                f"choose a divisor of {setting}, or None for one key/value head per query head"
            )

    def heads(self, d_model: int, num_heads: int) -> Heads:
        d_key = self.d_key or d_model // num_heads
        return Heads(self.num_kv_heads or num_heads, d_key, self.d_value or d_key)


@dataclass(frozen=True, kw_only=True)
class SharedProjection(Attention):
    """Scaled dot-product attention whose input is split into heads first; one matrix `[H, H]` then projects every head."""

    kind: Literal["shared_projection"] = "shared_projection"
    bias: bool = False
    """Use biases in the query, key and value projections."""
    out_bias: bool | None = True
    """Use a bias in the output projection; None: as `bias`."""

    def width(self, num_heads: int, d_head: int) -> int:
        return d_head

    def split(
        self, x: Float[Array, "B T D"], project: Callable[[Array], Array], num_heads: int, d_head: int
    ) -> Float[Array, "B T N H"]:
        return project(x.reshape(*x.shape[:2], num_heads, d_head))


@dataclass(frozen=True, kw_only=True)
class Disentangled(Attention):
    """Disentangled attention, for encoders only: contents have scores with each other and with relative positions.

    A relative position is a row of a table that all layers of a stack share. `key` and `query` of a row are its projections:

        score(t, s) = scale * (query_t key_s + query_t key(row(t - s)) + key_s query(row(t - s)))

    Reference: He et al. 2020, arXiv:2006.03654, section 3.1; of the buckets and the shared projections section 5 of version 6.
    """

    kind: Literal["disentangled"] = "disentangled"
    scale: PositiveFloat | None = None
    """Factor of the scores; None: `1 / sqrt(parts * H)`, where `parts`, 2 or 3, is the number of products in a score."""
    max_distance: PositiveInt = 512
    """Distance in tokens from which on all distances of one side share a row."""
    num_buckets: PositiveInt | None = 256
    """Number of rows for each side: half of them for one distance each, the others for distances that grow logarithmically up to
    `max_distance`. None: one for each distance below `max_distance`."""
    content_to_position: bool = True
    """Add the product of the query with the projected row."""
    position_to_content: bool = True
    """Add the product of the key with the projected row."""
    share_projections: bool = True
    """Project the rows as the tokens, by `query` and `key` of the layer; else by matrices of their own."""
    table_norm: OptionalNorm = LayerNorm()
    """Norm of each row of the table; None: no norm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parts == 1:
            raise ValueError(
                "model.attention.content_to_position and model.attention.position_to_content are both False: set one of them to "
                "True, or choose dot_product"
            )
        if self.num_buckets is not None and not 2 <= self.num_buckets <= 2 * (self.max_distance - 2):
            raise ValueError(
                f"model.attention.num_buckets is {self.num_buckets} and model.attention.max_distance is {self.max_distance}: "
                "num_buckets must be at least 2, and max_distance at least half of it plus 2"
            )

    @property
    def parts(self) -> int:
        """The number of products that a score is the sum of."""
        return 1 + self.content_to_position + self.position_to_content

    @property
    def num_rows(self) -> int:
        """The number of rows of the table."""
        return 2 * (self.num_buckets or self.max_distance)

    def score_scale(self, width: int) -> float:
        return super().score_scale(width * self.parts)

    def rows(self, offsets: np.ndarray) -> np.ndarray:
        """Returns the row of the table for each offset. An offset is the position of the query minus the position of the key."""
        distance = np.abs(offsets)
        if self.num_buckets is not None:
            exact = self.num_buckets // 2
            growth = np.log(np.maximum(distance, exact) / exact) / np.log((self.max_distance - 1) / exact)
            # Rounding must not move a whole number up.
            distance = np.minimum(distance, exact) + np.ceil((exact - 1) * growth - 1e-6).astype(int)
        return np.clip(self.num_rows // 2 + np.sign(offsets) * distance, 0, self.num_rows - 1)


def by_offset(x: Float[Array, "B N T 2*T"]) -> Float[Array, "B N T T"]:
    """Returns `x[t, s - t + T - 1]` at t and s. One reshape shifts all rows: faster than a gather, as is its gradient."""
    length = x.shape[2]
    flat = x.reshape(*x.shape[:2], -1)[..., length - 1 :][..., : length * (2 * length - 1)]
    return flat.reshape(*x.shape[:3], -1)[..., :length]


def check_heads_divide(d_model: int, num_heads: int, setting: str, also: str = "") -> None:
    """Raises: ValueError where `num_heads` does not divide `d_model`."""
    if d_model % num_heads:
        raise ValueError(f"model.d_model {d_model} is not divisible by {setting} {num_heads}: change one" + also)


AttentionVariant = DotProduct | SharedProjection | Disentangled
"""The variants that config.json can hold."""

CHECKED_LENGTH = 128
"""Number of tokens in `check_attention`; a power of 2, since a variant may work in blocks."""


def check_attention(variant: Attention, d_model: int, num_heads: int, *, decodes: bool) -> None:
    """Checks the contract of a variant with methods of its own, by the answers to random queries: what `weights` and `answers` say.

    Their shape; equal answers with and without masked keys behind their own; no gradient to a masked key, and a finite one for a
    query without keys. `decodes`: one query in the middle of a causal text is also answered by itself, as with a decode cache.

    The parameters are 0.1 above their first values: a gate that starts at 0 hides what it gates.

    Raises: ValueError that names the variant and what is broken.
    """
    if variant.is_plain_softmax:
        return
    length, heads, params = CHECKED_LENGTH, variant.heads(d_model, num_heads), dict[str, Array]()
    name = f"model.attention is a {type(variant).__name__}"
    shapes = (num_heads, heads.d_key), (heads.num_kv_heads, heads.d_key), (heads.num_kv_heads, heads.d_value)
    padded = [jax.random.normal(jax.random.key(i), (1, 2 * length, *shape)) for i, shape in enumerate(shapes)]
    text, is_token = [x[:, :length] for x in padded], jnp.arange(2 * length)[None] < length

    def param(
        name: str, init: nn.initializers.Initializer, shape: tuple[int, ...], dtype: object = jnp.float32
    ) -> Array:
        x = params.setdefault(name, init(jax.random.key(0), tuple(shape), dtype) + 0.1)
        if x.shape != tuple(shape):
            raise ValueError(
                f"model.attention is a {type(variant).__name__}, whose parameter {name} has shape {x.shape} for one number of keys "
                f"and {tuple(shape)} for another: a shape may not depend on the number of keys or queries"
            )
        return x

    def answers(arrays: Sequence[Array], mask: AttentionMask) -> Array:
        query, key, value = arrays
        if variant.has_weights:
            return variant.mix(variant.weights(query, key, mask=mask.allowed, bias=None, param=param), value, param)
        return variant.answers(query, key, value, mask=mask, bias=None, param=param)

    def total(arrays: list[Array]) -> Array:
        """Returns a number from the answers of two rows: of one half of the keys are masked, of the other all."""
        return jnp.sin(answers(arrays, structured_mask(is_token & jnp.array([[True], [False]])))).sum()

    @jax.jit
    def computed() -> tuple[dict[str, tuple[Array, Array]], list[Array]]:
        """Returns the answers to compare, and the gradients of `total`."""
        compared = {"padding": (answers(text, EVERY_KEY), answers(padded, structured_mask(is_token))[:, :length])}
        if decodes and variant.decodes:
            middle = slice(length // 2, length // 2 + 1)
            cache = AttentionMask(padding_mask(jnp.arange(2 * length)[None] < middle.stop))
            alone = answers([text[0][:, middle], *padded[1:]], cache)
            compared["a decode cache"] = answers(text, structured_mask(causal_length=length))[:, middle], alone
        return compared, jax.grad(total)([x.repeat(2, 0) for x in padded])

    with jax.default_matmul_precision("highest"):
        compared, gradients = computed()
    wanted = (1, length, num_heads, heads.d_value)
    shape = compared["padding"][0].shape
    if shape != wanted:
        raise ValueError(f"{name}, whose answers have the shape {shape}: they must be [B, T, N, Hv], here {wanted}")
    for reason, (without, with_more) in compared.items():
        if not jnp.allclose(without, with_more, rtol=0, atol=1e-3 * jnp.nanmax(jnp.abs(without)), equal_nan=True):
            raise ValueError(
                f"{name}, whose answers change with {reason}: a masked key must have weight 0, and no weight may depend on the "
                "number of all keys or queries; count the keys of a query by mask.sum(-1)"
            )
    if any(jnp.any(x[0, length:] != 0) for x in gradients[1:]):
        raise ValueError(f"{name}, which passes a gradient to masked keys: set their weight to 0 by jnp.where")
    if not all(jnp.isfinite(x[1]).all() for x in gradients):
        raise ValueError(
            f"{name}, whose gradient is not finite where a query has no key: padding has none; keep 0/0 and log(0) from it"
        )


# The module -------------------------------------------------------------------------------------------------------------

Rotate = Callable[[Array], Array]
"""Rotates heads `[B, T, N, H]` by their positions."""


class KeyValue(NamedTuple):
    """Projected keys and values, in heads."""

    key: Float[Array, "B S K H"]
    value: Float[Array, "B S K Hv"]


class MultiHeadAttention(nn.Module):
    """Multi-head attention; parameters `query`, `key`, `value` and `out`, each a kernel matrix and perhaps a bias.

    `__call__` is self-attention of `query`, or cross-attention to `key` (and to `value`, by default `key`). A decoder with a cache
    calls `key_value` and `attend` itself. The attention weights (before dropout) are sown as the intermediate `weights`.
    """

    d_model: int
    num_heads: int
    variant: Attention = DotProduct()
    dropout_rate: float = 0.0
    dtype: Any = jnp.float32
    kernel_init: nn.initializers.Initializer = nn.initializers.xavier_uniform()
    lora: LoRA | None = None
    matmul_dtype: str | None = None

    def setup(self) -> None:
        v = self.variant
        heads = v.heads(self.d_model, self.num_heads)

        def dense(width: int, bias: bool) -> nn.Dense:
            like = {"dtype": self.dtype, "kernel_init": self.kernel_init, "lora": self.lora}
            return Dense(width, use_bias=bias, precision=self.matmul_dtype, **like)

        self.query = dense(v.width(self.num_heads, heads.d_key), v.bias)
        self.key = dense(v.width(heads.num_kv_heads, heads.d_key), v.bias)
        self.value = dense(v.width(heads.num_kv_heads, heads.d_value), v.bias)
        self.out = dense(self.d_model, v.bias if v.out_bias is None else v.out_bias)
        self.query_norm = self.key_norm = None
        if v.qk_norm is not None:
            each = v.qk_norm_width == "each_head"
            self.query_norm = Normalize(v.qk_norm, self.num_heads if each else None)
            self.key_norm = Normalize(v.qk_norm, heads.num_kv_heads if each else None)
        if isinstance(v, Disentangled) and not v.share_projections:
            self.relative_query = dense(v.width(self.num_heads, heads.d_key), v.bias)
            self.relative_key = dense(v.width(self.num_heads, heads.d_key), v.bias)

    def __call__(
        self,
        query: Float[Array, "B T D"],
        key: Float[Array, "B S D2"] | None = None,
        value: Float[Array, "B S D3"] | None = None,
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
    ) -> Float[Array, "B T D"]:
        key_value = self.key_value(query if key is None else key, value)
        return self.attend(query, key_value, mask=own_mask(mask), bias=bias)

    def key_value(
        self, key: Float[Array, "B S D2"], value: Float[Array, "B S D3"] | None = None, rotate: Rotate | None = None
    ) -> KeyValue:
        """Returns the projected keys and values, in heads; `rotate` rotates the keys by their positions."""
        heads = self.variant.heads(self.d_model, self.num_heads)
        keys = self.variant.split(key, self.key, heads.num_kv_heads, heads.d_key)
        keys = self.positioned(keys, self.key_norm, rotate)
        values = self.variant.split(key if value is None else value, self.value, heads.num_kv_heads, heads.d_value)
        return KeyValue(keys, values)

    def positioned(
        self, heads: Float[Array, "B T N H"], norm: Callable[[Array], Array] | None, rotate: Rotate | None
    ) -> Float[Array, "B T N H"]:
        """Returns the heads of queries or keys, normalised and rotated in the variant's order."""
        shape = (*heads.shape[:2], -1) if self.variant.qk_norm_width == "all_heads" else heads.shape

        def normalized(heads: Array) -> Array:
            return heads if norm is None else norm(heads.reshape(shape)).reshape(heads.shape)

        if self.variant.qk_norm_place == "after_rotation":
            return normalized(heads if rotate is None else rotate(heads))
        heads = normalized(heads)
        return heads if rotate is None else rotate(heads)

    @nn.compact
    def attend(
        self,
        query: Float[Array, "B T D"],
        key_value: KeyValue,
        *,
        mask: AttentionMask,
        bias: Float[Array, "..."] | None = None,
        rotate: Rotate | None = None,
        cached: bool = False,
        table: Float[Array, "R D"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns the attention of `query` to keys and values that are in heads already.

        cached: they are a decode cache. table: the rows of relative positions, which `Disentangled` needs.
        """
        v = self.variant
        heads = v.split(query, self.query, self.num_heads, key_value.key.shape[-1])
        heads = self.positioned(heads, self.query_norm, rotate)
        if isinstance(v, Disentangled):
            added = self.relative_scores(v, heads, key_value.key, table)
            bias = added if bias is None else bias + added
        call = kernels.AttentionCall(
            heads,
            *key_value,
            v.score_scale(heads.shape[-1]),
            v.soft_cap,
            *mask,
            has_bias=bias is not None,
            hard_mask=v.masking == EXCLUDE,
            has_dropout=self.dropout_rate > 0 and self.has_rng("dropout"),
            needs_weights=self.is_mutable_collection("intermediates"),
            plain_softmax=v.is_plain_softmax,
            blocks=v.splash,
        )
        kernel = None if cached else self.choose_kernel(call).kernel
        if kernel is not None:
            mixed = kernel(call)
        elif not v.has_weights:
            if self.dropout_rate:
                raise ValueError(
                    f"model.dropout.attention_rate is {self.dropout_rate}, but model.attention is a {type(v).__name__}, which has "
                    "no weights to drop: set it to 0"
                )
            mixed = v.answers(heads, *key_value, mask=mask, bias=bias, param=self.param).astype(self.dtype)
        else:
            weights = v.weights(heads, key_value.key, mask=mask.allowed, bias=bias, param=self.param)
            self.sow("intermediates", "weights", weights)
            weights = apply_dropout(self, weights.astype(self.dtype), self.dropout_rate)
            plain = cached and type(v).mix is Attention.mix
            mixed = (
                fast.cached_values(weights, key_value.value) if plain else v.mix(weights, key_value.value, self.param)
            )
        return self.out(mixed.reshape(*mixed.shape[:2], -1))

    def relative_scores(
        self,
        variant: Disentangled,
        query: Float[Array, "B T N H"],
        key: Float[Array, "B T N H"],
        table: Float[Array, "R D"] | None,
    ) -> Float[Array, "B N T T"]:
        """Returns the scores of contents with relative positions. Only the rows that these lengths reach are projected."""
        length = query.shape[1]
        width = query.shape[-1]
        if table is None or key.shape[1] != length:
            raise ValueError(
                "model.attention is disentangled, which is self-attention in the encoder of a Transformer: a single layer and a "
                "memory have no table of relative positions; choose dot_product"
            )
        offsets = np.arange(2 * length) - (length - 1)
        first, last = variant.rows(np.array([-length, length]))

        def scores(content: Array, project: Callable[[Array], Array], offsets: np.ndarray) -> Array:
            """Returns the products of each content with the projected rows of these offsets, of each with those that it meets."""
            rows = variant.split(table[None, first : last + 1], project, self.num_heads, width)[0]
            rows = rows[variant.rows(offsets) - first]
            products = jnp.einsum("BTNH,RNH->BNTR", content, rows, preferred_element_type=accumulation_dtype(content))
            return by_offset(products)

        shared = variant.share_projections
        total: Array | float = 0.0
        if variant.content_to_position:
            total = scores(query, self.key if shared else self.relative_key, -offsets)
        if variant.position_to_content:
            of_keys = scores(key, self.query if shared else self.relative_query, offsets)
            total = total + of_keys.swapaxes(-1, -2)
        return jnp.asarray(variant.score_scale(width) * total)

    def choose_kernel(self, call: kernels.AttentionCall) -> kernels.KernelChoice:
        """Returns what computes this attention. `kernels.report_choices` listens to this method."""
        return kernels.choose_kernel(self.variant.implementation, call)


class RelativeTable(nn.Module):
    """Module for the table of relative positions of `Disentangled`; parameters `embedding` `[R, D]` and perhaps `norm`."""

    variant: Disentangled
    d_model: int
    embedding_init: nn.initializers.Initializer
    dtype: Any

    @nn.compact
    def __call__(self) -> Float[Array, "R D"]:
        x: Array = self.param("embedding", self.embedding_init, (self.variant.num_rows, self.d_model), jnp.float32)
        if self.variant.table_norm is not None:
            x = Normalize(self.variant.table_norm, name="norm")(x)
        return x.astype(self.dtype)
