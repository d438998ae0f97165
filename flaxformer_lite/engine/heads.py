"""The heads of an encoder by NumPy, from the run's own parameters. Their mathematics is that of `core/reading/heads.py`."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from flaxformer_lite.core.reading.heads import Layer, Pooler, SentenceEmbedding, pooled, text_vector


def unit_vectors(vectors: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
    """Returns the vectors scaled to length 1; one of length 0 stays."""
    lengths: np.ndarray = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-12)


def gelu(x: Float[np.ndarray, "*B"]) -> Float[np.ndarray, "*B"]:
    from scipy.special import erf  # type: ignore[import-untyped]  # of few heads

    return x * np.float32(0.5) * (1 + erf(x / np.float32(2**0.5)))


def gelu_tanh(x: Float[np.ndarray, "*B"]) -> Float[np.ndarray, "*B"]:
    return x * np.float32(0.5) * (1 + np.tanh(np.float32((2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x**3)))


ACTIVATIONS: dict[str, Layer] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "linear": lambda x: x,
}
"""The activations of heads, for arrays of NumPy."""


@dataclass(frozen=True)
class NumpyHeads:
    """The heads of a model with their parameters, for arrays of NumPy."""

    pooler: Pooler | None
    sentence_embedding: SentenceEmbedding | None
    params: Mapping[str, Float[np.ndarray, "..."]]
    """Parameters by their paths, such as `pooler/dense/kernel`."""

    def dense(self, path: str) -> Layer:
        kernel, bias = self.params.get(f"{path}/kernel"), self.params.get(f"{path}/bias", np.float32(0))
        return lambda x: x @ kernel + bias

    def vectors(self, hidden: Float[np.ndarray, "B T D"], mask: Bool[np.ndarray, "B T"]) -> Float[np.ndarray, "B E"]:
        """Returns the vector of each text."""
        assert self.sentence_embedding is not None  # by the check of the task
        layers = [self.dense(f"sentence_embedding/dense_{i}") for i in range(len(self.sentence_embedding.dense))]
        vectors = text_vector(self.sentence_embedding, hidden, mask, layers, ACTIVATIONS)
        return np.asarray(unit_vectors(vectors) if self.sentence_embedding.normalize else vectors, np.float32)

    def class_logits(
        self, hidden: Float[np.ndarray, "B T D"], mask: Bool[np.ndarray, "B T"]
    ) -> Float[np.ndarray, "B *T C"]:
        """Returns the logits of the classes of each text, or of each of its tokens."""
        assert self.pooler is not None  # by the check of the task
        layers = {name: self.dense(f"pooler/{name}") for name in ("dense", "classes")}
        _, logits = pooled(self.pooler, hidden, mask, None, layers, ACTIVATIONS)
        return np.asarray(logits, np.float32)
