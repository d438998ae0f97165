"""The decode cache: keys and values of the tokens that a decoder has read.

A cache has `room` slots; the key of position p is in slot p modulo `room`. A cache with room for every token never wraps around.
A cache as wide as the sliding window keeps the window only: each new key overwrites the oldest.

    room 6, positions 0 … 3 written               [ 0 | 1 | 2 | 3 | · | · ]
    room 3 (window of 3), 0 … 2 written           [ 0 | 1 | 2 ]
    room 3, then 3 and 4                          [ 3 | 4 | 2 ]
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class KeyValue(NamedTuple):
    """Projected keys and values, in heads. In a decode cache S is the room, not the number of tokens."""

    key: Float[Array, "B S K H"]
    value: Float[Array, "B S K Hv"]

    def write(self, new: "KeyValue", slot: Int[Array, ""]) -> "KeyValue":
        """Returns the cache with `new` (one position or more) in consecutive slots from `slot` on."""
        return KeyValue(
            *(jax.lax.dynamic_update_slice_in_dim(old, n, slot, 1) for old, n in zip(self, new, strict=True))
        )

    def write_window(self, new: "KeyValue", slots: Int[Array, "_"]) -> "KeyValue":
        """Returns the cache with the last positions of `new`, as many as there are `slots`, in these slots."""
        return KeyValue(*(old.at[:, slots].set(n[:, -len(slots) :]) for old, n in zip(self, new, strict=True)))

    def concat(self, new: "KeyValue") -> "KeyValue":
        """Returns the keys and values of the cache, followed by `new`."""
        return KeyValue(*(jnp.concatenate(pair, 1) for pair in zip(self, new, strict=True)))


class LayerCache(NamedTuple):
    """Keys and values of the decoder's own tokens and of the memory, stacked over the layers."""

    own: KeyValue
    memory: KeyValue | None


def slot_positions(newest: Int[Array, ""], room: int) -> Int[Array, "S"]:
    """Returns the position stored in each slot once position `newest` was written; negative for an empty slot."""
    return newest - (newest - jnp.arange(room)) % room
