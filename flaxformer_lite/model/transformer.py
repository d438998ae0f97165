"""The Transformer: embeddings below, stacks in the middle, heads on top. The alphabet is in `layers.py`.

One page reads as the paper does; `blocks.py` holds a layer, `model_config.py` the settings. With both stacks it is the
encoder–decoder; with one of them the encoder or the decoder alone.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.model.blocks import Context, LayerCache, Stack
from flaxformer_lite.model.config import ModelConfig, SentenceEmbedding
from flaxformer_lite.model.masks import (
    MaskStructure,
    before_mask,
    causal_mask,
    combine_masks,
    mask_structure,
    padding_mask,
    segment_mask,
)
from flaxformer_lite.model.norms import ACTIVATIONS, DTYPES, Normalize, accumulation_dtype
from flaxformer_lite.objectives.losses import Scores
from flaxformer_lite.parallel.sharding import place


class Inputs(NamedTuple):
    """What goes into the model: token ids, and which of them are tokens (True) rather than padding. No mask: all are.

    Sources are for the encoder, targets for the decoder. A model without embeddings (`vocab_size` 0) takes vectors `[B, S, D]`
    in place of token ids.
    """

    source_tokens: Int[Array, "B S"] | Float[Array, "B S D"] | None = None
    target_tokens: Int[Array, "B T"] | Float[Array, "B T D"] | None = None
    source_mask: Bool[Array, "B S"] | None = None
    target_mask: Bool[Array, "B T"] | None = None
    token_types: Int[Array, "B S"] | None = None
    """Of which kind each source token is, where `num_token_types` is not 0."""
    source_bias: Float[Array, "#B #N #S #S"] | None = None
    """Added to the scores of the encoder's self-attention."""
    target_attention: Bool[Array, "#B 1 #T #T"] | None = None
    """Which target position may attend to which; None: each to itself and to what came before."""
    predict_positions: Int[Array, "B P"] | None = None
    """The positions whose tokens the head scores, in a model without a decoder; None: all."""
    source_positions: Int[Array, "#B S"] | None = None
    """Where each source token stands; None: 0, 1, 2, … Packed texts each start at 0."""
    target_positions: Int[Array, "#B T"] | None = None
    """The same for target tokens."""
    source_segments: Int[Array, "B S"] | None = None
    """Which of several packed texts each source token belongs to, from 1; 0 is padding. Texts do not see each other."""
    target_segments: Int[Array, "B T"] | None = None
    """The same for target tokens; a target sees the source of its own number."""
    last_positions: Int[Array, "B"] | None = None
    """Where each text's last token is, for a pooler that reads it; None: the mask shows it."""


class Outputs(NamedTuple):
    """What comes out: what the model has no part for is None."""

    logits: Float[Array, "B T V"] | None = None
    """Scores of the vocabulary: of the next token in a decoder, of the token itself in an encoder (T is then S or P)."""
    hidden: Float[Array, "B T D"] | None = None
    """The decoder's last layer."""
    memory: Float[Array, "B S D"] | None = None
    """The encoder's last layer."""
    pooled: Float[Array, "B D"] | None = None
    """One vector for each text, by `model.pooler`."""
    class_logits: Float[Array, "B C"] | None = None
    """Scores of the classes."""
    embedding: Float[Array, "B D"] | None = None
    """One vector for each text, by `model.sentence_embedding`."""
    scores: Scores | None = None
    """What the logits are made of, where `model.head.loss_chunk` wants them made piece by piece."""

    @property
    def scored(self) -> Float[Array, "B T V"] | Scores:
        """What losses read. Where it is `scores`, nobody reads the logits, and the compiler never makes them."""
        assert self.logits is not None
        return self.logits if self.scores is None else self.scores


class Head(nn.Module):
    """The language-model head; `kernel` `[D, V]` where it is not the embedding table, `bias` `[V]` where it has one."""

    config: ModelConfig

    @nn.compact
    def __call__(self, hidden: Float[Array, "B T D"], table: Float[Array, "V D"] | None) -> Scores:
        c, settings = self.config, self.config.head
        assert settings is not None
        dtype, kernel_init, vocab_size = DTYPES[c.dtype], c.initializer.kernel(), c.output_size
        if settings.transform is not None:
            h = nn.Dense(c.d_model, dtype=dtype, kernel_init=kernel_init, name="transform")(hidden)
            hidden = Normalize(c.norm, name="norm")(ACTIVATIONS[settings.transform][0](h))
        kernel = self.param("kernel", kernel_init, (c.d_model, vocab_size), jnp.float32) if table is None else table.T
        hidden = hidden if settings.scale == 1 else hidden * jnp.asarray(settings.scale, dtype)
        bias = self.param("bias", nn.initializers.zeros, (vocab_size,), jnp.float32) if settings.bias else None
        return Scores(hidden=hidden, kernel=kernel, bias=bias, soft_cap=settings.soft_cap, chunk=settings.loss_chunk)


