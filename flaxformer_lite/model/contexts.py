"""Contexts of the stacks: masks and positions, built once from the inputs and shared by all layers."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.model.cache import slot_positions
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.inputs import Inputs
from flaxformer_lite.model.masks import (
    AttentionMask,
    before_mask,
    combine_masks,
    padding_mask,
    segment_mask,
    structured_mask,
)


class LayerContext(NamedTuple):
    """Arguments that are the same for all layers of a stack."""

    mask: AttentionMask = AttentionMask()
    """Mask of self-attention; with a sliding window in some layers only: of the layers without it."""
    local_mask: AttentionMask | None = None
    """Mask of the layers with a sliding window, where only some have one."""
    bias: Float[Array, "..."] | None = None
    """Addend of the scores of self-attention."""
    memory: Float[Array, "B S D"] | None = None
    """The encoder's last layer."""
    memory_mask: AttentionMask = AttentionMask()
    """Mask of cross-attention."""
    positions: Int[Array, "#B T"] | None = None
    """Positions of the queries."""
    key_positions: Int[Array, "#B S"] | None = None
    """Positions of the keys; None: `positions`, as in self-attention without a cache."""
    index: Int[Array, ""] | None = None  # type: ignore[assignment]  # tuples have a method of that name
    """First slot of the cache that the new keys are written to."""
    slots: Int[Array, "_"] | None = None
    """Slots that the last of several new keys are written to, in a cache as wide as the sliding window. The queries then attend to
    the cache as it was before, followed by the new keys. None: new keys are written from `index` on, then attended to."""


def encoder_context(inputs: Inputs) -> LayerContext:
    """Returns the context of the encoder: every source token sees all tokens of its own segment."""
    own = inputs.source_segments
    return LayerContext(mask=structured_mask(inputs.source_mask, own, own), bias=inputs.source_bias)


def decoder_context(config: ModelConfig, inputs: Inputs, memory: Float[Array, "B S D"] | None) -> LayerContext:
    """Returns the context of the decoder for all target tokens at once: causal, or as `target_attention` says."""
    tokens, own = inputs.target_tokens, inputs.target_segments
    assert tokens is not None

    def mask(window: int | None) -> AttentionMask:
        if inputs.target_attention is None:
            return structured_mask(inputs.target_mask, own, own, causal_length=tokens.shape[1], window=window)
        padding = padding_mask(inputs.target_mask)
        return AttentionMask(combine_masks(inputs.target_attention, padding, segment_mask(own, own)))

    masks = by_window(config, mask)
    return LayerContext(
        *masks, memory=memory, memory_mask=structured_mask(inputs.source_mask, own, inputs.source_segments)
    )


def step_context(
    config: ModelConfig,
    index: Int[Array, ""],
    count: int,
    room: int,
    source_mask: Bool[Array, "B S"] | None,
    padded: Int[Array, "B"] | None,
    causal: bool,
) -> tuple[Int[Array, "#B T"], LayerContext]:
    """Returns positions and context of `count` tokens that are decoded from column `index` of their rows on.

    index: column of the first of these tokens; columns count padding, positions do not. room: slots of the cache.
    padded: columns of padding at the start of each row; None: there is none.

    Raises: ValueError where `causal` is False and the model has a sliding window: both say what a token attends to.
    """
    if not causal and config.sliding_window is not None:
        raise ValueError(
            f"objective.prompt_attention is 'full', but model.sliding_window.size is {config.sliding_window.size}: set "
            "model.sliding_window to None, or choose an objective whose prompts are causal"
        )
    first = jnp.zeros((1, 1), jnp.int32) if padded is None else padded[:, None]
    columns, slots = index + jnp.arange(count), None
    key_columns = slot_positions(index + count - 1, room)
    if count > 1 and room == config.cache_window:
        # The last of these tokens would overwrite keys that the first one attends to.
        key_columns = jnp.concatenate([slot_positions(index - 1, room), columns])
        slots = columns[-room:] % room
    is_token = padding_mask(key_columns >= first)
    last_seen = columns if causal else jnp.full_like(columns, index + count - 1)

    def mask(window: int | None) -> AttentionMask:
        return AttentionMask(combine_masks(before_mask(last_seen, key_columns, window), is_token))

    context = LayerContext(
        *by_window(config, mask),
        memory_mask=AttentionMask(padding_mask(source_mask)),
        key_positions=key_columns - first,
        index=index % room,
        slots=slots,
    )
    return jnp.maximum(columns - first, 0), context


def by_window(
    config: ModelConfig, mask: Callable[[int | None], AttentionMask]
) -> tuple[AttentionMask, AttentionMask | None]:
    """Returns the mask of a decoder's layers; where only some have a window, the mask of those without and of those with it."""
    window = config.sliding_window
    if window is None or window.layers is None:
        return mask(None if window is None else window.size), None
    return mask(None), mask(window.size)
