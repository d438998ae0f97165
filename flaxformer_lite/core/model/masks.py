"""Attention masks: the keys that a query may attend to, and the treatment of the scores of the others."""

import functools
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

# Masks: True = may attend; shapes broadcast to [B, N, T, S] -----------------------------------------------------------


def padding_mask(is_token: Bool[Array, "B S"] | None) -> Bool[Array, "B 1 1 S"] | None:
    """Returns the mask in which every query may attend to the keys that are tokens; None without padding.

    keys  a b ·        query 0   x x .
                       query 1   x x .
                       query 2   x x .
    """
    return None if is_token is None else is_token[:, None, None, :]


def causal_mask(length: int, window: int | None = None) -> Bool[Array, "1 1 T T"]:
    """Returns the mask in which a query may attend to itself and to all before it; with a `window` to that many, itself included.

    query 0   x . .
    query 1   x x .
    query 2   x x x
    """
    return before_mask(jnp.arange(length), jnp.arange(length), window)


def before_mask(queries: Int[Array, "T"], keys: Int[Array, "S"], window: int | None = None) -> Bool[Array, "1 1 T S"]:
    """Returns the mask in which queries may attend to keys at or before their position, less than `window` positions away."""
    distance = queries[:, None] - keys
    allowed = distance >= 0
    return (allowed if window is None else allowed & (distance < window))[None, None]


def window_mask(length: int, window: int) -> Bool[Array, "1 1 T T"]:
    """Returns the mask in which a query may attend to the keys less than `window` positions away, on both sides; here 2.

    query 0   x x .
    query 1   x x x
    query 2   . x x
    """
    positions = jnp.arange(length)
    return (jnp.abs(positions[:, None] - positions) < window)[None, None]


def segment_mask(queries: Int[Array, "B T"] | None, keys: Int[Array, "B S"] | None) -> Bool[Array, "B 1 T S"] | None:
    """Returns the mask in which a query may attend to the keys of its own packed text; None if texts are not packed.

    Segment 0 is padding.
    """
    if queries is None or keys is None:
        return None
    return ((queries[:, :, None] == keys[:, None, :]) & (keys != 0)[:, None, :])[:, None]


def combine_masks(*masks: Bool[Array, "..."] | None) -> Bool[Array, "..."] | None:
    """Returns the mask that allows what all masks allow; None allows everything."""
    present = [mask for mask in masks if mask is not None]
    return functools.reduce(jnp.logical_and, present) if present else None


# The parts of a mask, for kernels that never store it whole -------------------------------------------------------------


@struct.dataclass
class MaskStructure:
    """The parts that a mask is made of: causal, a window, and the number of the packed text of each query and key."""

    causal: bool = struct.field(pytree_node=False, default=False)
    """Whether keys after their query are masked."""
    window: int | None = struct.field(pytree_node=False, default=None)
    """Keys this many positions away and more are masked: those before a query if the mask is causal, else also those after it.
    None: no limit."""
    queries: Int[Array, "B T"] | None = None
    """Number of each query's text; None: 1 for all, if there are `keys`."""
    keys: Int[Array, "B S"] | None = None
    """Number of each key's text, 0 for padding; None: every query may attend to every key."""
    answered: Bool[Array, "B #T"] | None = None
    """Whether a query has any key to attend to; None: each query has one. Without a key, its output is 0."""


class ByLayer(NamedTuple):
    """The parts of a mask in a loop over layers of two kinds: the kind is known only while the loop runs."""

    is_local: Bool[Array, ""]
    local: MaskStructure
    other: MaskStructure


class AttentionMask(NamedTuple):
    """A mask, and the parts that it is made of where they are known."""

    allowed: Bool[Array, "..."] | None = None
    """True: the query may attend to the key; broadcasts to `[B, N, T, S]`. None: every query to every key."""
    structure: MaskStructure | ByLayer | None = None
    """The parts of `allowed`; None: unknown, there is only the array."""


EVERY_KEY = AttentionMask(None, MaskStructure())
"""The mask in which every query may attend to every key."""


