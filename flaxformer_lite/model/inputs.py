"""What goes into a model and what comes out, with the checks of both."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.heads import LazyLogits


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
    scores: LazyLogits | None = None
    """What the logits are made of, where `model.head.loss_chunk` wants them made piece by piece."""

    @property
    def loss_logits(self) -> Float[Array, "B T V"] | LazyLogits:
        """What losses read. Where it is `scores`, nobody reads the logits, and the compiler never makes them."""
        assert self.logits is not None
        return self.logits if self.scores is None else self.scores


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
    if inputs.target_attention is not None and config.sliding_window is not None:
        raise ValueError(
            "the inputs have `target_attention`, but model.sliding_window is set, and both say which tokens a token attends to: "
            "leave one out"
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


def default_positions(
    tokens: Int[Array, "B T"] | Float[Array, "B T D"], position_padding_id: int | None = None
) -> Int[Array, "#B T"]:
    """0, 1, 2, … for every row; tokens that do not count are at -1."""
    if position_padding_id is None:
        return jnp.arange(tokens.shape[1])[None]
    counts = tokens != position_padding_id
    return jnp.where(counts, jnp.cumsum(counts, axis=1) - 1, -1)


def shifted(tokens: Int[Array, "B S"], start: int) -> Int[Array, "B S"]:
    """The tokens one place later, after `start`; the last drops out."""
    return jnp.concatenate([jnp.full_like(tokens[:, :1], start), tokens[:, :-1]], 1)


def read_types(model: ModelConfig, types: Int[Array, "B S"] | None) -> Int[Array, "B S"] | None:
    """The token types as far as the model has them: None where it has none, none above the last that it has."""
    return None if types is None or not model.num_token_types else jnp.minimum(types, model.num_token_types - 1)


def text_inputs(
    model: ModelConfig,
    tokens: Int[Array, "B S"],
    mask: Bool[Array, "B S"],
    types: Int[Array, "B S"] | None = None,
) -> Inputs:
    """What a model reads of some texts with its first stack, an encoder or a decoder alone."""
    if model.num_encoder_layers == 0:
        return Inputs(target_tokens=tokens, target_mask=mask)
    return Inputs(source_tokens=tokens, source_mask=mask, token_types=read_types(model, types))


def has_two_stacks(model: ModelConfig) -> bool:
    return model.num_encoder_layers > 0 and model.num_decoder_layers > 0


def check_one_stack(model: ModelConfig, what: str) -> None:
    """Raises: ValueError where the model has two stacks; `what` says who reads one."""
    if has_two_stacks(model):
        raise ValueError(
            f"the model has an encoder and a decoder (model.num_encoder_layers {model.num_encoder_layers}, "
            f"model.num_decoder_layers {model.num_decoder_layers}), but {what} reads whole texts with one of them: use a model "
            "with one"
        )
