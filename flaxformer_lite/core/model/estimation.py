"""The parts of COMET: the rating of a translation by the vectors of texts, and the mix of an encoder's layers below the vectors.

Reference: Rei et al. 2020, arXiv:2009.09025, section 2.
"""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.nn.initializers import Initializer
from jaxtyping import Array, Bool, Float

from flaxformer_lite.core.base.bounds import Checked, Width
from flaxformer_lite.core.model.layers import Dense, accumulation_dtype


@dataclass(frozen=True, kw_only=True)
class LayerMix(Checked, at="model.layer_mix"):
    """The encoder's output as a learned mix of its embeddings and all layers: a factor times the weighted sum.

    Reference: Peters et al. 2018, arXiv:1802.05365, section 3.2.
    """

    weights: Literal["softmax", "sparsemax"] = "softmax"
    """Function that makes the weights sum to 1. sparsemax: most are 0 (Martins & Astudillo 2016, arXiv:1602.02068, section 2)."""
    normalize: bool = False
    """Before the sum, scale each layer to mean 0 and variance 1 over all tokens of a text."""


class MixedLayers(nn.Module):
    """Module for the mix of an encoder's layers; parameters `weights` `[L]` and `factor`. The embeddings are the first layer."""

    settings: LayerMix

    @nn.compact
    def __call__(self, layers: Float[Array, "L B T D"], mask: Bool[Array, "B T"] | None) -> Float[Array, "B T D"]:
        weights = self.param("weights", nn.initializers.zeros, (len(layers),), jnp.float32)
        factor = self.param("factor", nn.initializers.ones, (1,), jnp.float32)
        x = layers.astype(accumulation_dtype(layers))
        if self.settings.normalize:
            shown = None if mask is None else mask[None, ..., None]
            x = (x - x.mean((2, 3), keepdims=True, where=shown)) / jnp.sqrt(
                x.var((2, 3), keepdims=True, where=shown) + 1e-12
            )
        shares = jax.nn.softmax(weights) if self.settings.weights == "softmax" else sparsemax(weights)
        return (factor * jnp.tensordot(shares, x, 1)).astype(layers.dtype)


def sparsemax(x: Float[Array, "L"]) -> Float[Array, "L"]:
    """Returns the nearest point of the simplex: numbers that are at least 0 and sum to 1.

    Reference: Martins & Astudillo 2016, arXiv:1602.02068, algorithm 1.
    """
    descending = jnp.sort(x)[::-1]
    excess = (jnp.cumsum(descending) - 1) / jnp.arange(1, len(x) + 1)
    return jnp.maximum(x - excess[(descending > excess).sum() - 1], 0)


@dataclass(frozen=True, kw_only=True)
class Estimator(Checked, at="model.estimator"):
    """A number for a translation, from the vectors of its source, of itself and perhaps of a reference: dense layers over them.

    They read the vectors of the translation and of the reference (without one, the source), and the product and the absolute
    difference of the translation's with each other one.

    Reference: Rei et al. 2020, arXiv:2009.09025, section 2.4 (COMET).
    """

    reference: bool = True
    """Whether a reference is read."""
    widths: tuple[Width, ...] = (3072, 1024)
    """Width of each dense layer before the one that gives the number; tanh follows each."""


class Estimation(nn.Module):
    """Module for the rating of a translation; parameters `dense_0` and so on, one more than `widths`."""

    settings: Estimator
    kernel_init: Initializer

    @nn.compact
    def __call__(
        self, source: Float[Array, "B E"], translation: Float[Array, "B E"], reference: Float[Array, "B E"]
    ) -> Float[Array, "B"]:
        others = [reference, source] if self.settings.reference else [source]
        features = [translation, others[0]]
        for other in others:
            features += [translation * other, jnp.abs(translation - other)]
        x = jnp.concatenate(features, -1)
        for i, width in enumerate((*self.settings.widths, 1)):
            x = jnp.tanh(x) if i else x
            x = Dense(width, name=f"dense_{i}", dtype=x.dtype, kernel_init=self.kernel_init)(x)
        return x[:, 0]
