"""The settings of a Transformer: its shape, and the values it is put together from."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from jax.sharding import AbstractMesh, Mesh

from flaxformer_lite.bounds import NonNegativeInt, PositiveFloat, PositiveInt, check_bounds
from flaxformer_lite.model.attention import AttentionVariant, DotProduct
from flaxformer_lite.model.dropout import DropoutRates
from flaxformer_lite.model.feed_forward import Activation
from flaxformer_lite.model.initializers import Initializer, XavierUniform
from flaxformer_lite.model.norms import LayerNorm, Norm
from flaxformer_lite.model.positions import Learned, Positions, Rotary, Sinusoidal
from flaxformer_lite.model.residual import PRE_NORM, Residual


@dataclass(frozen=True, kw_only=True)
class LanguageModelHead:
    """Scores of every entry of the vocabulary: one matrix, the embedding table where `share_target_output` says so."""

    kind: Literal["language_model"] = "language_model"
    bias: bool = False
    """Add a learned number to each entry's score."""
    scale: PositiveFloat = 1.0
    """Multiplies the last layer before the scores are taken (T5: 1 / sqrt(d_model) where tables are tied)."""
    soft_cap: PositiveFloat | None = None
    """Scores are bent smoothly to stay within plus and minus this, `cap * tanh(score / cap)`; None leaves them alone."""
    transform: Activation | None = None
    """First a dense layer of width `d_model` with this activation, and the model's norm, as BERT's masked language model has."""
    loss_chunk: PositiveInt | None = None
    """Positions of each row that losses score at a time, so that the scores of all are never held at once; None: all."""

    def __post_init__(self) -> None:
        check_bounds(self, "model.head")


@dataclass(frozen=True, kw_only=True)
class Pooler:
    """One vector for a whole text, from one token's last layer: the decoder's, or the encoder's where there is no decoder."""

    token: Literal["first", "last"] = "first"
    """Which token: the first, or the last that is not padding."""
    activation: Activation | None = "tanh"
    """After a dense layer; None: no such layer."""
    num_classes: NonNegativeInt = 0
    """Classes to score from the pooled vector (BERT's next-sentence prediction has 2); 0: none."""
    class_bias: bool = True
    """Add a learned number to each class's score."""

    def __post_init__(self) -> None:
        check_bounds(self, "model.pooler")


