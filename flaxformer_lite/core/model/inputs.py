"""Inputs and outputs of a model, and the checks of the inputs."""

import dataclasses
import functools
from typing import NamedTuple

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.core.model.config import ModelConfig
from flaxformer_lite.core.model.layers import matrix_product


class Inputs(NamedTuple):
    """Inputs of a model: token ids, and masks that are True at tokens and False at padding. Without a mask all are tokens.

    The encoder reads the source, the decoder the target. A model without embeddings (`vocab_size` 0) reads vectors `[B, S, D]` in
    place of token ids.
    """

    source_tokens: Int[Array, "B S"] | Float[Array, "B S D"] | None = None
    target_tokens: Int[Array, "B T"] | Float[Array, "B T D"] | None = None
    source_mask: Bool[Array, "B S"] | None = None
    target_mask: Bool[Array, "B T"] | None = None
    """The padding masks are True for tokens, False for padding."""
    token_types: Int[Array, "B S"] | None = None
    """Type of each source token, below `num_token_types`."""
    source_bias: Float[Array, "#B #N #S #S"] | None = None
    """Addend of the scores of the encoder's self-attention."""
    target_attention: Bool[Array, "#B 1 #T #T"] | None = None
    """An attention mask: True where a target token (T) may attend to another. None: each attends to itself and to all before it."""
    predict_positions: Int[Array, "B P"] | None = None
    """Positions that the head scores, in a model without a decoder; None: all."""
    source_positions: Int[Array, "#B S"] | None = None
    """Position of each source token; None: 0, 1, 2, … Every packed text starts at 0."""
    target_positions: Int[Array, "#B T"] | None = None
    """Position of each target token."""
    source_segments: Int[Array, "B S"] | None = None
    """Number of the packed text that each source token belongs to, from 1; 0 is padding. Texts do not see each other."""
    target_segments: Int[Array, "B T"] | None = None
    """The same for target tokens; a target text sees the source text of its own number."""
    last_positions: Int[Array, "B"] | None = None
    """Position of each text's last token, for a pooler that reads it; None: found by the mask."""


@struct.dataclass
class LazyLogits:
    """Logits that are computed on demand, from the last layer and the head's kernel."""

    hidden: Float[Array, "B T D"]
    kernel: Float[Array, "D V"]
    bias: Float[Array, "V"] | None = None
    soft_cap: float | None = struct.field(pytree_node=False, default=None)
    chunk: int | None = struct.field(pytree_node=False, default=None)
    """Positions of each row whose logits a loss computes at a time; None: all."""
    matmul_dtype: str | None = struct.field(pytree_node=False, default=None)
    """`model.matmul_dtype`."""

    def within(self, num_ids: int) -> "LazyLogits":
        """Returns the logits of the first `num_ids` ids."""
        if self.kernel.shape[1] == num_ids:
            return self
        bias = None if self.bias is None else self.bias[:num_ids]
        return dataclasses.replace(self, kernel=self.kernel[:, :num_ids], bias=bias)

    def logits(self) -> Float[Array, "B T V"]:
        logits = matrix_product(self.hidden, self.kernel, self.matmul_dtype)
        logits = logits if self.bias is None else logits + self.bias.astype(self.hidden.dtype)
        return logits if self.soft_cap is None else self.soft_cap * jnp.tanh(logits / self.soft_cap)


class Outputs(NamedTuple):
    """Outputs of a model; None where the model lacks the part."""

    logits: Float[Array, "B T V"] | None = None
    """Logits of the vocabulary: for the next token in a decoder, for the token itself in an encoder (T is then S or P)."""
    hidden: Float[Array, "B T D"] | None = None
    """The decoder's last layer."""
    memory: Float[Array, "B S D"] | None = None
    """The encoder's last layer."""
    pooled: Float[Array, "B *T D"] | None = None
    """One vector for each text, by `model.pooler`; one for each token if that reads each."""
    class_logits: Float[Array, "B *T C"] | None = None
    """Logits of the pooler's classes."""
    embedding: Float[Array, "B E"] | None = None
    """One vector for each text, by `model.sentence_embedding`."""
    scores: LazyLogits | None = None
    """Logits that are computed on demand, where `model.head.loss_chunk` is set."""
    log_scale: Float[Array, ""] | None = None
    """The logarithm of a factor of cosines, by `model.sentence_embedding.learned_temperature`."""

    @property
    def loss_logits(self) -> Float[Array, "B T V"] | LazyLogits:
        """The logits for a loss. If they are `scores`, nothing reads `logits`, and the compiler removes their computation."""
        assert self.logits is not None
        return self.logits if self.scores is None else self.scores


