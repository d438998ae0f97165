"""Contexts of the layers, built once for a stack: masks and positions, and the decode cache.

A stack reads all its tokens at once (`SequenceContext`: an encoder, or a decoder with teacher forcing), or a decoder reads the next
ones with a cache (`StepContext`).

The cache holds the keys and values of the tokens that a decoder has read. It has `room` slots; the key of position p is in slot p
modulo `room`. A cache with room for every token never wraps around. A cache as wide as the sliding window keeps the window only:
each new key overwrites the oldest.

    room 6, positions 0 … 3 written               [ 0 | 1 | 2 | 3 | · | · ]
    room 3 (window of 3), 0 … 2 written           [ 0 | 1 | 2 ]
    room 3, then 3 and 4                          [ 3 | 4 | 2 ]
"""

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.core.model.attention import KeyValue
from flaxformer_lite.core.model.config import ModelConfig, SlidingWindow
from flaxformer_lite.core.model.inputs import Inputs, default_positions
from flaxformer_lite.core.model.masks import (
    EVERY_KEY,
    AttentionMask,
    LayerMasks,
    before_mask,
    combine_masks,
    padding_mask,
    segment_mask,
    structured_mask,
)

# All tokens at once -----------------------------------------------------------------------------------------------------


class SequenceContext(NamedTuple):
    """The arguments of all layers that read all tokens at once."""

    positions: Int[Array, "#B T"]
    masks: LayerMasks = LayerMasks()
    """Masks of self-attention."""
    bias: Float[Array, "..."] | None = None
    """Addend of the scores of self-attention."""
    memory: Float[Array, "B S D"] | None = None
    """The encoder's last layer; None: no cross-attention."""
    memory_mask: AttentionMask = EVERY_KEY
    """Mask of cross-attention."""
    table: Float[Array, "R D"] | None = None
    """Rows of relative positions, which `Disentangled` attention has."""


def encoder_context(config: ModelConfig, inputs: Inputs, tokens: Array) -> SequenceContext:
    """Returns the context of the encoder: every source token sees all tokens of its own segment, or those within the window."""
    positions, segments = inputs.source_positions, inputs.source_segments
    if positions is None:
        positions = default_positions(tokens, config.position_padding_id)

    def mask(window: int | None) -> AttentionMask:
        return structured_mask(inputs.source_mask, segments, segments, window=window, length=tokens.shape[1])

    return SequenceContext(positions, masks_by_window(config.window_of(causal=False), mask), inputs.source_bias)


def decoder_context(
    config: ModelConfig, inputs: Inputs, tokens: Array, memory: Float[Array, "B S D"] | None
) -> SequenceContext:
    """Returns the context of the decoder for all target tokens at once: causal, or as `target_attention` says."""
    segments = inputs.target_segments

    def mask(window: int | None) -> AttentionMask:
        if inputs.target_attention is None:
            return structured_mask(inputs.target_mask, segments, segments, causal_length=tokens.shape[1], window=window)
        padding = padding_mask(inputs.target_mask)
        return AttentionMask(combine_masks(inputs.target_attention, padding, segment_mask(segments, segments)))

    masks = masks_by_window(config.sliding_window, mask)
    memory_mask = structured_mask(inputs.source_mask, segments, inputs.source_segments)
    positions = default_positions(tokens) if inputs.target_positions is None else inputs.target_positions
    return SequenceContext(positions, masks, memory=memory, memory_mask=memory_mask)


def masks_by_window(window: SlidingWindow | None, mask: Callable[[int | None], AttentionMask]) -> LayerMasks:
    """Returns the masks of a stack's layers; `mask` makes the mask of a window, None: without one."""
    if window is None or window.layers is None:
        return LayerMasks(mask(None if window is None else window.size))
    return LayerMasks(mask(None), mask(window.size))


# The next tokens, with a cache ------------------------------------------------------------------------------------------