class LayerMasks(NamedTuple):
    """The masks of self-attention in a stack: of all layers, or of those without (`most`) and with a sliding window (`local`)."""

    most: AttentionMask = EVERY_KEY
    local: AttentionMask | None = None

    def of_layer(self, is_local: Bool[Array, ""] | None) -> AttentionMask:
        """Returns the mask of a layer in a loop over layers of two kinds; None: all layers are alike."""
        if is_local is None or self.local is None:
            return self.most
        local, most = (True if mask.allowed is None else mask.allowed for mask in (self.local, self.most))
        allowed = jnp.where(is_local, local, most)
        if not (isinstance(self.local.structure, MaskStructure) and isinstance(self.most.structure, MaskStructure)):
            return AttentionMask(allowed)
        return AttentionMask(allowed, ByLayer(is_local, self.local.structure, self.most.structure))


def own_mask(mask: Array | None) -> AttentionMask:
    """Returns the mask that a caller gives as an array; without one, every key is seen.

    Raises: ValueError for numbers: 0 would hide a key here, and shows it in a mask that is added to the scores.
    """
    if mask is None:
        return EVERY_KEY
    if mask.dtype != bool:
        raise ValueError(
            f"mask is of type {mask.dtype}: it must be boolean, True where the query may attend; scores take a bias"
        )
    return AttentionMask(mask)


def structured_mask(
    is_token: Bool[Array, "B S"] | None = None,
    queries: Int[Array, "B T"] | None = None,
    keys: Int[Array, "B S"] | None = None,
    *,
    causal_length: int | None = None,
    window: int | None = None,
    length: int | None = None,
) -> AttentionMask:
    """Returns the mask of padding (`is_token`), packed texts (segments of `queries` and `keys`), causality and a window.

    causal_length: the number of queries and keys of a causal mask; None: the mask is not causal. window: on one side in a causal
    mask, on both in another, whose number of queries and keys is `length`.
    """
    is_causal = causal_length is not None
    near = None
    if causal_length is not None:
        near = causal_mask(causal_length, window)
    elif length is not None and window is not None:
        near = window_mask(length, window)
    allowed = combine_masks(near, padding_mask(is_token), segment_mask(queries, keys))
    numbers = key_numbers(is_token, keys)
    if numbers is None or allowed is None:
        return AttentionMask(allowed, MaskStructure(causal=is_causal, window=window))
    if queries is not None:
        queries = jnp.where(queries == 0, -1, queries)
    return AttentionMask(allowed, MaskStructure(is_causal, window, queries, numbers, allowed.any(-1)[:, 0]))


def key_numbers(is_token: Bool[Array, "B S"] | None, texts: Int[Array, "B S"] | None) -> Int[Array, "B S"] | None:
    """Returns the number of each key's text, 0 for padding; None: every key is a token of one text."""
    if is_token is None:
        return texts
    return jnp.where(is_token, jnp.ones(is_token.shape, jnp.int32) if texts is None else texts, 0)


# The treatment of masked scores -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Exclude:
    """A masked key has weight 0 exactly; a query without keys has a zero answer and a zero gradient."""

    kind: Literal["exclude"] = "exclude"

    def softmax(self, scores: Float[Array, "B N T S"], mask: Bool[Array, "..."]) -> Float[Array, "B N T S"]:
        weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min))
        return jnp.where(mask.any(-1, keepdims=True), weights, 0)


@dataclass(frozen=True, kw_only=True)
class Replace:
    """A masked score is replaced; a query without keys then attends to all S keys alike, also to padding and future.

    A system that replaces scores before the scale is matched by `value` times the scale.
    """

    kind: Literal["replace"] = "replace"
    value: float = -1e9
    """The score of a masked key."""

    def softmax(self, scores: Float[Array, "B N T S"], mask: Bool[Array, "..."]) -> Float[Array, "B N T S"]:
        return jax.nn.softmax(jnp.where(mask, scores, self.value))


@dataclass(frozen=True, kw_only=True)
class Penalize:
    """A masked score is lowered, as in BERT; a query without keys then attends as if nothing were masked.

    That holds up to rounding: in float32 a score around -10,000 has steps of 2^-10.
    """

    kind: Literal["penalize"] = "penalize"
    value: float = -10_000.0
    """Addend of the score of a masked key."""

    def softmax(self, scores: Float[Array, "B N T S"], mask: Bool[Array, "..."]) -> Float[Array, "B N T S"]:
        return jax.nn.softmax(scores + jnp.where(mask, 0, jnp.asarray(self.value, scores.dtype)))


Masking = Exclude | Replace | Penalize
EXCLUDE = Exclude()
