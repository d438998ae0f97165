"""The Transformer: its settings, blocks, stacks, embeddings and head. The alphabet is in `layers.py`.

One page reads as the paper does: `Block` is a layer, `Stack` repeats it, `Transformer` puts embeddings below, stacks in
the middle and the head on top. The layers of a stack are one set of parameters with a leading axis L.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.attention import (
    AttentionVariant,
    DotProduct,
    KeyValue,
    MultiHeadAttention,
    causal_mask,
    combine_masks,
    padding_mask,
    prefix_mask,
)
from flaxformer_lite.layers import (
    DTYPES,
    PRE_NORM,
    Activation,
    DropoutRates,
    FeedForward,
    Initializer,
    LayerNorm,
    Norm,
    Normalize,
    Residual,
    XavierUniform,
    apply_commands,
    apply_dropout,
)
from flaxformer_lite.positions import Positions, Sinusoidal


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of a Transformer. Defaults are the base model of Vaswani et al. 2017, with the norm moved before the sublayers."""

    vocab_size: int
    """Token ids the model can read and write; the tokenizer is trained to fit in."""
    target_vocab_size: int | None = None
    """The target's own vocabulary size where source and target have separate ones; None means one vocabulary for both."""
    d_model: int = 512
    """Width of the embeddings and of every layer's input and output."""
    num_heads: int = 8
    """Query heads."""
    d_ff: int = 2048
    """Inner width of the feed-forward layers."""
    num_encoder_layers: int = 6
    """Layers of the encoder."""
    num_decoder_layers: int = 6
    """Layers of the decoder."""
    attention: AttentionVariant = DotProduct()
    """How scores are made, and the shape of the projections."""
    positions: Positions = Sinusoidal()
    """How the model knows where a token stands."""
    activation: Activation = "relu"
    """Of the feed-forward layers; reglu, geglu, geglu_tanh and swiglu are gated."""
    norm: Norm = LayerNorm()
    """The normalisation wherever a residual command says `n`."""
    residual: Residual = PRE_NORM
    """What surrounds each sublayer: PRE_NORM, POST_NORM, or commands of your own."""
    dropout: DropoutRates = DropoutRates()
    """Dropout probabilities, place by place."""
    scale_embeddings: bool = True
    """Multiply token embeddings by sqrt(d_model), so that they are of the size of the positions."""
    share_source_target: bool = True
    """One embedding table for source and target tokens."""
    share_target_output: bool = True
    """The output projection is the target embedding table, transposed."""
    initializer: Initializer = XavierUniform()
    """First values of kernels and embeddings; biases start at 0, norm scales at 1."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Type of the computation; parameters stay float32, and sums in softmax, norms and losses are never narrower than that."""
    scan_unroll: int = 1
    """Layers compiled in a row, 1 to the number of layers: more compiles longer and may run faster; results are the same."""

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "d_model",
            "num_heads",
            "d_ff",
            "num_encoder_layers",
            "num_decoder_layers",
            "scan_unroll",
        ):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"model.{name} is {value}: give at least 1")
        if self.target_vocab_size is not None and self.target_vocab_size < 1:
            raise ValueError(f"model.target_vocab_size is {self.target_vocab_size}: give at least 1, or leave it out")
        self.attention.check(self.d_model, self.num_heads)
        if self.target_vocab_size is not None and self.share_source_target:
            raise ValueError(
                f"model.target_vocab_size is {self.target_vocab_size}, but source and target share one embedding table: "
                "leave it out, or set model.share_source_target to False"
            )

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        """The source's and the target's vocabulary size."""
        return self.vocab_size, self.vocab_size if self.target_vocab_size is None else self.target_vocab_size


class Inputs(NamedTuple):
    """What goes into the model: token ids, and which of them are tokens (True) rather than padding. No mask: all are."""

    source_tokens: Int[Array, "B S"]
    target_tokens: Int[Array, "B T"]
    source_mask: Bool[Array, "B S"] | None = None
    target_mask: Bool[Array, "B T"] | None = None


class Outputs(NamedTuple):
    """What comes out: scores of the next token, the decoder's last layer, and the encoder's."""

    logits: Float[Array, "B T V"]
    hidden: Float[Array, "B T D"]
    memory: Float[Array, "B S D"]


class LayerCache(NamedTuple):
    """What a decoder keeps between steps, stacked over its layers: its own keys and values, and the memory's."""

    own: KeyValue
    memory: KeyValue


