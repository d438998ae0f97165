"""The Transformer: embeddings below, stacks of layers in the middle, heads on top. The alphabet is in `model/__init__.py`.

`Transformer` is the encoder–decoder, encoder-only or decoder-only model. `Stack` repeats a `Block`: self-attention,
cross-attention and feed-forward, with the residual commands around each. A stack reads all tokens at once (`__call__`), or the
next ones with a decode cache (`step`); `contexts.py` builds the masks of both. The heads are in `heads.py`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import VariableDict
from jaxtyping import Array, Bool, Float, Int, PyTree

from flaxformer_lite.core.model import fast
from flaxformer_lite.core.model.attention import Disentangled, MultiHeadAttention, RelativeTable
from flaxformer_lite.core.model.config import ModelConfig
from flaxformer_lite.core.model.contexts import (
    CachedKeyValue,
    DecodeCache,
    LayerCache,
    SequenceContext,
    StepContext,
    decoder_context,
    encoder_context,
    step_context,
)
from flaxformer_lite.core.model.estimation import Estimation, MixedLayers
from flaxformer_lite.core.model.heads import Head, Pooling, TextVector, dense
from flaxformer_lite.core.model.inputs import (
    Inputs,
    LazyLogits,
    Outputs,
    check_inputs,
    default_positions,
    example_inputs,
    for_each_target,
    tokens_of,
)
from flaxformer_lite.core.model.layers import DTYPES, FeedForward, apply_dropout, product_dtype
from flaxformer_lite.core.model.masks import AttentionMask, LayerMasks, combine_masks, own_mask, structured_mask
from flaxformer_lite.core.model.norms import Normalize
from flaxformer_lite.core.model.positions import PositionScheme
from flaxformer_lite.core.parallel.sharding import constrain_sharding


class Transformer(nn.Module):
    """The encoder–decoder, encoder-only or decoder-only Transformer, with a language-model head and a pooler."""

    config: ModelConfig
    vocab_multiple: int = 1
    """The tables of the vocabulary are padded to a multiple of it, so that as many devices can divide them. `logits` are as wide as
    the tables; the outputs of a call have only the logits of the vocabulary."""

    def setup(self) -> None:
        c = self.config

        def embedding(ids: int) -> nn.Embed:
            like = {"dtype": DTYPES[c.dtype], "embedding_init": c.initializer.embedding(c.embedding_width)}
            return nn.Embed(self.padded_ids(ids), c.embedding_width, **like)

        if c.vocab_size and c.one_table:
            self.embedding = embedding(c.vocab_size)
        elif c.vocab_size:
            self.source_embedding = embedding(c.vocab_size)
            self.target_embedding = embedding(c.output_size)
        if c.num_token_types:
            self.token_type_embedding = embedding(c.num_token_types)
        if c.num_encoder_layers:
            self.encoder = Stack(c, c.num_encoder_layers)
        if c.num_decoder_layers:
            self.decoder = Stack(c.for_decoder, c.num_decoder_layers, cross=c.num_encoder_layers > 0, causal=True)
        if c.head is not None:
            self.head = Head(c, c.head, self.padded_ids(c.output_size))
        if c.pooler is not None:
            self.pooler = Pooling(c, c.pooler)
        if c.sentence_embedding is not None:
            self.sentence_embedding = TextVector(c, c.sentence_embedding)
            if c.sentence_embedding.learned_temperature:
                self.log_scale = self.param("log_scale", nn.initializers.zeros, (), jnp.float32)
        if c.estimator is not None:
            self.estimator = Estimation(c.estimator, c.initializer.kernel())

    def __call__(self, inputs: Inputs) -> Outputs:
        """Returns all outputs that the model has; a decoder scores the token after every target token (teacher forcing).

        With N times as many targets as sources, the targets of a source are side by side; it is encoded once.
        """
        c = self.config
        check_inputs(c, inputs)
        memory = hidden = pooled = class_logits = embedding = logits = chunked = None
        if c.num_encoder_layers:
            memory = last = self.encode(inputs)
        if c.num_decoder_layers:
            hidden = last = self.decode(*for_each_target(inputs, memory))
        mask = inputs.target_mask if c.num_decoder_layers else inputs.source_mask
        if c.pooler is not None:
            pooled, class_logits = self.pooler(last, mask, inputs.last_positions)
        if c.sentence_embedding is not None:
            embedding = self.sentence_embedding(last, mask)
            if c.estimator is not None and self.is_initializing():
                self.estimator(embedding, embedding, embedding)  # no other call of the model reads it
        if inputs.predict_positions is not None:
            last = jnp.take_along_axis(last, inputs.predict_positions[..., None], axis=1)
        if c.head is not None:
            scores = self.scores(last).within(c.output_size)
            logits = scores.logits()
            if scores.chunk is not None:
                chunked = scores
        log_scale = getattr(self, "log_scale", None)
        return Outputs(logits, hidden, memory, pooled, class_logits, embedding, chunked, log_scale)

    def encode(self, inputs: Inputs) -> Float[Array, "B S D"]:
        """Returns the memory: the encoder's last layer."""
        tokens = tokens_of(inputs, "source")
        x = self.embed(tokens, self.source_table)
        if inputs.token_types is not None:
            x = x + self.looked_up(self.token_type_embedding.embedding, inputs.token_types)
        return self.encoder(x, encoder_context(self.config, inputs, tokens), inputs.source_mask)

    def decode(self, inputs: Inputs, memory: Float[Array, "B S D"] | None) -> Float[Array, "B T D"]:
        """Returns the decoder's last layer for all target tokens at once."""
        tokens = tokens_of(inputs, "target")
        context = decoder_context(self.config, inputs, tokens, memory)
        return self.decoder(self.embed(tokens, self.target_table), context)

    # Embeddings and logits --------------------------------------------------------------------------------------------

    def padded_ids(self, number: int) -> int:
        """Returns the number of ids, rounded up to a multiple of `vocab_multiple`."""
        return -(-number // self.vocab_multiple) * self.vocab_multiple

    @property
    def source_table(self) -> nn.Embed | None:
        c = self.config
        if c.vocab_size == 0:
            return None
        return self.embedding if c.one_table else self.source_embedding

    @property
    def target_table(self) -> nn.Embed | None:
        c = self.config
        if c.vocab_size == 0:
            return None
        return self.embedding if c.one_table else self.target_embedding

    def embed(self, tokens: Int[Array, "B T"] | Float[Array, "B T D"], table: nn.Embed | None) -> Float[Array, "B T D"]:
        """Returns the embeddings of tokens; without a table, the vectors that were passed in their place."""
        if table is None:
            x = tokens.astype(DTYPES[self.config.dtype])
        else:
            # The table is gathered over every mesh axis except the vocabulary's before the look-up.
            x = self.looked_up(constrain_sharding(table.embedding, "V D"), tokens)
            padding_id = self.config.padding_id
            if padding_id is not None:
                is_padding = (tokens == padding_id)[..., None]
                x = jnp.where(is_padding, jax.lax.stop_gradient(x), x)
        factor = self.config.embedding_factor
        return x if factor == 1 else x * jnp.asarray(factor, x.dtype)

    def looked_up(self, table: Float[Array, "V D"], ids: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Returns the rows of these ids. They are rounded after the look-up: gradients of frequent ids are sums in float32."""
        return jnp.take(table, ids, axis=0).astype(DTYPES[self.config.dtype])

    def logits(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
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
        count from there. None: no row has padding.
        causal: True: a token attends to itself and to all before it. False: each attends to all of `tokens`, as in the prompt of
        a prefix language model.

        Raises: ValueError where `causal` is False and the model has a sliding window: both say what a token attends to.
        """
        context = step_context(self.config, index, tokens.shape[1], cache[0].room, source_mask, padded, causal)
        hidden, filled = self.decoder.step(self.embed(tokens, self.target_table), cache, context)
        return self.logits(hidden), filled


@functools.lru_cache(maxsize=64)
def parameter_shapes(config: ModelConfig) -> PyTree:
    """Returns shapes and types of the model's parameters; a model is traced once, since that takes most of a small run's load."""
    return jax.eval_shape(lambda: Transformer(config).init(jax.random.key(0), example_inputs(config)))["params"]


def step_copies(model: Transformer, variables: VariableDict, num_ids: int | None = None) -> dict[str, object]:
    """Returns copies of variables in the layouts that the steps of a search read, for `fast.with_layout`.

    With `num_ids` the head scores only the first `num_ids` ids: no other id takes part in a softmax.
    """
    hidden = jnp.zeros((1, 1, model.config.output_width), DTYPES[model.config.dtype])
    kernel = model.bind(variables).scores(hidden).kernel
    dtype = product_dtype(hidden, kernel)
    if num_ids is None and kernel.dtype == dtype and not model.config.share_target_output:
        return fast.step_layout(variables["params"], None)
    used = None if num_ids is None else model.padded_ids(num_ids)
    return fast.step_layout(variables["params"], kernel[:, :used].astype(dtype))


# Stacks -----------------------------------------------------------------------------------------------------------------


class Stack(nn.Module):
    """Positions, dropout, the layers, and the last residual commands. All layers are one set of parameters, `[L, …]`.

    With `share_layers` they are `[1, …]`: one layer that is used L times.
    """

    config: ModelConfig
    num_layers: int
    cross: bool = False
    causal: bool = False

    def setup(self) -> None:
        self.positions = PositionEmbedding(self.config.positions)
        self.position_bias = PositionBias(self.config.positions, self.config.num_heads, self.causal)
        # A loop that draws the first parameters compiles in half the time, and draws the same ones.
        unroll = 1 if self.is_initializing() else min(self.config.scan_unroll, self.num_layers)
        block = remat_block(self.config.remat, in_loop=unroll < self.num_layers)
        methods = ["__call__", "memory_key_value"]
        shared = self.config.share_layers
        layers = nn.scan(
            block,
            variable_axes={"intermediates": 0} if shared else {"params": 0, "intermediates": 0},
            variable_broadcast="params" if shared else False,
            split_rngs={"params": not shared, "dropout": True},
            in_axes=(0, nn.broadcast),
            length=self.num_layers,
            unroll=unroll,
            methods=methods,
        )
        if shared:  # their parameters are `[1, …]`, and each round of the loop reads them
            is_new = self.is_initializing()
            layers = nn.map_variables(layers, "params", only_layer, in_a_stack, init=is_new, methods=methods)
        self.layers = layers(self.config, self.cross, self.causal)
        c = self.config
        if isinstance(c.attention, Disentangled):
            init = c.initializer.embedding(c.d_model)
            self.relative_positions = RelativeTable(c.attention, c.d_model, init, DTYPES[c.dtype])
        self.embedding_norm = Normalize(self.config.norm)
        self.final_norm = Normalize(self.config.norm)
        projection = self.config.embedding_projection
        if projection is not None:
            self.embedding_projection = dense(self.config, self.config.d_model, None, projection.of == "sum")
            if projection.of == "tokens":
                self.output_projection = dense(self.config, projection.width, None, False)
        if self.config.layer_mix is not None and not self.causal:
            self.layer_mix = MixedLayers(self.config.layer_mix)

    def __call__(
        self, x: Float[Array, "B T E"], context: SequenceContext, mask: Bool[Array, "B T"] | None = None
    ) -> Float[Array, "B T O"]:
        """Returns the last layer for all tokens at once, or the mix of all; `mask` is True at tokens."""
        embedded, bias = self.with_positions(x, context.positions, None, context.bias)
        table = self.relative_positions() if isinstance(self.config.attention, Disentangled) else None
        x, outputs = self.layers(embedded, self.kinds, context._replace(bias=bias, table=table))
        if outputs is not None:
            x = self.layer_mix(jnp.concatenate([embedded[None], outputs]), mask)
        return self.final(x)

    def step(
        self, x: Float[Array, "B T E"], cache: DecodeCache, context: StepContext
    ) -> tuple[Float[Array, "B T O"], DecodeCache]:
        """Returns the last layer for the next tokens, and the cache with them in it; no loop over the layers.

        A loop would copy each layer's cache from the array of all.
        """
        x, bias = self.with_positions(x, context.positions, context.key_positions, context.bias)
        context = context._replace(bias=bias)
        kinds = self.kinds
        block = Block(self.config, self.cross, self.causal, parent=None)
        filled = []
        layers = self.layers.variables["params"]
        for i, layer in enumerate(cache):
            number = 0 if self.config.share_layers else i
            params = jax.tree.map(lambda x, i=number: x[i], layers, is_leaf=lambda x: isinstance(x, tuple))
            kind = jax.tree.map(lambda x, i=i: x[i], kinds)
            answer: Any = block.apply({"params": params}, x, layer, kind, context, method="step")
            x, key_value = answer
            filled.append(layer._replace(own=key_value))
        return self.final(x), tuple(filled)

    def with_positions(
        self,
        x: Float[Array, "B T E"],
        positions: Int[Array, "#B T"],
        key_positions: Int[Array, "#B S"] | None,
        bias: Float[Array, "..."] | None,
    ) -> tuple[Float[Array, "B T D"], Float[Array, "..."] | None]:
        """Returns the first layer's input, and the addend of all scores: that of the positions, and the given one.

        key_positions: None: those of the queries. A token that takes up no position still has a distance from the others.
        """
        projects = None if self.config.embedding_projection is None else self.config.embedding_projection.of
        if projects == "tokens":
            x = self.embedding_projection(x)
        x = constrain_sharding(self.positions(x, positions), "B T D")
        if key_positions is None:
            if self.config.position_padding_id is not None:
                positions = default_positions(x)
            key_positions = positions
        bias = self.position_bias.added_to(bias, positions, key_positions, per_layer=False)
        if self.config.embedding_norm:
            x = self.embedding_norm(x)
        self.sow("intermediates", "embedded", x)
        x = apply_dropout(self, x, self.config.dropout.embedding_rate)
        if projects == "sum":
            x = self.embedding_projection(x)
        return x, bias

    def final(self, x: Float[Array, "B T D"]) -> Float[Array, "B T O"]:
        """Returns the last layer after the commands of `residual.final`, with the width of the model's output."""
        x = residual_commands(self, self.config.residual.final, x, self.final_norm)
        return x if self.config.output_width == self.config.d_model else self.output_projection(x)

    @property
    def kinds(self) -> "LayerKind":
        """The kinds of all layers."""
        c = self.config
        layers = range(self.num_layers)
        is_local = is_first = is_rotated = None
        window = c.window_of(causal=self.causal)
        if window is not None and window.layers is not None:
            is_local = jnp.asarray([i in window.layers for i in layers])
        if c.residual.first is not None:
            is_first = jnp.asarray([i == 0 for i in layers])
        rotated = c.positions.layers
        if rotated is not None:
            is_rotated = jnp.asarray([i in rotated for i in layers])
        return LayerKind(is_local, is_first, is_rotated)

    def start_cache(self, memory: Float[Array, "B S D"] | None, room: int, batch: int) -> DecodeCache:
        """Returns a cache with the keys and values of the memory, and with `room` empty slots (zeros) for the decoder's own."""
        c = self.config
        heads = c.attention.heads(c.d_model, c.num_heads)
        sizes = (heads.d_key, heads.d_value)
        shapes = [(batch, heads.num_kv_heads, room, h) for h in sizes]
        empty = by_heads(CachedKeyValue(*(jnp.zeros(shape, DTYPES[c.dtype]) for shape in shapes)))
        if memory is None:
            return (LayerCache(own=empty, memory=None),) * self.num_layers
        _, memory_kv = self.layers.memory_key_value(None, None, memory)
        memories = (jax.tree.map(lambda x, i=i: x[i], memory_kv) for i in range(self.num_layers))
        return tuple(LayerCache(own=empty, memory=by_heads(memory)) for memory in memories)


def only_layer(params: PyTree) -> PyTree:
    """Returns the parameters of the one layer of a stack."""
    return jax.tree.map(lambda x: x[0], params)


def in_a_stack(params: PyTree) -> PyTree:
    """Returns the parameters of a layer as those of a stack of one."""
    return jax.tree.map(lambda x: x[None], params)


def by_heads(cached: CachedKeyValue) -> CachedKeyValue:
    """Returns keys and values of a cache, their heads divided over the mesh as those of the layers are."""
    return CachedKeyValue(*(constrain_sharding(x, "B K S H") for x in cached))


class PositionEmbedding(nn.Module):
    """Module for the `embed` hook of a position scheme; holds its parameters."""

    scheme: PositionScheme

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], positions: Int[Array, "#B T"] | None = None) -> Float[Array, "B T D"]:
        if positions is None:
            positions = default_positions(x)
        return self.scheme.embed(x, positions, self.param)


