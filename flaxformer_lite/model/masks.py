"""Which key a query may attend to, and what becomes of the scores of those that it may not."""

import functools
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from pydantic import Discriminator

# Masks: True = may attend; shapes broadcast to [B, N, T, S] -----------------------------------------------------------


def padding_mask(is_token: Bool[Array, "B S"]) -> Bool[Array, "B 1 1 S"]:
    """Every query may attend to the keys that are tokens.

    keys  a b ·        query 0   x x .
                       query 1   x x .
                       query 2   x x .
    """
    return is_token[:, None, None, :]


def causal_mask(length: int, window: int | None = None) -> Bool[Array, "1 1 T T"]:
    """Each query may attend to itself and to what came before; with a `window` to that many at most, itself included.

    query 0   x . .
    query 1   x x .
    query 2   x x x
    """
    return prefix_mask(jnp.int32(0), length, length, window)


def prefix_mask(
    index: Int[Array, ""], length: int, num_queries: int = 1, window: int | None = None
) -> Bool[Array, "1 1 T S"]:
    """Queries at `index`, `index + 1` … of a cache with room for `length` keys may attend to keys 0 … their own."""
    return before_mask(index + jnp.arange(num_queries), jnp.arange(length), window)


def before_mask(queries: Int[Array, "T"], keys: Int[Array, "S"], window: int | None = None) -> Bool[Array, "1 1 T S"]:
    """Queries at these places may attend to the keys that stand at or before theirs; with a `window` to those less far away."""
    distance = queries[:, None] - keys
    allowed = distance >= 0
    return (allowed if window is None else allowed & (distance < window))[None, None]


def segment_mask(queries: Int[Array, "B T"], keys: Int[Array, "B S"]) -> Bool[Array, "B 1 T S"]:
    """Packed texts do not see each other: a query may attend to the keys of its own segment. Segment 0 is padding."""
    return ((queries[:, :, None] == keys[:, None, :]) & (keys != 0)[:, None, :])[:, None]


def combine_masks(*masks: Bool[Array, "..."] | None) -> Bool[Array, "..."] | None:
    """Where all the given masks allow it; None (everything allowed) if there are none."""
    given = [mask for mask in masks if mask is not None]
    return functools.reduce(jnp.logical_and, given) if given else None


# What a mask is made of, for kernels that never see it whole ------------------------------------------------------------


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["queries", "keys", "answered"], meta_fields=["causal", "window"]
)
@dataclass(frozen=True, kw_only=True)
class MaskStructure:
    """What a mask is made of. A query may attend to a key of its own number that neither comes after it nor lies too far back."""

    causal: bool = False
    """No key comes after its query."""
    window: int | None = None
    """That many keys at most, the query's own included, where the mask is causal; None: all."""
    queries: Int[Array, "B T"] | None = None
    """The number of each query's text; None: 1 for all, where there are `keys`."""
    keys: Int[Array, "B S"] | None = None
    """The number of each key's text, 0 for what nobody may attend to; None: every query may attend to every key."""
    answered: Bool[Array, "B #T"] | None = None
    """Whether a query has anything to attend to; None: each has."""


class ByLayer(NamedTuple):
    """The mask of a layer that is one of two kinds, which is known only as the layers run."""

    is_local: Bool[Array, ""]
    local: MaskStructure
    other: MaskStructure


def mask_structure(
    mask: Bool[Array, "#B 1 #T S"] | None,
    is_token: Bool[Array, "B S"] | None = None,
    queries: Int[Array, "B T"] | None = None,
    keys: Int[Array, "B S"] | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
) -> MaskStructure:
    """What `mask` is made of: padding, the segments of queries and keys, and where a key may stand."""
    if is_token is None and keys is None:
        return MaskStructure(causal=causal, window=window)
    assert mask is not None
    numbers = jnp.ones(is_token.shape, jnp.int32) if keys is None else keys  # type: ignore[union-attr]
    return MaskStructure(
        causal=causal,
        window=window,
        queries=None if queries is None else jnp.where(queries == 0, -1, queries),
        keys=numbers if is_token is None else jnp.where(is_token, numbers, 0),
        answered=mask.any(-1)[:, 0],
    )


# What becomes of masked scores ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Exclude:
    """A masked key has weight 0 exactly; a query with nothing to attend to answers zero and passes no gradient."""

    kind: Literal["exclude"] = "exclude"

    def softmax(self, scores: Float[Array, "B N T S"], mask: Bool[Array, "..."]) -> Float[Array, "B N T S"]:
        weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min))
        return jnp.where(mask.any(-1, keepdims=True), weights, 0)


@dataclass(frozen=True, kw_only=True)
class Replace:
    """A masked score is replaced; a query with nothing to attend to then attends to all S keys alike, padding and future too.

    Replacing before the scale is the same with `value` times the scale.
    """

    kind: Literal["replace"] = "replace"
    value: float = -1e9
    """The score of a masked key."""

    def softmax(self, scores: Float[Array, "B N T S"], mask: Bool[Array, "..."]) -> Float[Array, "B N T S"]:
        return jax.nn.softmax(jnp.where(mask, scores, self.value))


@dataclass(frozen=True, kw_only=True)
class Penalize:
    """A masked score is lowered; a query with nothing to attend to then attends as if nothing were masked, as in BERT.

    Not quite: in float32 a score less 10,000 keeps steps of 2^-10 only.
    """

    kind: Literal["penalize"] = "penalize"
    value: float = -10_000.0
    """Added to the score of a masked key."""

    def softmax(self, scores: Float[Array, "B N T S"], mask: Bool[Array, "..."]) -> Float[Array, "B N T S"]:
        return jax.nn.softmax(scores + jnp.where(mask, 0, jnp.asarray(self.value, scores.dtype)))


Masking = Annotated[Exclude | Replace | Penalize, Discriminator("kind")]
EXCLUDE = Exclude()


def padding(mask: Bool[Array, "B S"] | None) -> Bool[Array, "B 1 1 S"] | None:
    return None if mask is None else padding_mask(mask)


def segments(queries: Int[Array, "B T"] | None, keys: Int[Array, "B S"] | None) -> Bool[Array, "B 1 T S"] | None:
    return None if queries is None or keys is None else segment_mask(queries, keys)
