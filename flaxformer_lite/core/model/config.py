"""The settings of a Transformer: its sizes, and the values it is built from."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from annotated_types import Ge, Le
from jax.sharding import AbstractMesh, Mesh

from flaxformer_lite.core.base.annotations import Answers, Resume, SavedAs
from flaxformer_lite.core.base.bounds import Checked, NonNegativeInt, PositiveFloat, PositiveInt, Width
from flaxformer_lite.core.model.attention import Attention, AttentionVariant, Disentangled, DotProduct, Heads
from flaxformer_lite.core.model.estimation import Estimator, LayerMix
from flaxformer_lite.core.model.layers import DropoutRates, Initializer, XavierUniform
from flaxformer_lite.core.model.lora import LoRA
from flaxformer_lite.core.model.norms import BaseNorm, LayerNorm, Norm
from flaxformer_lite.core.model.positions import Positions, PositionScheme, Rotary, Sinusoidal
from flaxformer_lite.core.reading.heads import Activation, Pooler, SentenceEmbedding

NumLayers = Annotated[int, Ge(0), Le(10_000)]
"""Number of layers. The limit keeps the names of layers within memory."""


@dataclass(frozen=True, kw_only=True)
class Residual(Checked, at="model.residual"):
    """Commands around a sublayer `f`, `post(f(pre(x)), x)`: strings of letters, applied left to right.

    `n` normalises, `d` applies dropout, `a` adds the residual, which is the sublayer's input.
    """

    pre: str = "n"
    """Commands before each sublayer; `a` does nothing here."""
    post: str = "da"
    """Commands after each sublayer."""
    final: str = "n"
    """Commands after the last layer of a stack; `a` does nothing here."""
    first: str | None = None
    """Commands before the first sublayer of a stack, in place of `pre` (ModernBERT: none, since the embeddings have a norm). The
    norm of that place stays among the parameters, unused. None: those of `pre`."""
    scale: PositiveFloat = 1.0
    """Factor of what `a` adds to the residual (Granite: below 1)."""
    branches: Literal["sequential", "parallel", "parallel_one_norm"] = "sequential"
    """Input of a layer's later sublayers. sequential: the sum before each. parallel: the layer's own input, so that the outputs of
    all sublayers are added to it (GPT-NeoX). parallel_one_norm: also the commands of `pre` apply to it once, and all sublayers read
    the result (GPT-J)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("pre", "post", "final", "first"):
            commands = getattr(self, name) or ""
            if set(commands) - set("nda") or commands.count("n") > 1:
                raise ValueError(
                    f"model.residual.{name} is {commands!r}: use the letters n (norm, at most once), d (dropout) and "
                    "a (add the residual), for example 'n', 'da' or 'dan'"
                )
        if self.branches != "sequential" and not self.post.endswith("a"):
            raise ValueError(
                f"model.residual.branches is {self.branches!r}, but model.residual.post is {self.post!r}, which changes the sum of "
                "the branches: end model.residual.post with 'a', or set model.residual.branches to 'sequential'"
            )


PRE_NORM = Residual(pre="n", post="da", final="n")
"""Norm before every sublayer, and one after the last layer: trains with little warm-up.

Reference: Xiong et al. 2020, arXiv:2002.04745."""


POST_NORM = Residual(pre="", post="dan", final="")
"""Norm after every residual sum, as in the original Transformer. Reference: Vaswani et al. 2017, arXiv:1706.03762, section 5.4."""


