"""The decode cache: keys and values of the tokens that a decoder has read.

A cache has `room` slots; the key of position p is in slot p modulo `room`. A cache with room for every token never wraps around.
A cache as wide as the sliding window keeps the window only: each new key overwrites the oldest.

    room 6, positions 0 … 3 written               [ 0 | 1 | 2 | 3 | · | · ]
    room 3 (window of 3), 0 … 2 written           [ 0 | 1 | 2 ]
    room 3, then 3 and 4                          [ 3 | 4 | 2 ]
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class KeyValue(NamedTuple):
    """Projected keys and values, in heads."""

    key: Float[Array, "B S K H"]
    value: Float[Array, "B S K Hv"]

    def by_head(self) -> "CachedKeyValue":
        """Returns them in the layout of a cache."""
        return CachedKeyValue(self.key.swapaxes(1, 2), self.value.swapaxes(1, 2))


class CachedKeyValue(NamedTuple):
    """Keys and values of one layer in a decode cache: S is the room, not the number of tokens.

    The slots of a head are one matrix, so a step's products read them where they are.
    """

    key: Float[Array, "B K S H"]
    value: Float[Array, "B K S Hv"]

    def write(self, new: "CachedKeyValue", slot: Int[Array, ""]) -> "CachedKeyValue":
        """Returns the cache with `new` (one position or more) in consecutive slots from `slot` on."""
        return CachedKeyValue(
            *(jax.lax.dynamic_update_slice_in_dim(old, n, slot, -2) for old, n in zip(self, new, strict=True))
        )

    def write_window(self, new: "CachedKeyValue", slots: Int[Array, "_"]) -> "CachedKeyValue":
        """Returns the cache with the last positions of `new`, as many as there are `slots`, in these slots."""
        return CachedKeyValue(
            *(old.at[..., slots, :].set(n[..., -len(slots) :, :]) for old, n in zip(self, new, strict=True))
        )

    def concat(self, new: "CachedKeyValue") -> "CachedKeyValue":
        """Returns the keys and values of the cache, followed by `new`."""
        return CachedKeyValue(*(jnp.concatenate(pair, -2) for pair in zip(self, new, strict=True)))

    def by_slot(self) -> KeyValue:
        """Returns one layer's keys and values in the layout of attention."""
        return KeyValue(self.key.swapaxes(1, 2), self.value.swapaxes(1, 2))


class LayerCache(NamedTuple):
    """A layer's keys and values of the decoder's own tokens and of the memory."""

    own: CachedKeyValue
    memory: CachedKeyValue | None

    @property
    def room(self) -> int:
        """The number of slots for the decoder's own tokens."""
        return self.own.key.shape[-2]


DecodeCache = tuple[LayerCache, ...]
"""The caches of all layers: arrays of their own, so that a step writes into them in place and copies none."""


Caches = TypeVar("Caches", DecodeCache, tuple[DecodeCache, ...])
"""The cache of one model, or those of all members of an ensemble."""


def map_own(function: Callable[[Array], Array], cache: Caches) -> Caches:
    """Returns the cache with `function` applied to the keys and the values of the decoder's own tokens, layer by layer."""

    def map_layer(layer: LayerCache) -> LayerCache:
        return layer._replace(own=CachedKeyValue(*map(function, layer.own)))

    mapped: Caches = jax.tree.map(map_layer, cache, is_leaf=lambda node: isinstance(node, LayerCache))
    return mapped


def slot_positions(newest: Int[Array, ""], room: int) -> Int[Array, "S"]:
    """Returns the position stored in each slot once position `newest` was written; negative for an empty slot."""
    return newest - (newest - jnp.arange(room)) % room