@dataclass(frozen=True, kw_only=True)
class SentenceEmbedding:
    """One vector for a whole text that can be compared with others; it has no parameters."""

    pooling: Literal["mean", "max", "cls", "last"] = "mean"
    """Of the last layer: the mean or the maximum over the tokens, the first token, or the last."""
    normalize: bool = True
    """Scale to length 1, so that a product of two is their cosine."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of a Transformer. Defaults are the base model of Vaswani et al. 2017, with the norm moved before the sublayers."""

    vocab_size: NonNegativeInt
    """Token ids the model can read and write; the tokenizer is trained to fit in. 0: no embeddings, vectors go in."""
    target_vocab_size: PositiveInt | None = None
    """The target's own vocabulary size where source and target have separate ones; None means one vocabulary for both."""
    d_model: PositiveInt = 512
    """Width of the embeddings and of every layer's input and output."""
    num_heads: PositiveInt = 8
    """Query heads."""
    d_ff: PositiveInt = 2048
    """Inner width of the feed-forward layers."""
    num_encoder_layers: NonNegativeInt = 6
    """Layers of the encoder; 0: there is none, and the decoder reads nothing but what it writes."""
    num_decoder_layers: NonNegativeInt = 6
    """Layers of the decoder; 0: there is none, and the head reads the encoder."""
    decoder_num_heads: PositiveInt | None = None
    """Query heads in the decoder; None: as many as `num_heads`."""
    decoder_d_ff: PositiveInt | None = None
    """Inner width of the decoder's feed-forward layers; None: `d_ff`."""
    attention: AttentionVariant = DotProduct()
    """How scores are made, and the shape of the projections."""
    positions: Positions = Sinusoidal()
    """How the model knows where a token stands."""
    attention_window: int | None = None
    """A token of the decoder attends to that many tokens at most, itself and those just before it; None: to all before it."""
    window_layers: tuple[int, ...] | None = None
    """The decoder layers that have this window, from 0; None: all."""
    window_positions: Rotary | None = None
    """What stands in the place of `positions` in those layers (Gemma 3: a smaller base); None: nothing else."""
    position_padding_id: NonNegativeInt | None = None
    """A source token id that takes up no position (RoBERTa: its padding); None: every token does."""
    feed_forward_bias: bool = True
    """Biases in the feed-forward layers."""
    activation: Activation = "relu"
    """Of the feed-forward layers; reglu, geglu, geglu_tanh and swiglu are gated."""
    norm: Norm = LayerNorm()
    """The normalisation wherever a residual command says `n`."""
    residual: Residual = PRE_NORM
    """What surrounds each sublayer: PRE_NORM, POST_NORM, or commands of your own."""
    dropout: DropoutRates = DropoutRates()
    """Dropout probabilities, place by place."""
    num_token_types: NonNegativeInt = 0
    """Kinds of source tokens, each with an embedding that is added (BERT's first and second sentence); 0: none."""
    embedding_norm: bool = False
    """Normalise the sum of the embeddings, before its dropout."""
    scale_embeddings: bool = True
    """Multiply token embeddings by sqrt(d_model), so that they are of the size of the positions."""
    share_source_target: bool = True
    """One embedding table for source and target tokens."""
    share_target_output: bool = True
    """The output projection is the target embedding table, transposed."""
    head: LanguageModelHead | None = LanguageModelHead()
    """What turns the last layer into scores of the vocabulary; None: no scores."""
    pooler: Pooler | None = None
    """What makes one vector of a whole text, and scores of classes from it; None: nothing does."""
    sentence_embedding: SentenceEmbedding | None = None
    """How a text becomes a vector to be compared with others; None: it does not."""
    initializer: Initializer = XavierUniform()
    """First values of kernels and embeddings; biases start at 0, norm scales at 1."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Type of the computation; parameters stay float32, and sums in softmax, norms and losses are never narrower than that."""
    scan_unroll: PositiveInt = 1
    """Layers compiled in a row: more compiles longer and may run faster, results are the same. A shorter stack has all its
    layers in a row."""
    remat: Literal["none", "full", "dots"] = "none"
    """What the backward pass computes again instead of keeping it: none keeps everything, full keeps only what goes into each
    layer, dots also the products with parameters, but no scores. Results are the same."""

    def __post_init__(self) -> None:
        check_bounds(self, "model")
        if self.num_encoder_layers + self.num_decoder_layers == 0:
            raise ValueError("model.num_encoder_layers and model.num_decoder_layers are both 0: give one at least 1")
        self.attention.check(self.d_model, self.num_heads)
        if self.decoder_num_heads is not None:
            self.attention.check(self.d_model, self.decoder_num_heads, "model.decoder_num_heads")
        self.check_window()
        self.check_embeddings()

    def check_window(self) -> None:
        """Raises: ValueError where the window is for no layer, or for none that there is."""
        if self.attention_window is not None and (self.attention_window < 1 or self.num_decoder_layers == 0):
            raise ValueError(
                f"model.attention_window is {self.attention_window}: give at least 1, in a model with a decoder, or leave it out"
            )
        if self.window_layers is not None and self.attention_window is None:
            raise ValueError(
                f"model.window_layers is {self.window_layers}, but model.attention_window is None: give both or none"
            )
        if wrong := [i for i in self.window_layers or () if not 0 <= i < self.num_decoder_layers]:
            raise ValueError(
                f"model.window_layers has {wrong[0]}, but the decoder's layers are 0 to {self.num_decoder_layers - 1}"
            )
        if self.window_positions is not None and self.window_layers is None:
            raise ValueError(
                "model.window_positions is for the layers of model.window_layers, which is None: name the layers, or set "
                "model.positions"
            )

    def check_embeddings(self) -> None:
        """Raises: ValueError where tables and vocabularies do not go together."""
        if self.target_vocab_size is not None and self.one_table:
            raise ValueError(
                f"model.target_vocab_size is {self.target_vocab_size}, but source and target share one embedding table: "
                "leave it out, or set model.share_source_target to False"
            )
        if self.vocab_size == 0 and self.head is not None:
            raise ValueError(
                "model.vocab_size is 0, so there is nothing for model.head to score: set model.head to None"
            )
        if self.position_padding_id is not None and self.num_encoder_layers == 0:
            raise ValueError(
                f"model.position_padding_id is {self.position_padding_id}, but model.num_encoder_layers is 0: leave it out"
            )
        if self.position_padding_id is not None and isinstance(self.positions, Learned) and self.positions.offset == 0:
            raise ValueError(
                f"model.position_padding_id is {self.position_padding_id}, and such tokens have the row before the first: "
                "set model.positions.offset to at least 1"
            )

    @cached_property
    def for_decoder(self) -> "ModelConfig":
        """The same with the decoder's heads and feed-forward width in the place of the encoder's."""
        num_heads, d_ff = self.decoder_num_heads or self.num_heads, self.decoder_d_ff or self.d_ff
        return dataclasses.replace(self, num_heads=num_heads, d_ff=d_ff, decoder_num_heads=None, decoder_d_ff=None)

    @cached_property
    def for_use(self) -> "ModelConfig":
        """The same where no kernel is named for attention: an answer may be asked for on another device than the training's."""
        if self.attention.implementation in ("auto", "xla"):
            return self
        return dataclasses.replace(self, attention=dataclasses.replace(self.attention, implementation="auto"))

    @property
    def one_table(self) -> bool:
        """Whether one embedding table serves all tokens."""
        return self.share_source_target or 0 in (self.num_encoder_layers, self.num_decoder_layers)

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        """The source's and the target's vocabulary size."""
        return self.vocab_size, self.vocab_size if self.target_vocab_size is None else self.target_vocab_size

    @property
    def output_size(self) -> int:
        """How many entries the head scores."""
        return self.vocab_sizes[1]


def check_heads(config: ModelConfig, mesh: Mesh | AbstractMesh) -> None:
    """Raises: ValueError where heads would be cut apart: their parts' scores would have to be summed for each query and key."""
    parts = mesh.shape.get("tensor", 1)
    for side in (config, config.for_decoder):
        heads = side.attention.heads(side.d_model, side.num_heads).num_kv_heads
        if heads % parts:
            raise ValueError(
                f"train.mesh.tensor is {parts}, which does not divide the {heads} heads of keys and values "
                f"(model.attention.num_kv_heads, model.num_heads): choose a divisor of {heads}"
            )