class StepContext(NamedTuple):
    """The arguments of all layers of a decoder that reads the next tokens."""

    positions: Int[Array, "#B T"]
    """Positions of the queries."""
    key_positions: Int[Array, "#B S"]
    """Positions of the keys in the cache."""
    masks: LayerMasks
    """Masks of self-attention."""
    memory_mask: AttentionMask
    """Mask of cross-attention."""
    first_slot: Int[Array, ""]
    """First slot of the cache that the new keys are written to."""
    slots: Int[Array, "_"] | None = None
    """Slots of the newest keys, in a cache that is only as wide as the sliding window. The queries of a longer text then attend to
    the cache as it was before, followed by the new keys. None: new keys are written from `first_slot` on, then attended to."""
    bias: Float[Array, "..."] | None = None
    """Addend of the scores of self-attention."""


def step_context(
    config: ModelConfig,
    index: Int[Array, ""],
    count: int,
    room: int,
    source_mask: Bool[Array, "B S"] | None,
    padded: Int[Array, "B"] | None,
    causal: bool,
) -> StepContext:
    """Returns the context of `count` tokens that are decoded from column `index` of their rows on.

    index: column of the first of these tokens; columns count padding, positions do not. room: slots of the cache.
    padded: columns of padding at the start of each row; None: no row has padding.

    Raises: ValueError where `causal` is False and the model has a sliding window: both say what a token attends to.
    """
    if not causal and config.sliding_window is not None:
        raise ValueError(
            f"objective.prompt_attention is 'full', but model.sliding_window.size is {config.sliding_window.size}: set "
            "model.sliding_window to None, or choose an objective whose prompts are causal"
        )
    first = jnp.zeros((1, 1), jnp.int32) if padded is None else padded[:, None]
    columns = index + jnp.arange(count)
    slots = None
    key_columns = slot_positions(index + count - 1, room)
    if count > 1 and room == config.cache_window:
        # The last of these tokens would overwrite keys that the first one attends to.
        key_columns = jnp.concatenate([slot_positions(index - 1, room), columns])
        slots = columns[-room:] % room
    is_token = padding_mask(key_columns >= first)
    last_seen = columns if causal else jnp.full_like(columns, index + count - 1)

    def mask(window: int | None) -> AttentionMask:
        return AttentionMask(combine_masks(before_mask(last_seen, key_columns, window), is_token))

    return StepContext(
        positions=jnp.maximum(columns - first, 0),
        key_positions=key_columns - first,
        masks=masks_by_window(config.sliding_window, mask),
        memory_mask=AttentionMask(padding_mask(source_mask)),
        first_slot=index % room,
        slots=slots,
    )


class CachedKeyValue(NamedTuple):
    """Keys and values of one layer in a decode cache: S is the room, not the number of tokens.

    The slots of a head are one matrix, so a step's products read them where they are.
    """

    key: Float[Array, "B K S H"]
    value: Float[Array, "B K S Hv"]

    @classmethod
    def of(cls, new: KeyValue) -> "CachedKeyValue":
        """Returns keys and values in the layout of a cache."""
        return cls(new.key.swapaxes(1, 2), new.value.swapaxes(1, 2))

    def by_slot(self) -> KeyValue:
        """Returns keys and values in the layout of attention."""
        return KeyValue(self.key.swapaxes(1, 2), self.value.swapaxes(1, 2))

    def read_and_write(self, new: KeyValue, context: StepContext) -> tuple[KeyValue, "CachedKeyValue"]:
        """Returns what the new tokens attend to, and the cache with their keys and values."""
        pairs = list(zip(self, CachedKeyValue.of(new), strict=True))
        slots = context.slots
        if slots is None:
            update = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=context.first_slot, axis=-2)
            filled = CachedKeyValue(*(update(old, added) for old, added in pairs))
            return filled.by_slot(), filled
        seen = CachedKeyValue(*(jnp.concatenate(pair, -2) for pair in pairs))
        last = (old.at[..., slots, :].set(added[..., -len(slots) :, :]) for old, added in pairs)
        return seen.by_slot(), CachedKeyValue(*last)


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
    return jax.tree.map(
        lambda layer: layer._replace(own=CachedKeyValue(*map(function, layer.own))),
        cache,
        is_leaf=lambda node: isinstance(node, LayerCache),
    )


def slot_positions(newest: Int[Array, ""], room: int) -> Int[Array, "S"]:
    """Returns the position stored in each slot once position `newest` was written; negative for an empty slot."""
    return newest - (newest - jnp.arange(room)) % room