class Context(NamedTuple):
    """What all layers of a stack see alike: masks, the memory, and while decoding the position being written."""

    mask: Bool[Array, "..."] | None = None
    memory: Float[Array, "B S D"] | None = None
    memory_mask: Bool[Array, "..."] | None = None
    index: Int[Array, ""] | None = None  # type: ignore[assignment]  # tuples have a method of that name


class Block(nn.Module):
    """One layer: self-attention, in a decoder also cross-attention to the memory, then feed-forward."""

    config: ModelConfig
    cross: bool = False

    def setup(self) -> None:
        c = self.config
        dtype, kernel_init = DTYPES[c.dtype], c.initializer.kernel()

        def attention() -> MultiHeadAttention:
            return MultiHeadAttention(c.d_model, c.num_heads, c.attention, c.dropout.attention_rate, dtype, kernel_init)

        self.attention = attention()
        if self.cross:
            self.cross_attention = attention()
        self.feed_forward = FeedForward(
            c.d_model, c.d_ff, c.activation, True, c.dropout.feed_forward_rate, dtype, kernel_init
        )
        for sublayer in ("attention", "cross_attention", "feed_forward"):
            for place in ("pre_norm", "post_norm"):
                setattr(self, f"{sublayer}_{place}", Normalize(c.norm))

    def __call__(
        self, x: Float[Array, "B T D"], cache: LayerCache | None, context: Context
    ) -> tuple[Float[Array, "B T D"], LayerCache | None]:
        h = self.pre("attention", x)
        own = self.attention.key_value(h)
        if cache is not None:
            assert context.index is not None
            own = cache.own.write(own, context.index)
            cache = cache._replace(own=own)
        x = self.post("attention", self.attention.attend(h, own, mask=context.mask), x)
        if self.cross:
            h = self.pre("cross_attention", x)
            memory = self.memory_key_value(None, None, context)[1] if cache is None else cache.memory
            x = self.post("cross_attention", self.cross_attention.attend(h, memory, mask=context.memory_mask), x)
        x = self.post("feed_forward", self.feed_forward(self.pre("feed_forward", x)), x)
        self.sow("intermediates", "output", x)
        return x, cache

    def memory_key_value(self, carry: None, cache: None, context: Context) -> tuple[None, KeyValue]:
        """What cross-attention needs of the memory: decoding asks once a sentence. Shaped like `__call__`, for the scan."""
        assert context.memory is not None
        return carry, self.cross_attention.key_value(context.memory)

    def pre(self, sublayer: str, x: Array) -> Array:
        norm = getattr(self, f"{sublayer}_pre_norm")
        return residual_commands(self, self.config.residual.pre, norm, x)

    def post(self, sublayer: str, x: Array, residual: Array) -> Array:
        norm = getattr(self, f"{sublayer}_post_norm")
        return residual_commands(self, self.config.residual.post, norm, x, residual)


def residual_commands(
    module: "Block | Stack", commands: str, norm: Normalize, x: Array, residual: Array | None = None
) -> Array:
    """The residual commands with the module's dropout."""
    rate = module.config.dropout.residual_rate
    return apply_commands(commands, x, residual, norm=norm, dropout=lambda x: apply_dropout(module, x, rate))


class PositionEmbedding(nn.Module):
    """Holds the parameters of a position scheme, where it has any."""

    scheme: Positions

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], positions: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        return self.scheme.embed(x, positions, self.param)