class PositionBias(nn.Module):
    """Module for the `bias` hook of a position scheme; holds its parameters."""

    scheme: PositionScheme
    num_heads: int
    causal: bool

    @nn.compact
    def __call__(self, queries: Int[Array, "#B T"], keys: Int[Array, "#B S"]) -> Float[Array, "#B N T S"] | None:
        return self.scheme.bias(queries, keys, self.num_heads, self.causal, self.param)

    def added_to(
        self,
        bias: Float[Array, "..."] | None,
        queries: Int[Array, "#B T"],
        keys: Int[Array, "#B S"],
        *,
        per_layer: bool,
    ) -> Float[Array, "..."] | None:
        """Returns the sum of `bias` and the scheme's own addend, if the scheme has one there: in each layer, or once a stack."""
        if self.scheme.per_layer != per_layer:
            return bias
        added = self(queries, keys)
        if added is None:
            return bias
        return added if bias is None else bias + added


# Layers -----------------------------------------------------------------------------------------------------------------


class LayerKind(NamedTuple):
    """The kind of a layer, where not all are alike; one value for each layer in a loop over them."""

    is_local: Bool[Array, "*L"] | None = None
    """Whether the layer has the sliding window, where only some layers have one; None: all layers are alike."""
    is_first: Bool[Array, "*L"] | None = None
    """Whether it is the first layer, where that has commands of its own; None: it has none."""
    is_rotated: Bool[Array, "*L"] | None = None
    """Whether its queries and keys rotate by `model.positions`, where only some layers do; None: all layers are alike."""


