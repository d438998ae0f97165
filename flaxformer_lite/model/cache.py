"""Keys and values that a decoder keeps between steps."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class KeyValue(NamedTuple):
    """What there is to attend to, projected and split into heads. As a decode cache S is the room, not the fill."""

    key: Float[Array, "B S K H"]
    value: Float[Array, "B S K Hv"]

    def write(self, new: "KeyValue", index: Int[Array, ""]) -> "KeyValue":
        """The cache with `new` (one or more positions) put at `index`."""
        return KeyValue(
            *(jax.lax.dynamic_update_slice_in_dim(old, n, index, 1) for old, n in zip(self, new, strict=True))
        )

    def keep(self, new: "KeyValue", slots: Int[Array, "_"]) -> "KeyValue":
        """The cache with the last of `new`, as many as there are slots, put there."""
        return KeyValue(*(old.at[:, slots].set(n[:, -len(slots) :]) for old, n in zip(self, new, strict=True)))

    def concat(self, new: "KeyValue") -> "KeyValue":
        """What the cache holds, and then `new`."""
        return KeyValue(*(jnp.concatenate(pair, 1) for pair in zip(self, new, strict=True)))


class LayerCache(NamedTuple):
    """What a decoder keeps between steps, stacked over its layers: its own keys and values, and the memory's."""

    own: KeyValue
    memory: KeyValue | None


def slot_positions(newest: Int[Array, ""], room: int) -> Int[Array, "S"]:
    """Of which place a cache holds the key in each slot, when `newest` is the last that was written; negative: of none."""
    return newest - (newest - jnp.arange(room)) % room
