"""The Transformer: embeddings below, stacks in the middle, heads on top. The alphabet is in `model/__init__.py`.

One page reads as the paper does; `blocks.py` holds a layer, `model_config.py` the settings. With both stacks it is the
encoder–decoder; with one of them the encoder or the decoder alone.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.model.blocks import LayerContext
from flaxformer_lite.model.cache import LayerCache, slot_positions
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.heads import Head, LazyLogits, Pooling, sentence_embedding
from flaxformer_lite.model.inputs import Inputs, Outputs, check_inputs, default_positions
from flaxformer_lite.model.masks import (
    MaskStructure,
    before_mask,
    causal_mask,
    combine_masks,
    mask_structure,
    padding,
    padding_mask,
    segments,
)
from flaxformer_lite.model.numerics import DTYPES
from flaxformer_lite.model.stack import Stack
from flaxformer_lite.parallel.sharding import constrain_sharding


class Transformer(nn.Module):
    """The encoder–decoder Transformer, or the encoder or decoder alone, with a language-model head and a pooler."""

    config: ModelConfig

    def setup(self) -> None:
        c = self.config

        def embedding(size: int) -> nn.Embed:
            return nn.Embed(size, c.d_model, dtype=DTYPES[c.dtype], embedding_init=c.initializer.embedding(c.d_model))

        if c.vocab_size and c.one_table:
            self.embedding = embedding(c.vocab_size)
        elif c.vocab_size:
            self.source_embedding, self.target_embedding = embedding(c.vocab_size), embedding(c.output_size)
        if c.num_token_types:
            self.token_type_embedding = embedding(c.num_token_types)
        if c.num_encoder_layers:
            self.encoder = Stack(c, c.num_encoder_layers)
        if c.num_decoder_layers:
            self.decoder = Stack(c.for_decoder, c.num_decoder_layers, cross=c.num_encoder_layers > 0, causal=True)
        if c.head is not None:
            self.head = Head(c)
        if c.pooler is not None:
            self.pooler = Pooling(c)

    def __call__(self, inputs: Inputs) -> Outputs:
        """Everything the model can say of the inputs; a decoder scores the token after every target token (teacher forcing)."""
        c = self.config
        check_inputs(c, inputs)
        memory = hidden = pooled = class_logits = embedding = None
        if c.num_encoder_layers:
            memory = last = self.encode(inputs)
        if c.num_decoder_layers:
            hidden = last = self.decode(inputs, memory)
        mask = inputs.target_mask if c.num_decoder_layers else inputs.source_mask
        if c.pooler is not None:
            pooled, class_logits = self.pooler(last, mask, inputs.last_positions)
        if c.sentence_embedding is not None:
            embedding = sentence_embedding(c.sentence_embedding, last, mask)
        if inputs.predict_positions is not None:
            last = jnp.take_along_axis(last, inputs.predict_positions[..., None], axis=1)
        scores = None if c.head is None else self.scores(last)
        logits = None if scores is None else scores.logits()
        chunked = None if scores is None or scores.chunk is None else scores
        return Outputs(logits, hidden, memory, pooled, class_logits, embedding, chunked)

    def encode(self, inputs: Inputs) -> Float[Array, "B S D"]:
        """The memory: the encoder's answer to the source."""
        tokens = inputs.source_tokens
        assert tokens is not None
        x = self.embed(tokens, self.source_table)
        if self.config.num_token_types:
            x = x + self.token_type_embedding(inputs.token_types)
        own = inputs.source_segments
        mask = combine_masks(padding(inputs.source_mask), segments(own, own))
        positions = inputs.source_positions
        if positions is None:
            positions = default_positions(tokens, self.config.position_padding_id)
        structure = mask_structure(mask, inputs.source_mask, own, own)
        return self.encoder(x, positions, LayerContext(mask=mask, structure=structure, bias=inputs.source_bias))[0]

    def decode(self, inputs: Inputs, memory: Float[Array, "B S D"] | None) -> Float[Array, "B T D"]:
        """The decoder's answer to all target tokens at once."""
        tokens = inputs.target_tokens
        assert tokens is not None
        own = inputs.target_segments

        def mask(window: int | None) -> Bool[Array, "#B 1 T T"] | None:
            allowed = causal_mask(tokens.shape[1], window) if (given := inputs.target_attention) is None else given
            return combine_masks(allowed, padding(inputs.target_mask), segments(own, own))

        def structure(window: int | None) -> MaskStructure | None:
            if inputs.target_attention is not None:
                return None
            return mask_structure(mask(window), inputs.target_mask, own, own, causal=True, window=window)

        memory_mask = combine_masks(padding(inputs.source_mask), segments(own, inputs.source_segments))
        context = LayerContext(
            **self.masks("mask", mask),
            **self.masks("structure", structure),
            memory=memory,
            memory_mask=memory_mask,
            memory_structure=mask_structure(memory_mask, inputs.source_mask, own, inputs.source_segments),
        )
        positions = default_positions(tokens) if inputs.target_positions is None else inputs.target_positions
        return self.decoder(self.embed(tokens, self.target_table), positions, context)[0]

    def masks(self, name: str, make: Callable[[int | None], Any]) -> dict[str, Any]:
        """A context's `mask` or `structure`, as `make` has it for a window: where only some layers have one, two."""
        window = self.config.sliding_window
        if window is None or window.layers is None:
            return {name: make(None if window is None else window.size)}
        return {name: make(None), f"local_{name}": make(window.size)}

    def start_cache(self, memory: Float[Array, "B S D"] | None, room: int, batch: int = 1) -> LayerCache:
        """An empty decode cache for up to `room` target tokens; without a memory, for `batch` rows."""
        return self.decoder.start_cache(memory, self.cache_room(room), batch if memory is None else len(memory))

    def cache_room(self, length: int) -> int:
        """How many keys the cache has room for while so many tokens are read: where all layers have a window, no more than that."""
        window = self.config.sliding_window
        return length if window is None or window.layers is not None else min(length, window.size)

    def decode_step(
        self,
        tokens: Int[Array, "B T"],
        index: Int[Array, ""],
        cache: LayerCache,
        source_mask: Bool[Array, "B S"] | None = None,
        padded: Int[Array, "B"] | None = None,
        *,
        causal: bool = True,
    ) -> tuple[Float[Array, "B T V"], LayerCache]:
        """Scores of what follows each of `tokens`, and the cache with these in it, from place `index` on.

        `padded` says how many places at the start of each row are padding: positions then count from there. The key of place p is
        at p modulo the room, so that a cache that is as wide as the window keeps the window.

        causal: each of `tokens` attends to itself and to what came before. False: each attends to all of them, as a prompt does
        that a prefix language model reads.

        Raises: ValueError where `causal` is False and the model has a window, which both say what a token attends to.
        """
        window = self.config.sliding_window
        if not causal and window is not None:
            raise ValueError(
                f"objective.prompt_attention is 'full', but model.sliding_window.size is {window.size}: set model.sliding_window "
                "to None, or choose an objective whose prompts are causal"
            )
        count, room = tokens.shape[1], cache.own.key.shape[2]
        first = jnp.zeros((1, 1), jnp.int32) if padded is None else padded[:, None]
        places, slots = index + jnp.arange(count), None
        keys = slot_positions(index + count - 1, room)
        if count > 1 and room == self.cache_room(room + 1):  # it keeps a window
            keys = jnp.concatenate([slot_positions(index - 1, room), places])
            slots = places[-room:] % room
        started = padding_mask(keys >= first)
        last_seen = places if causal else jnp.full_like(places, index + count - 1)
        context = LayerContext(
            **self.masks("mask", lambda window: combine_masks(before_mask(last_seen, keys, window), started)),
            memory_mask=padding(source_mask),
            key_positions=keys - first,
            index=index % room,
            slots=slots,
        )
        positions = jnp.maximum(places - first, 0)
        hidden, filled = self.decoder(self.embed(tokens, self.target_table), positions, context, cache)
        assert filled is not None
        return self.logits(hidden), filled

    @property
    def source_table(self) -> nn.Embed | None:
        c = self.config
        return None if c.vocab_size == 0 else self.embedding if c.one_table else self.source_embedding

    @property
    def target_table(self) -> nn.Embed | None:
        c = self.config
        return None if c.vocab_size == 0 else self.embedding if c.one_table else self.target_embedding

    def embed(self, tokens: Int[Array, "B T"] | Float[Array, "B T D"], table: nn.Embed | None) -> Float[Array, "B T D"]:
        if table is None:
            x = tokens.astype(DTYPES[self.config.dtype])
        else:
            # As `table(tokens)`, but what another axis than the vocabulary's cuts is gathered before tokens are looked up.
            x = jnp.take(constrain_sharding(table.embedding, "V D").astype(DTYPES[self.config.dtype]), tokens, axis=0)
        return x * jnp.asarray(self.config.d_model**0.5, x.dtype) if self.config.scale_embeddings else x

    def logits(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        return self.scores(hidden).logits()

    def scores(self, hidden: Float[Array, "B T D"]) -> LazyLogits:
        table = self.target_table if self.config.share_target_output else None
        return self.head(hidden, None if table is None else table.embedding)