class Stack(nn.Module):
    """Positions, dropout, the layers, and the last residual commands. The parameters of the layers are `[L, …]`."""

    config: ModelConfig
    num_layers: int
    cross: bool = False

    def setup(self) -> None:
        self.positions = PositionEmbedding(self.config.positions)
        self.layers = nn.scan(
            Block,
            variable_axes={"params": 0, "intermediates": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=(0, nn.broadcast),
            length=self.num_layers,
            unroll=min(self.config.scan_unroll, self.num_layers),
            methods=["__call__", "memory_key_value"],
        )(self.config, self.cross)
        self.final_norm = Normalize(self.config.norm)

    def __call__(
        self, x: Float[Array, "B T D"], positions: Int[Array, "B T"], context: Context, cache: LayerCache | None = None
    ) -> tuple[Float[Array, "B T D"], LayerCache | None]:
        x = self.positions(x, positions)
        self.sow("intermediates", "embedded", x)
        x = apply_dropout(self, x, self.config.dropout.embedding_rate)
        x, cache = self.layers(x, cache, context)
        return residual_commands(self, self.config.residual.final, self.final_norm, x), cache

    def start_cache(self, memory: Float[Array, "B S D"], room: int) -> LayerCache:
        """A cache with the memory's keys and values, and zeros for `room` positions of the decoder's own."""
        _, memory_kv = self.layers.memory_key_value(None, None, Context(memory=memory))
        num_layers, batch, _, *_ = memory_kv.key.shape
        own = [jnp.zeros((num_layers, batch, room, *x.shape[3:]), x.dtype) for x in memory_kv]
        return LayerCache(own=KeyValue(*own), memory=memory_kv)


class Transformer(nn.Module):
    """The encoder–decoder Transformer with a language-model head."""

    config: ModelConfig

    def setup(self) -> None:
        c = self.config

        def embedding(size: int) -> nn.Embed:
            return nn.Embed(size, c.d_model, dtype=DTYPES[c.dtype], embedding_init=c.initializer.embedding(c.d_model))

        target_size = c.vocab_sizes[1]
        if c.share_source_target:
            self.embedding = embedding(c.vocab_size)
        else:
            self.source_embedding, self.target_embedding = embedding(c.vocab_size), embedding(target_size)
        if not c.share_target_output:
            self.head = nn.Dense(target_size, use_bias=False, dtype=DTYPES[c.dtype], kernel_init=c.initializer.kernel())
        self.encoder = Stack(c, c.num_encoder_layers)
        self.decoder = Stack(c, c.num_decoder_layers, cross=True)

    def __call__(self, inputs: Inputs) -> Outputs:
        """Scores of the next token after every target token (teacher forcing)."""
        memory = self.encode(inputs.source_tokens, inputs.source_mask)
        tokens = inputs.target_tokens
        context = Context(
            mask=combine_masks(causal_mask(tokens.shape[1]), padding(inputs.target_mask)),
            memory=memory,
            memory_mask=padding(inputs.source_mask),
        )
        hidden, _ = self.decoder(self.embed(tokens, self.target_table), default_positions(tokens), context)
        return Outputs(logits=self.logits(hidden), hidden=hidden, memory=memory)

    def encode(self, tokens: Int[Array, "B S"], mask: Bool[Array, "B S"] | None = None) -> Float[Array, "B S D"]:
        """The memory: the encoder's answer to the source."""
        x = self.embed(tokens, self.source_table)
        return self.encoder(x, default_positions(tokens), Context(mask=padding(mask)))[0]

    def start_cache(self, memory: Float[Array, "B S D"], room: int) -> LayerCache:
        """An empty decode cache with `room` for that many target tokens."""
        return self.decoder.start_cache(memory, room)

    def decode_step(
        self,
        tokens: Int[Array, "B"],
        index: Int[Array, ""],
        cache: LayerCache,
        source_mask: Bool[Array, "B S"] | None = None,
    ) -> tuple[Float[Array, "B V"], LayerCache]:
        """Scores of the token after `tokens`, which stand at position `index` of the target, and the cache with them in it."""
        room = cache.own.key.shape[2]
        context = Context(mask=prefix_mask(index, room), memory_mask=padding(source_mask), index=index)
        positions = jnp.broadcast_to(index, (tokens.shape[0], 1))
        hidden, filled = self.decoder(self.embed(tokens[:, None], self.target_table), positions, context, cache)
        assert filled is not None
        return self.logits(hidden)[:, 0], filled

    @property
    def source_table(self) -> nn.Embed:
        return self.embedding if self.config.share_source_target else self.source_embedding

    @property
    def target_table(self) -> nn.Embed:
        return self.embedding if self.config.share_source_target else self.target_embedding

    def embed(self, tokens: Int[Array, "B T"], table: nn.Embed) -> Float[Array, "B T D"]:
        x = table(tokens)
        return x * jnp.asarray(self.config.d_model**0.5, x.dtype) if self.config.scale_embeddings else x

    def logits(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        return self.target_table.attend(hidden) if self.config.share_target_output else self.head(hidden)


def padding(mask: Bool[Array, "B S"] | None) -> Bool[Array, "B 1 1 S"] | None:
    return None if mask is None else padding_mask(mask)


def default_positions(tokens: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """0, 1, 2, … in every row."""
    return jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
