"""Attention weights of a model for a text, or a pair of texts, for pictures."""

import functools
from dataclasses import dataclass
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from flaxformer_lite.model import Inputs, Transformer
from flaxformer_lite.run.text_predictor import MASK
from flaxformer_lite.text import Tokenizer, Tokenizers

Kind = Literal["cross", "encoder", "decoder"]
"""An attention: of the decoder to the source, of the encoder to itself, of the decoder to itself."""


@dataclass(frozen=True)
class AttentionWeights:
    """The attention weights of every layer and head, and the pieces along their axes.

    Row i of `decoder` and `cross` predicts piece i + 1 of the target, which an encoder–decoder reads after `decode.bos_id`. An
    attention that the model lacks has 0 layers; a stack that it lacks has no pieces.
    """

    source_pieces: list[str]
    target_pieces: list[str]
    encoder: Float[np.ndarray, "_ _ S S"]
    decoder: Float[np.ndarray, "_ _ T T"]
    cross: Float[np.ndarray, "_ _ T S"]

    @property
    def kinds(self) -> list[Kind]:
        """The attentions that the model has."""
        return [kind for kind in get_args(Kind) if len(getattr(self, kind))]


def attention_weights(
    model: Transformer,
    params: PyTree,
    tokenizers: Tokenizers,
    sources: list[int],
    targets: list[int],
    prompt_length: int = 0,
) -> AttentionWeights:
    """Returns the weights for a source and a target with their special ids. One that no stack of the model reads is empty.

    The first `prompt_length` tokens of the target also attend to each other.
    """
    source, target = (jnp.asarray([ids]) if ids else None for ids in (sources, targets))
    attends = jnp.tri(len(targets), dtype=bool) | (jnp.arange(len(targets)) < prompt_length)
    inputs = Inputs(
        source_tokens=source,
        target_tokens=target,
        token_types=jnp.zeros((1, len(sources)), jnp.int32) if model.config.num_token_types else None,
        target_attention=attends[None, None] if prompt_length else None,
    )
    apply = jax.jit(functools.partial(model.apply, mutable=["intermediates"]))
    _, variables = apply({"params": params}, inputs)

    def weights(stack: str, attention: str) -> Float[np.ndarray, "L N T S"]:
        queries = targets if stack == "decoder" else sources
        keys = queries if attention == "attention" else sources
        if not (queries and keys):
            return np.zeros((0, model.config.num_heads, len(queries), len(keys)), np.float32)
        return np.asarray(variables["intermediates"][stack]["layers"][attention]["weights"][0][:, 0])

    return AttentionWeights(
        source_pieces=labels(tokenizers.source, sources, "" if targets else MASK),
        target_pieces=labels(tokenizers.target, targets),
        encoder=weights("encoder", "attention"),
        decoder=weights("decoder", "attention"),
        cross=weights("decoder", "cross_attention"),
    )


def labels(tokenizer: Tokenizer, ids: list[int], other: str = "") -> list[str]:
    """Returns a label for each id: its piece; of an id that the tokenizer does not have, `other` or the number."""
    return [tokenizer.pieces([i])[0] if i < tokenizer.vocab_size else other or str(i) for i in ids]