def tokens_of(inputs: Inputs, side: str) -> Array:
    """Returns the tokens of a side, "source" or "target". Raises: ValueError where the inputs have none."""
    tokens: Array | None = inputs.source_tokens if side == "source" else inputs.target_tokens
    if tokens is None:
        raise ValueError(f"the inputs have no {side}_tokens: this model reads them")
    return tokens


def check_inputs(config: ModelConfig, inputs: Inputs) -> None:
    """Raises: ValueError where the inputs do not fit the model."""
    for side, num_layers in (("source", config.num_encoder_layers), ("target", config.num_decoder_layers)):
        if num_layers == 0:
            continue
        tokens = tokens_of(inputs, side)
        width = () if config.vocab_size else (config.embedding_width,)
        if tokens.ndim < 2 or tokens.shape[2:] != width:
            kind = (
                "token ids [batch, length]"
                if config.vocab_size
                else f"vectors [batch, length, {config.embedding_width}]"
            )
            raise ValueError(f"{side}_tokens have shape {tokens.shape}: they must be {kind}")
    if config.has_two_stacks and (inputs.source_segments is None) != (inputs.target_segments is None):
        present, missing = ("source", "target") if inputs.target_segments is None else ("target", "source")
        raise ValueError(
            f"the inputs have {present}_segments, but no {missing}_segments: both are needed to pair packed texts"
        )
    if inputs.token_types is not None and not config.num_token_types:
        raise ValueError("the inputs have `token_types`, but model.num_token_types is 0: leave them out")
    if inputs.predict_positions is not None and config.num_decoder_layers:
        raise ValueError("the inputs have `predict_positions`, but the model has a decoder: leave them out")
    if inputs.target_attention is not None and config.sliding_window is not None:
        raise ValueError(
            "the inputs have `target_attention`, but model.sliding_window is set, and both say which tokens a token attends to: "
            "leave one out"
        )
    if config.num_token_types and inputs.token_types is None:
        raise ValueError(
            f"model.num_token_types is {config.num_token_types}, but the inputs have no `token_types`: pass the type of "
            "each source token, 0 where there is one sentence only"
        )


def for_each_target(
    inputs: Inputs, memory: Float[Array, "M S D"] | None
) -> tuple[Inputs, Float[Array, "B S D"] | None]:
    """Returns the inputs of a decoder and its memory, with the rows of a source repeated for all targets that it has."""
    tokens = inputs.target_tokens
    if memory is None or tokens is None or len(memory) == len(tokens):
        return inputs, memory
    repeat = functools.partial(jnp.repeat, repeats=len(tokens) // len(memory), axis=0)
    mask = None if inputs.source_mask is None else repeat(inputs.source_mask)
    return inputs._replace(source_mask=mask), repeat(memory)


def example_inputs(config: ModelConfig) -> Inputs:
    """Returns the smallest inputs that the model reads, for initializing its parameters."""
    tokens = jnp.zeros((1, 1), jnp.int32) if config.vocab_size else jnp.zeros((1, 1, config.embedding_width))
    return Inputs(
        source_tokens=tokens if config.num_encoder_layers else None,
        target_tokens=tokens if config.num_decoder_layers else None,
        token_types=jnp.zeros((1, 1), jnp.int32) if config.num_token_types else None,
    )


def default_positions(
    tokens: Int[Array, "B T"] | Float[Array, "B T D"], position_padding_id: int | None = None
) -> Int[Array, "#B T"]:
    """Returns positions 0, 1, 2, … for every row; -1 for tokens with id `position_padding_id`, which take up no position."""
    if position_padding_id is None:
        return jnp.arange(tokens.shape[1])[None]
    counts = tokens != position_padding_id
    return jnp.where(counts, jnp.cumsum(counts, axis=1) - 1, -1)


def shifted(tokens: Int[Array, "B S"], start: int) -> Int[Array, "B S"]:
    """Returns the tokens shifted right by one, with `start` in front; the last token is dropped."""
    return jnp.concatenate([jnp.full_like(tokens[:, :1], start), tokens[:, :-1]], 1)


def read_types(model: ModelConfig, types: Int[Array, "B S"] | None) -> Int[Array, "B S"] | None:
    """Returns token types that the model has: None where it has none; types above the model's last become the last."""
    return None if types is None or not model.num_token_types else jnp.minimum(types, model.num_token_types - 1)


def text_inputs(
    model: ModelConfig, tokens: Int[Array, "B S"], mask: Bool[Array, "B S"], types: Int[Array, "B S"] | None = None
) -> Inputs:
    """Returns the inputs for texts that the model's first stack reads: the encoder, or the decoder of a decoder-only model."""
    if model.num_encoder_layers == 0:
        return Inputs(target_tokens=tokens, target_mask=mask)
    return Inputs(source_tokens=tokens, source_mask=mask, token_types=read_types(model, types))