class Block(nn.Module):
    """One layer: self-attention, with `cross` also cross-attention to the memory, then feed-forward.

    A module of `setup` that is never called, such as a norm that no command names, has no parameters.
    """

    config: ModelConfig
    cross: bool = False
    causal: bool = False

    def setup(self) -> None:
        c = self.config
        self.position_bias = PositionBias(c.positions, c.num_heads, self.causal)
        like: dict[str, Any] = {"dtype": DTYPES[c.dtype], "kernel_init": c.initializer.kernel()}
        like |= {"lora": c.lora, "matmul_dtype": c.matmul_dtype}

        def attention() -> MultiHeadAttention:
            return MultiHeadAttention(c.d_model, c.num_heads, c.attention, c.dropout.attention_rate, **like)

        self.attention_pre_norm = Normalize(c.norm)
        self.attention = attention()
        self.attention_post_norm = Normalize(c.norm)
        if self.cross:
            self.cross_attention_pre_norm = Normalize(c.norm)
            self.cross_attention = attention()
            self.cross_attention_post_norm = Normalize(c.norm)
        self.feed_forward_pre_norm = Normalize(c.norm)
        rate = c.dropout.feed_forward_rate
        self.feed_forward = FeedForward(
            c.d_model, c.d_ff, c.activation, c.feed_forward_bias, rate, out_bias=c.feed_forward_out_bias, **like
        )
        self.feed_forward_post_norm = Normalize(c.norm)

    def __call__(
        self, x: Float[Array, "B T D"], kind: LayerKind, context: SequenceContext
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T D"] | None]:
        """Returns the layer's output for all tokens at once, and the same for the mix of an encoder's layers, if it has one."""
        rotate = functools.partial(self.rotate, kind=kind, positions=context.positions)
        mask = context.masks.of_layer(kind.is_local)
        bias = self.position_bias.added_to(context.bias, context.positions, context.positions, per_layer=True)
        table = context.table
        if table is not None:
            table = apply_dropout(self, table, self.config.dropout.embedding_rate)

        start = x
        first = self.before_first(self.attention_pre_norm, x, kind.is_first)
        key_value = self.attention.key_value(first, rotate=rotate)
        h = self.attention.attend(first, key_value, mask=mask, bias=bias, rotate=rotate, table=table)
        x = self.after(self.attention_post_norm, h, x)
        if context.memory is not None:
            h = self.before_later(self.cross_attention_pre_norm, x, start, first)
            memory = self.cross_attention.key_value(context.memory)
            h = self.cross_attention.attend(h, memory, mask=context.memory_mask)
            x = self.after(self.cross_attention_post_norm, h, x)
        h = self.feed_forward(self.before_later(self.feed_forward_pre_norm, x, start, first))
        x = self.after(self.feed_forward_post_norm, h, x)
        self.sow("intermediates", "output", x)
        is_mixed = self.config.layer_mix is not None and not self.causal
        return x, x if is_mixed else None

    def step(
        self, x: Float[Array, "B T D"], cache: LayerCache, kind: LayerKind, context: StepContext
    ) -> tuple[Float[Array, "B T D"], CachedKeyValue]:
        """Returns the layer's output for the next tokens, and its keys and values, the new ones among them."""
        rotate = functools.partial(self.rotate, kind=kind, positions=context.positions)
        mask = context.masks.of_layer(kind.is_local)
        bias = self.position_bias.added_to(context.bias, context.positions, context.key_positions, per_layer=True)

        start = x
        first = self.before_first(self.attention_pre_norm, x, kind.is_first)
        added = self.attention.key_value(first, rotate=rotate)
        key_value, filled = cache.own.read_and_write(added, context)
        h = self.attention.attend(first, key_value, mask=mask, bias=bias, rotate=rotate, cached=True)
        x = self.after(self.attention_post_norm, h, x)
        if cache.memory is not None:
            h = self.before_later(self.cross_attention_pre_norm, x, start, first)
            memory = cache.memory.by_slot()
            h = self.cross_attention.attend(h, memory, mask=context.memory_mask, cached=True)
            x = self.after(self.cross_attention_post_norm, h, x)
        h = self.feed_forward(self.before_later(self.feed_forward_pre_norm, x, start, first))
        return self.after(self.feed_forward_post_norm, h, x), filled

    def memory_key_value(self, carry: None, kind: None, memory: Float[Array, "B S D"]) -> tuple[None, CachedKeyValue]:
        """Returns keys and values of the memory, once a sentence in decoding. The signature is that of `__call__`, for the scan."""
        return carry, CachedKeyValue.of(self.cross_attention.key_value(memory))

    def rotate(
        self, heads: Float[Array, "B T N H"], kind: LayerKind, positions: Int[Array, "#B T"]
    ) -> Float[Array, "B T N H"]:
        """Returns the heads of queries or keys, rotated by their positions with the scheme of this layer."""
        rotated = self.config.positions.rotate(heads, positions)
        if kind.is_rotated is not None:
            rotated = jnp.where(kind.is_rotated, rotated, heads)
        window = self.config.sliding_window
        if kind.is_local is None or window is None or window.positions is None:
            return rotated
        return jnp.where(kind.is_local, window.positions.rotate(heads, positions), rotated)

    def before(self, norm: Normalize, x: Array) -> Array:
        """Returns a sublayer's input: the commands of `residual.pre`."""
        return residual_commands(self, self.config.residual.pre, x, norm)

    def before_first(self, norm: Normalize, x: Array, is_first: Bool[Array, ""] | None) -> Array:
        """Returns the first sublayer's input: in the first layer the commands of `residual.first`, if it has such."""
        usual = self.before(norm, x)
        commands = self.config.residual.first
        if is_first is None or commands is None:
            return usual
        first = residual_commands(self, commands, x, norm)
        return jnp.where(is_first, first, usual)

    def before_later(self, norm: Normalize, x: Array, start: Array, first: Array) -> Array:
        """Returns a later sublayer's input, as `residual.branches` says.

        x: the sum before the sublayer. start: the layer's input. first: the first sublayer's input.
        """
        branches = self.config.residual.branches
        if branches == "parallel_one_norm":
            return first
        return self.before(norm, x if branches == "sequential" else start)

    def after(self, norm: Normalize, h: Array, residual: Array) -> Array:
        """Returns the layer's activations after a sublayer with output `h`: the commands of `residual.post`."""
        x = residual_commands(self, self.config.residual.post, h, norm, residual)
        return constrain_sharding(x, "B T D")


def residual_commands(
    module: Stack | Block, commands: str, x: Float[Array, "*B D"], norm: Normalize, residual: Array | None = None
) -> Float[Array, "*B D"]:
    """Applies residual commands to `x`, with the dropout of a module and by its random key."""
    rates = module.config.dropout
    dropout = functools.partial(apply_dropout, module, rate=rates.residual_rate, scaling=rates.residual_scaling)
    return apply_commands(commands, x, residual, norm=norm, dropout=dropout, scale=module.config.residual.scale)


def apply_commands(
    commands: str,
    x: Float[Array, "*B D"],
    residual: Float[Array, "*B D"] | None,
    *,
    norm: Callable[[Array], Array],
    dropout: Callable[[Array], Array],
    scale: float = 1.0,
) -> Float[Array, "*B D"]:
    """Applies residual commands (see `Residual`) to `x`, left to right."""
    for command in commands:
        if command == "n":
            x = norm(x)
        elif command == "d":
            x = dropout(x)
        elif command == "a" and residual is not None:
            if scale != 1:
                x = x * jnp.asarray(scale, x.dtype)
            x = x + residual
    return x


def remat_block(remat: str, *, in_loop: bool) -> type[Block]:
    """Returns the layer that recomputes its activations in the backward pass as `model.remat` says."""
    if remat == "none":
        return Block
    policy = {"full": None, "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable}[remat]
    # Without a loop the compiler would merge the recomputation with the first computation, and store its result.
    return nn.remat(Block, policy=policy, prevent_cse=not in_loop)


# Single layers, for models of one's own --------------------------------------------------------------------------------


class EncoderLayer(Block):
    """A layer of an encoder by itself, for models of one's own: `EncoderLayer(config).apply(variables, x, mask=mask)`.

    Its parameters are those of one layer of a `Transformer` with these settings. Residual(pre, post) and the rotation of heads by
    `config.positions` are part of it; embeddings, addends of scores and the last norm are not.
    """

    def __call__(  # type: ignore[override]  # the stack calls a Block
        self,
        x: Float[Array, "B T D"],
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        positions: Int[Array, "#B T"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns the layer's output.

        mask: True: the query may attend to the key; broadcasts to `[B, N, T, T]`, such as `padding_mask(is_token)`. None: all.
        bias: added to the scores, such as that of `PositionBias`; broadcasts to `[B, N, T, T]`.
        positions: of the tokens, for rotary positions; None: 0, 1, 2, …
        """
        positions = default_positions(x) if positions is None else positions
        context = SequenceContext(positions, LayerMasks(own_mask(mask)), bias)
        output, _ = super().__call__(x, LayerKind(), context)
        return output


class DecoderLayer(Block):
    """A layer of a decoder by itself: `EncoderLayer` with causal self-attention and, unless `cross` is False, a memory."""

    cross: bool = True
    causal: bool = True

    def __call__(  # type: ignore[override]  # it reads a memory too
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"] | None = None,
        *,
        mask: Bool[Array, "..."] | None = None,
        memory_mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        positions: Int[Array, "#B T"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns the layer's output; no token sees those after it. The other arguments are those of `EncoderLayer`.

        memory: the encoder's output; None without `cross`. memory_mask: as `mask`, for the memory.
        """
        if self.cross == (memory is None):
            raise ValueError(f"cross is {self.cross}: give a memory exactly if cross is True")
        allowed = structured_mask(causal_length=x.shape[1])
        if mask is not None:
            allowed = AttentionMask(combine_masks(allowed.allowed, own_mask(mask).allowed))
        positions = default_positions(x) if positions is None else positions
        context = SequenceContext(positions, LayerMasks(allowed), bias, memory, own_mask(memory_mask))
        output, _ = super().__call__(x, LayerKind(), context)
        return output
