"""Attention weights of a model for one pair of texts, for pictures."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from flaxformer_lite.model import Inputs, Transformer
from flaxformer_lite.text import Tokenizers


@dataclass(frozen=True)
class AttentionWeights:
    """The attention weights of every layer and head, and the pieces along their axes.

    The decoder reads `decode.bos_id`, then the target: row i of `decoder` and `cross` predicts piece i + 1.
    """

    source_pieces: list[str]
    target_pieces: list[str]
    encoder: Float[np.ndarray, "L N S S"]
    decoder: Float[np.ndarray, "L N T T"]
    cross: Float[np.ndarray, "L N T S"]


def attention_weights(
    model: Transformer, params: PyTree, tokenizers: Tokenizers, sources: list[int], targets: list[int]
) -> AttentionWeights:
    """Returns the weights of an encoder–decoder for one source and one target, both with their special ids."""
    inputs = Inputs(source_tokens=jnp.asarray([sources]), target_tokens=jnp.asarray([targets]))
    apply = jax.jit(functools.partial(model.apply, mutable=["intermediates"]))
    _, variables = apply({"params": params}, inputs)

    def weights(stack: str, attention: str) -> Float[np.ndarray, "L N T S"]:
        return np.asarray(variables["intermediates"][stack]["layers"][attention]["weights"][0][:, 0])

    return AttentionWeights(
        source_pieces=tokenizers.source.pieces(sources),
        target_pieces=tokenizers.target.pieces(targets),
        encoder=weights("encoder", "attention"),
        decoder=weights("decoder", "attention"),
        cross=weights("decoder", "cross_attention"),
    )