class Pooling(nn.Module):
    """Holds the parameters of a pooler, and of the classes scored from what it pools: `dense` and `classes`."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "B T D"], mask: Bool[Array, "B T"] | None, last: Int[Array, "B"] | None = None
    ) -> tuple[Float[Array, "B D"], Float[Array, "B C"] | None]:
        c, settings = self.config, self.config.pooler
        assert settings is not None

        def dense(width: int, name: str, bias: bool = True) -> nn.Dense:
            kernel_init = c.initializer.kernel()
            return nn.Dense(width, use_bias=bias, dtype=DTYPES[c.dtype], kernel_init=kernel_init, name=name)

        pooled = hidden[:, 0] if settings.token == "first" else last_token(hidden, mask, last)
        if settings.activation is not None:
            pooled = ACTIVATIONS[settings.activation][0](dense(c.d_model, "dense")(pooled))
        classes = settings.num_classes
        return pooled, dense(classes, "classes", settings.class_bias)(pooled) if classes else None


def last_token(
    hidden: Float[Array, "B T D"], mask: Bool[Array, "B T"] | None, last: Int[Array, "B"] | None = None
) -> Float[Array, "B D"]:
    """The last token of each text: at `last`, or else the last that is not padding."""
    if last is None:
        if mask is None:
            return hidden[:, -1]
        last = jnp.where(mask, jnp.arange(hidden.shape[1]), 0).max(1)
    return jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]


def sentence_embedding(
    settings: SentenceEmbedding, hidden: Float[Array, "B T D"], mask: Bool[Array, "B T"] | None
) -> Float[Array, "B D"]:
    """One vector for each text, in at least float32."""
    x = hidden.astype(accumulation_dtype(hidden))
    shown = jnp.ones(x.shape[:2], bool) if mask is None else mask
    if settings.pooling == "mean":
        vector = jnp.where(shown[..., None], x, 0).sum(1) / jnp.maximum(shown.sum(1), 1)[:, None]
    elif settings.pooling == "max":
        vector = jnp.where(shown[..., None], x, -jnp.inf).max(1)
    else:
        vector = x[:, 0] if settings.pooling == "cls" else last_token(x, mask)
    return unit_length(vector) if settings.normalize else vector


def unit_length(x: Float[Array, "B D"]) -> Float[Array, "B D"]:
    """Each vector divided by its length; the gradient at 0 is 0."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.square(x).sum(-1, keepdims=True), 1e-24))


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
            positions = default_positions(tokens, self.config.uncounted_id)
        structure = mask_structure(mask, inputs.source_mask, own, own)
        return self.encoder(x, positions, Context(mask=mask, structure=structure, bias=inputs.source_bias))[0]

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
        context = Context(
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
        window = self.config.attention_window
        if self.config.window_layers is None:
            return {name: make(window)}
        return {name: make(None), f"local_{name}": make(window)}

    def start_cache(self, memory: Float[Array, "B S D"] | None, room: int, batch: int = 1) -> LayerCache:
        """An empty decode cache for up to `room` target tokens; without a memory, for `batch` rows."""
        return self.decoder.start_cache(memory, self.cache_room(room), batch if memory is None else len(memory))

    def cache_room(self, length: int) -> int:
        """How many keys the cache has room for while so many tokens are read: where all layers have a window, no more than that."""
        window = self.config.attention_window
        return length if window is None or self.config.window_layers is not None else min(length, window)

    def decode_step(
        self,
        tokens: Int[Array, "B T"],
        index: Int[Array, ""],
        cache: LayerCache,
        source_mask: Bool[Array, "B S"] | None = None,
        padded: Int[Array, "B"] | None = None,
    ) -> tuple[Float[Array, "B T V"], LayerCache]:
        """Scores of what follows each of `tokens`, and the cache with these in it, from place `index` on.

        `padded` says how many places at the start of each row are padding: positions then count from there. The key of place p is
        at p modulo the room, so that a cache that is as wide as the window keeps the window.
        """
        count, room = tokens.shape[1], cache.own.key.shape[2]
        first = jnp.zeros((1, 1), jnp.int32) if padded is None else padded[:, None]
        places, slots = index + jnp.arange(count), None
        keys = latest_places(index + count - 1, room)
        if count > 1 and room == self.cache_room(room + 1):  # it keeps a window
            keys = jnp.concatenate([latest_places(index - 1, room), places])
            slots = places[-room:] % room
        started = padding_mask(keys >= first)
        context = Context(
            **self.masks("mask", lambda window: combine_masks(before_mask(places, keys, window), started)),
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
            x = jnp.take(place(table.embedding, "V D").astype(DTYPES[self.config.dtype]), tokens, axis=0)
        return x * jnp.asarray(self.config.d_model**0.5, x.dtype) if self.config.scale_embeddings else x

    def logits(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        return self.scores(hidden).logits()

    def scores(self, hidden: Float[Array, "B T D"]) -> Scores:
        table = self.target_table if self.config.share_target_output else None
        return self.head(hidden, None if table is None else table.embedding)


def check_inputs(config: ModelConfig, inputs: Inputs) -> None:
    """Raises: ValueError where the inputs are not what the model reads."""
    for side, num_layers in (("source", config.num_encoder_layers), ("target", config.num_decoder_layers)):
        tokens = getattr(inputs, f"{side}_tokens")
        if num_layers == 0:
            continue
        if tokens is None:
            raise ValueError(f"the inputs have no {side}_tokens, which this model reads: give them")
        if config.vocab_size and tokens.ndim != 2:
            raise ValueError(
                f"{side}_tokens have rank {tokens.ndim}, shape {tokens.shape}: give token ids [batch, length]"
            )
        if config.vocab_size == 0 and (tokens.ndim != 3 or tokens.shape[-1] != config.d_model):
            raise ValueError(
                f"{side}_tokens have shape {tokens.shape}, and model.vocab_size is 0: give vectors of width model.d_model, "
                f"[batch, length, {config.d_model}]"
            )
    both = config.num_encoder_layers and config.num_decoder_layers
    if both and (inputs.source_segments is None) != (inputs.target_segments is None):
        given, lacking = ("source", "target") if inputs.target_segments is None else ("target", "source")
        raise ValueError(
            f"the inputs have {given}_segments, but no {lacking}_segments to tell which belongs to which: give both"
        )
    if inputs.token_types is not None and not config.num_token_types:
        raise ValueError("the inputs have `token_types`, but model.num_token_types is 0: leave them out")
    if inputs.predict_positions is not None and config.num_decoder_layers:
        raise ValueError(
            "the inputs have `predict_positions`, which only a model without a decoder reads: leave them out"
        )
    if inputs.target_attention is not None and config.attention_window is not None:
        raise ValueError(
            "the inputs have `target_attention`, which says for each position where it may attend to, but so does "
            f"model.attention_window {config.attention_window}: leave one out"
        )
    if config.num_token_types and inputs.token_types is None:
        raise ValueError(
            f"model.num_token_types is {config.num_token_types}, but the inputs have no `token_types`: give one for each "
            "source token, 0 where there is one sentence only"
        )


def example_inputs(config: ModelConfig) -> Inputs:
    """The smallest inputs that the model reads, for making its parameters."""
    tokens = jnp.zeros((1, 1), jnp.int32) if config.vocab_size else jnp.zeros((1, 1, config.d_model))
    return Inputs(
        source_tokens=tokens if config.num_encoder_layers else None,
        target_tokens=tokens if config.num_decoder_layers else None,
        token_types=jnp.zeros((1, 1), jnp.int32) if config.num_token_types else None,
    )


def latest_places(newest: Int[Array, ""], room: int) -> Int[Array, "S"]:
    """Of which place a cache holds the key in each slot, when `newest` is the last that was written; negative: of none."""
    return newest - (newest - jnp.arange(room)) % room


def padding(mask: Bool[Array, "B S"] | None) -> Bool[Array, "B 1 1 S"] | None:
    return None if mask is None else padding_mask(mask)


def segments(queries: Int[Array, "B T"] | None, keys: Int[Array, "B S"] | None) -> Bool[Array, "B 1 T S"] | None:
    return None if queries is None or keys is None else segment_mask(queries, keys)


def default_positions(
    tokens: Int[Array, "B T"] | Float[Array, "B T D"], uncounted_id: int | None = None
) -> Int[Array, "#B T"]:
    """0, 1, 2, … for every row; tokens that do not count are at -1."""
    if uncounted_id is None:
        return jnp.arange(tokens.shape[1])[None]
    counts = tokens != uncounted_id
    return jnp.where(counts, jnp.cumsum(counts, axis=1) - 1, -1)
