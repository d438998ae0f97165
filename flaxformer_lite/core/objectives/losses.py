"""Losses and counts of one batch, as sums with their counts: never means, so that a batch can be split in any way."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.core.model.inputs import LazyLogits
from flaxformer_lite.core.model.layers import accumulation_dtype

# What losses and metrics return ---------------------------------------------------------------------------------------


class LossTerm(NamedTuple):
    """One term of a loss, or one metric: a sum over targets and its count.

    The training loss is the sum over all terms of `weight * sum / count`, with sums and counts of the whole batch.
    """

    sum: Float[Array, "*_"]
    """A scalar. In a metric, possibly a table."""
    count: Float[Array, ""]  # type: ignore[assignment]  # tuples have a method of that name
    """The sum of the weights of all targets."""
    weight: float = 1.0
    """The factor of the term in the training loss."""

    @property
    def mean(self) -> float:
        return float(self.sum / self.count)

    def across(self, axis_name: str) -> "LossTerm":
        """Returns the term of all devices of a `pmap`: sums are added."""
        return self._replace(sum=jax.lax.psum(self.sum, axis_name), count=jax.lax.psum(self.count, axis_name))

    def merged(self) -> "LossTerm":
        """Returns the term of all micro-batches, whose number is a first axis here: sums are added."""
        return LossTerm(self.sum.sum(0), self.count.sum(0), self.weight)


class PerRowMetric(NamedTuple):
    """M numbers for each row, for figures that need all rows of the evaluation at once, such as correlations."""

    values: Float[Array, "B M"] | Int[Array, "B M"]
    weights: Float[Array, "B"]
    """1, or 0 for a padding row of the batch."""

    def across(self, axis_name: str) -> "PerRowMetric":
        """Returns the rows of all devices of a `pmap`: rows are concatenated."""
        return PerRowMetric(*(jax.lax.all_gather(x, axis_name, tiled=True) for x in self))

    def merged(self) -> "PerRowMetric":
        """Returns the rows of all micro-batches, whose number is a first axis here, in the order of the batch."""
        return PerRowMetric(*(x.swapaxes(0, 1).reshape(-1, *x.shape[2:]) for x in self))


Counts = dict[str, LossTerm | PerRowMetric]
"""The terms and the numbers of rows that an evaluation counts, by their names."""


# From logits to the numbers that losses need ----------------------------------------------------------------------------


class LogitStats(NamedTuple):
    """The numbers that losses need of the logits z: four a position instead of V."""

    log_normalizer: Float[Array, "*B"]
    """log Σ exp z"""
    target_logit: Float[Array, "*B"]
    """z[target]"""
    mean_logit: Float[Array, "*B"]
    """The mean of z over all V classes."""
    correct: Bool[Array, "*B"]
    """Whether the most probable class is the target."""


Logits = Float[Array, "*B V"] | LazyLogits | LogitStats
"""Logits, the means to compute them, or their stats."""


def logit_stats(logits: Logits, targets: Int[Array, "*B"]) -> LogitStats:
    """Returns the stats of the logits for these targets; stats are returned as they are.

    `LazyLogits` are computed in chunks, and again in the backward pass, so that only one chunk is ever in memory.
    """
    if isinstance(logits, LogitStats):
        return logits
    if isinstance(logits, LazyLogits):
        chunk = logits.chunk
        if chunk is None or chunk >= targets.shape[1]:
            return logit_stats(logits.logits(), targets)
        return chunked_logit_stats(logits, targets, chunk)
    chex.assert_equal_shape_prefix((logits, targets), targets.ndim)  # else targets would be broadcast, without a word
    z = logits.astype(accumulation_dtype(logits))
    # Compared, which the compiler fuses: for `take_along_axis` it would store all logits in the type of the sums.
    is_target = jnp.arange(z.shape[-1]) == targets[..., None]
    target_logit = jnp.where(is_target, z, 0).sum(-1)
    return LogitStats(jax.nn.logsumexp(z, -1), target_logit, z.mean(-1), logits.argmax(-1) == targets)


def chunked_logit_stats(logits: LazyLogits, targets: Int[Array, "B T"], chunk: int) -> LogitStats:
    """Returns the stats, computed for `chunk` positions of every row at a time; the last chunk is padded.

    Chunks divide the length and not the rows, so that a mesh that divides the rows of a batch divides every chunk.
    """
    length = targets.shape[1]

    def split(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, -length % chunk), *((0, 0),) * (x.ndim - 2)))
        return x.reshape(x.shape[0], -1, chunk, *x.shape[2:]).swapaxes(0, 1)

    @jax.checkpoint
    def chunk_stats(weights: tuple[Array, Array | None], hidden: Array, targets: Array) -> LogitStats:
        piece = replace(logits, hidden=hidden, kernel=weights[0], bias=weights[1])
        return logit_stats(piece.logits(), targets)

    weights = (logits.kernel, logits.bias)
    _, parts = jax.lax.scan(lambda _, x: (None, chunk_stats(weights, *x)), None, (split(logits.hidden), split(targets)))
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(x.shape[1], -1)[:, :length], parts)


# Losses -----------------------------------------------------------------------------------------------------------------


def cross_entropy(
    logits: Logits, targets: Int[Array, "*B"], weights: Float[Array, "*B"], *, label_smoothing: float = 0.0
) -> LossTerm:
    """Returns the weighted cross-entropy in nats: `-(1 - e) log p[target] - e/V Σ log p` with smoothing e, over all V classes.

    The target's own class gets the probability `1 - e + e/V`. The padding class gets its `e/V` like any other.

    Reference: Szegedy et al. 2016, arXiv:1512.00567, section 7.
    """
    stats = logit_stats(logits, targets)
    losses = stats.log_normalizer - (1 - label_smoothing) * stats.target_logit
    if label_smoothing:
        losses = losses - label_smoothing * stats.mean_logit
    return LossTerm((losses * weights).sum(), weights.sum())


def z_loss(logits: Logits, weights: Float[Array, "*B"], weight: float) -> LossTerm:
    """Returns the weighted squared logarithm of the softmax's normalizer, which pulls the normalizer towards 1.

    Reference: Chowdhery et al. 2022, arXiv:2204.02311, section 5.
    """
    stats = logit_stats(logits, jnp.zeros(weights.shape, jnp.int32))
    return LossTerm((stats.log_normalizer**2 * weights).sum(), weights.sum(), weight)


def binary_cross_entropy(
    logits: Float[Array, "*B C"],
    targets: Float[Array, "*B C"],
    weights: Float[Array, "*B 1"],
    positive_weights: Sequence[float] = (),
) -> LossTerm:
    """Returns the binary cross-entropy of each class, averaged over the C classes: a row counts once.

    A target of a class is 1 or 0, or a probability. `positive_weights` multiply, class by class, the part of the target 1; ():
    all 1.
    """
    z = logits.astype(accumulation_dtype(logits))
    positive = jnp.asarray(positive_weights, z.dtype) if positive_weights else 1.0
    losses = positive * targets * jax.nn.softplus(-z) + (1 - targets) * jax.nn.softplus(z)
    return LossTerm((losses.mean(-1, keepdims=True) * weights).sum(), weights.sum())


def squared_error(values: Float[Array, "*B"], targets: Float[Array, "*B"], weights: Float[Array, "*B"]) -> LossTerm:
    differences = values.astype(accumulation_dtype(values)) - targets
    return LossTerm((differences**2 * weights).sum(), weights.sum())


# Counts -----------------------------------------------------------------------------------------------------------------


def accuracy(logits: Logits, targets: Int[Array, "*B"], weights: Float[Array, "*B"]) -> LossTerm:
    """Returns the weight of the positions whose most probable class is the target."""
    return LossTerm((logit_stats(logits, targets).correct * weights).sum(), weights.sum())


def confusion(logits: Float[Array, "*B C"], targets: Int[Array, "*B"], weights: Float[Array, "*B"]) -> LossTerm:
    """Returns the confusion matrix `[C, C]`: the weight of each true class (row) predicted as each class (column)."""
    classes = logits.shape[-1]
    cells = (targets * classes + logits.argmax(-1)).reshape(-1)
    table = jnp.zeros(classes**2, weights.dtype).at[cells].add(weights.reshape(-1))
    return LossTerm(table.reshape(classes, classes), weights.sum())


def check_class_weights(class_weights: Sequence[float], names: str, number: int) -> None:
    """Raises: ValueError unless each class has a weight, or no class has one. names: the setting with the names of the classes."""
    if len(class_weights) not in (0, number):
        raise ValueError(
            f"objective.class_weights has {len(class_weights)} numbers, but {names} {number} names: give each class a weight, or "
            "leave the weights out"
        )


def weights_of(
    class_weights: Sequence[float], targets: Int[Array, "*B"], weights: Float[Array, "*B"]
) -> Float[Array, "*B"]:
    """Returns the weights of targets, each times that of its class; as they are without weights of classes."""
    return weights * jnp.asarray(class_weights, weights.dtype)[targets] if class_weights else weights
