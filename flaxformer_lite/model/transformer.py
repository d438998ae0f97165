"""The Transformer: embeddings below, stacks in the middle, heads on top. The alphabet is in `model/__init__.py`.

With both stacks it is the encoder–decoder; with one of them the encoder or the decoder alone. `stack.py` repeats a layer,
`blocks.py` has the layer, `contexts.py` builds the masks, `config.py` has the settings.
"""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import VariableDict
from jaxtyping import Array, Bool, Float, Int, PyTree

from flaxformer_lite.model.cache import DecodeCache
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.contexts import decoder_context, encoder_context, step_context
from flaxformer_lite.model.dense import product_dtype
from flaxformer_lite.model.heads import Head, LazyLogits, Pooling, sentence_embedding
from flaxformer_lite.model.inputs import (
    Inputs,
    Outputs,
    check_inputs,
    default_positions,
    example_inputs,
    for_each_target,
)
from flaxformer_lite.model.kernels import platform
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
        """Returns all outputs that the model has; a decoder scores the token after every target token (teacher forcing).

        With N times as many targets as sources, the targets of a source are side by side; it is encoded once.
        """
        c = self.config
        check_inputs(c, inputs)
        memory = hidden = pooled = class_logits = embedding = None
        if c.num_encoder_layers:
            memory = last = self.encode(inputs)
        if c.num_decoder_layers:
            hidden = last = self.decode(*for_each_target(inputs, memory))
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
        """Returns the memory: the encoder's last layer."""
        tokens = inputs.source_tokens
        assert tokens is not None
        x = self.embed(tokens, self.source_table)
        if self.config.num_token_types:
            x = x + self.token_type_embedding(inputs.token_types)
        positions = inputs.source_positions
        if positions is None:
            positions = default_positions(tokens, self.config.position_padding_id)
        return self.encoder(x, positions, encoder_context(inputs))[0]

    def decode(self, inputs: Inputs, memory: Float[Array, "B S D"] | None) -> Float[Array, "B T D"]:
        """Returns the decoder's last layer for all target tokens at once."""
        tokens = inputs.target_tokens
        assert tokens is not None
        context = decoder_context(self.config, inputs, memory)
        positions = default_positions(tokens) if inputs.target_positions is None else inputs.target_positions
        return self.decoder(self.embed(tokens, self.target_table), positions, context)[0]

    # Embeddings and logits --------------------------------------------------------------------------------------------

    @property
    def source_table(self) -> nn.Embed | None:
        c = self.config
        return None if c.vocab_size == 0 else self.embedding if c.one_table else self.source_embedding

    @property
    def target_table(self) -> nn.Embed | None:
        c = self.config
        return None if c.vocab_size == 0 else self.embedding if c.one_table else self.target_embedding

    def embed(self, tokens: Int[Array, "B T"] | Float[Array, "B T D"], table: nn.Embed | None) -> Float[Array, "B T D"]:
        """Returns the embeddings of tokens; without a table, the vectors that were passed in their place."""
        if table is None:
            x = tokens.astype(DTYPES[self.config.dtype])
        else:
            # As `table(tokens)`, but the table is gathered over every mesh axis except the vocabulary's before the look-up.
            x = jnp.take(constrain_sharding(table.embedding, "V D").astype(DTYPES[self.config.dtype]), tokens, axis=0)
        return x * jnp.asarray(self.config.d_model**0.5, x.dtype) if self.config.scale_embeddings else x

    def logits(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Returns the logits."""
        return self.scores(hidden).logits()

    def scores(self, hidden: Float[Array, "B T D"]) -> LazyLogits:
        table = self.target_table if self.config.share_target_output else None
        return self.head(hidden, None if table is None else table.embedding)

    # Decoding with a cache --------------------------------------------------------------------------------------------

    def start_cache(self, memory: Float[Array, "B S D"] | None, room: int, batch: int = 1) -> DecodeCache:
        """Returns an empty decode cache for up to `room` target tokens; without a memory, for `batch` rows."""
        return self.decoder.start_cache(memory, self.cache_room(room), batch if memory is None else len(memory))

    def cache_room(self, length: int) -> int:
        """Returns the number of slots of a cache for `length` tokens: never more than a sliding window of all layers."""
        window = self.config.cache_window
        return length if window is None else min(length, window)

    def decode_step(
        self,
        tokens: Int[Array, "B T"],
        index: Int[Array, ""],
        cache: DecodeCache,
        source_mask: Bool[Array, "B S"] | None = None,
        padded: Int[Array, "B"] | None = None,
        *,
        causal: bool = True,
    ) -> tuple[Float[Array, "B T V"], DecodeCache]:
        """Returns the logits of the token after each of `tokens`, and the cache with these tokens in it.

        index: column of the first of these tokens in its row. padded: columns of padding at the start of each row; positions
        count from there. None: there is none.
        causal: True: a token attends to itself and to all before it. False: each attends to all of `tokens`, as in the prompt of
        a prefix language model.

        Raises: ValueError where `causal` is False and the model has a sliding window: both say what a token attends to.
        """
        room = cache[0].room
        positions, context = step_context(self.config, index, tokens.shape[1], room, source_mask, padded, causal)
        hidden, filled = self.decoder(self.embed(tokens, self.target_table), positions, context, cache)
        assert filled is not None
        return self.logits(hidden), filled


@functools.lru_cache(maxsize=64)
def parameter_shapes(config: ModelConfig) -> PyTree:
    """Returns shapes and types of the model's parameters; a model is traced once, since that takes most of a small run's load."""
    return jax.eval_shape(lambda: Transformer(config).init(jax.random.key(0), example_inputs(config)))["params"]


def step_variables(model: Transformer, variables: VariableDict) -> VariableDict:
    """Returns the variables in the layouts that the steps of a search read, so that they are moved once, not in each step.

    head    the kernel in the layout of the product, which a tied table is not in, as variable `kernel` of the collection `step`
    layers  a tuple of one array a layer for each parameter of the decoder's layers, on a CPU: it would cut them from the array of
            all layers, and copy them. Elsewhere this was not measured, and the second copy would take the device's memory.
    """
    hidden = jnp.zeros((1, 1, model.config.d_model), DTYPES[model.config.dtype])
    kernel = model.bind(variables).scores(hidden).kernel
    kernel = jax.lax.optimization_barrier(kernel.astype(product_dtype(hidden, kernel)))
    variables = {**variables, "step": {"head": {"kernel": kernel}}}
    if platform() != "cpu":
        return variables
    params = variables["params"]
    layers = jax.tree.map(tuple, params["decoder"]["layers"])
    return {**variables, "params": {**params, "decoder": {**params["decoder"], "layers": layers}}}