@dataclass(frozen=True, kw_only=True)
class LanguageModelHead(Checked, at="model.head"):
    """Logits of every entry of the vocabulary: one matrix, the embedding table if `share_target_output` is True."""

    kind: Literal["language_model"] = "language_model"
    bias: bool = False
    """Add a learned bias to each entry's logit."""
    scale: PositiveFloat = 1.0
    """Factor of the last layer before the logits (T5: 1 / sqrt(d_model) where tables are tied)."""
    soft_cap: PositiveFloat | None = None
    """Bend logits to stay within plus and minus this number, `cap * tanh(logit / cap)`; None: do not."""
    transform: Activation | None = None
    """Before the logits apply a dense layer of width `d_model`, this activation and the model's norm (as BERT); None: do not."""
    transform_bias: bool = True
    """Add a learned bias in that dense layer."""
    loss_chunk: Annotated[PositiveInt | None, Resume.ON_REQUEST, Answers.SAME] = None
    """Positions of each row whose logits a loss computes at a time, so that all logits are never stored at once; None: all."""


@dataclass(frozen=True, kw_only=True)
class SlidingWindow(Checked, at="model.sliding_window"):
    """Attention to near tokens only: in a decoder to the last few, in an encoder-only model to those on both sides.

    A token attends to itself and to the tokens less than `size` positions before it; in an encoder also to those less than `size`
    positions after it. In an encoder–decoder the window is the decoder's: its encoder reads whole texts. ModernBERT's
    `local_attention` 128 counts both sides, 64 tokens each: that is size 65.

    Reference: Beltagy et al. 2020, arXiv:2004.05150, section 3.1.
    """

    size: PositiveInt
    """Number of tokens on one side that a token attends to, itself included."""
    layers: tuple[int, ...] | None = None
    """Layers that have the window, counted from 0; None: all layers."""
    positions: Rotary | None = None
    """Position scheme of these layers, in place of `model.positions` (Gemma 3: a smaller base); None: the same scheme."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions is not None and self.layers is None:
            raise ValueError(
                "model.sliding_window.positions is set, but model.sliding_window.layers is None: list the layers, or set "
                "model.positions, which then holds for all layers"
            )
        if self.positions is not None and self.positions.layers is not None:
            raise ValueError(
                f"model.sliding_window.positions.layers is {self.positions.layers}: set it to None, since the scheme is of "
                "model.sliding_window.layers"
            )


@dataclass(frozen=True, kw_only=True)
class EmbeddingProjection(Checked, at="model.embedding_projection"):
    """Embeddings of another width than the layers, with a dense layer between both.

    References: Lan et al. 2019, arXiv:1909.11942, section 3.1; Zhang et al. 2022, arXiv:2205.01068 (OPT-350m).
    """

    width: Width
    """Width of the embeddings."""
    of: Literal["sum", "tokens"] = "sum"
    """Input of the dense layer. sum: all embeddings, after their norm and dropout (ELECTRA, ALBERT). tokens: only the embeddings of
    tokens, without a bias; positions are as wide as the layers, and a second dense layer gives the output of the stack the width of
    the embeddings (OPT)."""


@dataclass(frozen=True, kw_only=True)
class DecoderSize(Checked, at="model.decoder"):
    """Sizes of a decoder that differ from the encoder's."""

    num_heads: PositiveInt | None = None
    """Number of query heads in the decoder; None: `model.num_heads`."""
    d_ff: PositiveInt | None = None
    """Inner width of the decoder's feed-forward layers; None: `model.d_ff`."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Checked, at="model"):
    """The sizes and parts of a Transformer. Defaults are the base model of Vaswani et al. 2017, with pre-norm.

    Pre-norm moves each norm in front of its sublayer.
    """

    vocab_size: NonNegativeInt
    """Number of token ids; the tokenizer is trained to fit. 0: no embeddings, the inputs are vectors."""
    target_vocab_size: PositiveInt | None = None
    """Number of target token ids where source and target have a vocabulary each; None: one vocabulary for both."""
    d_model: Width = 512
    """Width of the embeddings and of every layer's input and output."""
    embedding_projection: EmbeddingProjection | None = None
    """Embeddings of another width, and their projection to `d_model`; None: they are as wide as the layers."""
    num_heads: Width = 8
    """Number of query heads."""
    d_ff: Width = 2048
    """Inner width of the feed-forward layers."""
    num_encoder_layers: NumLayers = 6
    """Number of encoder layers; 0: no encoder, a decoder-only model."""
    num_decoder_layers: NumLayers = 6
    """Number of decoder layers; 0: no decoder, an encoder-only model."""
    share_layers: bool = False
    """Use one layer with all its parameters as every layer of a stack (ALBERT)."""
    decoder: DecoderSize | None = None
    """Sizes of the decoder where they differ from the encoder's; None: the same sizes."""
    attention: Annotated[Attention, SavedAs(AttentionVariant)] = DotProduct()
    """Attention variant: projections, and the step from scores to weights."""
    positions: Annotated[PositionScheme, SavedAs(Positions)] = Sinusoidal()
    """Position scheme: the way the model knows the order of tokens."""
    sliding_window: SlidingWindow | None = None
    """Limit of self-attention to near tokens, in all layers or some, of the decoder or of an encoder-only model; None: no limit."""
    position_padding_id: NonNegativeInt | None = None
    """Source token id that takes up no position (RoBERTa: its padding); None: every token takes up one."""
    padding_id: NonNegativeInt | None = None
    """Token id whose embedding does not train where it is read, as PyTorch's `padding_idx`; a head that shares the table trains
    it. None: every embedding trains."""
    feed_forward_bias: bool = True
    """Use biases in the feed-forward layers."""
    feed_forward_out_bias: bool | None = None
    """Use a bias in the second half of the feed-forward layers (GTE); None: as `feed_forward_bias`."""
    activation: Activation = "relu"
    """Activation of the feed-forward layers; reglu, geglu, geglu_tanh and swiglu are gated."""
    norm: Annotated[BaseNorm, SavedAs(Norm)] = LayerNorm()
    """Norm for each `n` of a residual command, and for the other norms of the model."""
    residual: Residual = PRE_NORM
    """Commands around each sublayer: PRE_NORM, POST_NORM, or others."""
    dropout: DropoutRates = DropoutRates()
    """Dropout rates."""
    num_token_types: NonNegativeInt = 0
    """Number of source token types, each with an embedding that is added (BERT's first and second sentence); 0: none."""
    embedding_norm: bool = False
    """Normalise the sum of the embeddings, before dropout."""
    scale_embeddings: bool = True
    """Multiply token embeddings by sqrt(d_model), to the size of the sinusoidal positions."""
    embedding_scale: PositiveFloat = 1.0
    """Further factor of the token embeddings (Granite: 12)."""
    share_source_target: bool = True
    """Use one embedding table for source and target tokens."""
    share_target_output: bool = True
    """Use the target embedding table, transposed, as the output projection."""
    head: LanguageModelHead | None = LanguageModelHead()
    """Head that computes logits of the vocabulary from the last layer; None: no logits."""
    pooler: Pooler | None = None
    """Pooler that computes one vector of a whole text, and logits of classes; None: no pooler."""
    sentence_embedding: SentenceEmbedding | None = None
    """Reduction of a text to one vector for comparing texts; None: no such vector."""
    layer_mix: LayerMix | None = None
    """Mix of all layers of the encoder in place of its last one; None: the last one."""
    estimator: Estimator | None = None
    """Rating of a translation by the vectors of `sentence_embedding`; None: none."""
    lora: LoRA | None = None
    """Low-rank adapters in the projections; None: no adapters."""
    initializer: Annotated[Initializer, Answers.SAME] = XavierUniform()
    """Initial values of kernels and embeddings; biases start at 0, norm scales at 1."""
    dtype: Annotated[Literal["float32", "bfloat16", "float64"], Resume.ON_REQUEST, Answers.CHOSEN] = "float32"
    """Number type of the computation; parameters stay float32, and sums in softmax, norms and losses are at least float32."""
    matmul_dtype: Annotated[Literal["bfloat16", "bfloat16_values"] | None, Resume.ON_REQUEST, Answers.SAME] = None
    """Number type to which training rounds the inputs and kernels of projections, feed-forward layers and the head before it
    multiplies them, and their gradients too; sums and all else stay in `dtype`. None: `dtype`. bfloat16_values: on a CPU, the
    same rounded numbers in `dtype`; a training sets it in place of bfloat16 on a CPU without instructions for bfloat16."""
    scan_unroll: Annotated[PositiveInt, Resume.ON_REQUEST, Answers.SAME] = 1
    """Number of layers per iteration of the loop over layers: more compile longer and may run faster. Results are the same."""
    remat: Annotated[Literal["none", "full", "dots"], Resume.ON_REQUEST, Answers.SAME] = "none"
    """Activations that the backward pass recomputes to save memory. none: stores all; full: stores only the inputs of each layer;
    dots: stores also products with parameters, but no scores. Results are the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_encoder_layers + self.num_decoder_layers == 0:
            raise ValueError(
                "model.num_encoder_layers and model.num_decoder_layers are both 0: one of them must be at least 1"
            )
        if self.matmul_dtype is not None and self.dtype == "float64":
            raise ValueError(
                f"model.matmul_dtype is {self.matmul_dtype!r}, but model.dtype is 'float64': set one of them to None or 'float32'"
            )
        if self.layer_mix is not None and not self.num_encoder_layers:
            raise ValueError(
                "model.layer_mix is set, but model.num_encoder_layers is 0, and the mix is of an encoder's layers: set one of them"
            )
        if self.estimator is not None and self.sentence_embedding is None:
            raise ValueError(
                "model.estimator is set, but model.sentence_embedding, whose vectors it reads, is None: set it, or leave out both"
            )
        self.attention.check(self.d_model, self.num_heads)
        if self.decoder is not None and self.decoder.num_heads is not None:
            self.attention.check(self.d_model, self.decoder.num_heads, "model.decoder.num_heads")
        window = self.sliding_window
        if isinstance(self.attention, Disentangled) and (self.num_decoder_layers or window is not None):
            raise ValueError(
                "model.attention is disentangled, which is for an encoder that reads whole texts, but model.num_decoder_layers is "
                f"{self.num_decoder_layers} and model.sliding_window is {window}: set them to 0 and None, or choose dot_product"
            )
        stack, num_layers = [*self.num_layers.items()][-1]
        if window is not None and any(not 0 <= i < num_layers for i in window.layers or ()):
            raise ValueError(
                f"model.sliding_window.layers is {window.layers}, but model.num_{stack}_layers is {num_layers}: name layers of the "
                f"{stack}, counted from 0"
            )
        most = max(self.num_layers.values())
        if any(not 0 <= i < most for i in self.positions.layers or ()):
            raise ValueError(
                f"model.positions.layers is {self.positions.layers}, but a stack has at most {most} layers: name layers counted "
                "from 0"
            )
        if (
            self.output_width != self.embedding_width
            and self.share_target_output
            and self.head is not None
            and self.head.transform is None
        ):
            raise ValueError(
                "model.embedding_projection.of is 'sum', but model.head.transform is None, and the head shares the narrower table: "
                "set model.head.transform, or model.share_target_output to False"
            )
        if self.target_vocab_size is not None and self.one_table:
            raise ValueError(
                f"model.target_vocab_size is {self.target_vocab_size}, but source and target share one embedding table: "
                "set model.target_vocab_size to None, or model.share_source_target to False"
            )
        if self.vocab_size == 0 and self.head is not None:
            raise ValueError(
                "model.vocab_size is 0, so model.head has no entries to score: set model.head to None, or a vocab_size"
            )
        if self.vocab_size == 0 and self.position_padding_id is not None:
            raise ValueError(
                f"model.position_padding_id is {self.position_padding_id}, but model.vocab_size is 0, so the inputs are vectors, "
                "which have no ids: set model.position_padding_id to None, or a vocab_size"
            )
        if (
            self.position_padding_id is not None
            and self.positions.max_positions is not None
            and self.positions.offset == 0
        ):
            raise ValueError(
                f"model.position_padding_id is {self.position_padding_id}, and such tokens have the row before the first: "
                "set model.positions.offset to at least 1"
            )

    @cached_property
    def for_decoder(self) -> "ModelConfig":
        """The same settings with the decoder's sizes in place of the encoder's."""
        sizes = self.decoder or DecoderSize()
        return dataclasses.replace(
            self, num_heads=sizes.num_heads or self.num_heads, d_ff=sizes.d_ff or self.d_ff, decoder=None
        )

    @property
    def embedding_width(self) -> int:
        """Width of the tables of embeddings."""
        return self.d_model if self.embedding_projection is None else self.embedding_projection.width

    @property
    def output_width(self) -> int:
        """Width of the output of a stack."""
        projection = self.embedding_projection
        return self.d_model if projection is None or projection.of == "sum" else projection.width

    @property
    def heads(self) -> Heads:
        """The sizes of the heads; those of the decoder are in `for_decoder`."""
        return self.attention.heads(self.d_model, self.num_heads)

    @cached_property
    def for_use(self) -> "ModelConfig":
        """The same settings without `matmul_dtype` or a named attention kernel: a trained model may be used on another device."""
        named = self.attention.implementation not in ("auto", "xla")
        attention = dataclasses.replace(self.attention, implementation="auto") if named else self.attention
        return dataclasses.replace(self, attention=attention, matmul_dtype=None)

    def window_of(self, *, causal: bool) -> SlidingWindow | None:
        """Returns the window of a decoder (`causal`) or of an encoder: an encoder beside a decoder has none."""
        return self.sliding_window if causal or not self.num_decoder_layers else None

    @property
    def cache_window(self) -> int | None:
        """Number of slots of a decode cache if all layers have a sliding window; None: a cache holds every token."""
        window = self.sliding_window
        return None if window is None or window.layers is not None else window.size

    @property
    def num_layers(self) -> dict[str, int]:
        """The number of layers of each stack, by the stack's name in the paths of parameters."""
        stacks = {"encoder": self.num_encoder_layers, "decoder": self.num_decoder_layers}
        return {name: number for name, number in stacks.items() if number}

    @property
    def has_two_stacks(self) -> bool:
        """Whether the model is an encoder–decoder."""
        return self.num_encoder_layers > 0 and self.num_decoder_layers > 0

    @property
    def continues_texts(self) -> bool:
        """Whether the model is decoder-only and has a head for tokens."""
        return self.num_encoder_layers == 0 and self.head is not None

    @property
    def embedding_factor(self) -> float:
        """Factor of the token embeddings."""
        return self.embedding_scale * (self.d_model**0.5 if self.scale_embeddings else 1.0)

    @property
    def one_table(self) -> bool:
        """Whether one embedding table serves all tokens."""
        return self.share_source_target or not self.has_two_stacks

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        """The source's and the target's vocabulary size."""
        return self.vocab_size, self.target_vocab_size or self.vocab_size

    @property
    def output_size(self) -> int:
        """Number of entries that the head scores."""
        return self.vocab_sizes[1]


def check_heads(config: ModelConfig, mesh: Mesh | AbstractMesh) -> None:
    """Raises: ValueError where the mesh would divide a head, whose scores would then need a sum over devices."""
    parts = mesh.shape.get("tensor", 1)
    for side in (config, config.for_decoder):
        heads = side.heads.num_kv_heads
        if heads % parts:
            raise ValueError(
                f"train.mesh.tensor is {parts}, which does not divide the {heads} key/value heads "
                f"(model.attention.num_kv_heads, model.num_heads): choose a divisor of {heads}"
            )
