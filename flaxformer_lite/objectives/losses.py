"""Token-weighted losses, as sums with their counts: never means of means."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.model.heads import LazyLogits
from flaxformer_lite.model.numerics import accumulation_dtype


class LossTerm(NamedTuple):
    """One part of an objective. The objective is the sum over its terms of `weight * sum / count`, with global sums and counts."""

    sum: Float[Array, "*_"]
    """A number; only `metrics` may have tables of them."""
    count: Float[Array, ""]  # type: ignore[assignment]  # tuples have a method of that name
    weight: float = 1.0

    @property
    def mean(self) -> float:
        """The sum divided by the count."""
        return float(self.sum / self.count)

    def across(self, axis_name: str) -> "LossTerm":
        """The term over all devices of a `pmap`."""
        return self._replace(sum=jax.lax.psum(self.sum, axis_name), count=jax.lax.psum(self.count, axis_name))


class PerRowMetric(NamedTuple):
    """What was measured of each row, for figures that need all rows at once."""

    values: Float[Array, "B K"]
    weights: Float[Array, "B"]
    """0 in rows that only fill up a batch."""

    def across(self, axis_name: str) -> "PerRowMetric":
        """The rows of all devices of a `pmap`."""
        return PerRowMetric(*(jax.lax.all_gather(x, axis_name, tiled=True) for x in self))


class LogitStats(NamedTuple):
    """All that losses need of the logits `z`: four numbers a position, in place of V."""

    log_denominator: Float[Array, "*B"]
    """log sum exp z"""
    at_target: Float[Array, "*B"]
    """z[target]"""
    mean: Float[Array, "*B"]
    """The mean of z over all V classes."""
    right: Bool[Array, "*B"]
    """Whether the most probable class is the target."""


Logits = Float[Array, "*B V"] | LazyLogits | LogitStats
"""Logits as they are, before they are made, and as they were read."""


def logit_stats(logits: Logits, targets: Int[Array, "*B"]) -> LogitStats:
    """What losses need of the logits. Of `LazyLogits` no more than a chunk is held, also on the way back, where each is made again.

    Chunks are cut from the length of the rows, so that a mesh which divides the rows of a batch divides every chunk.
    """
    if isinstance(logits, LogitStats):
        return logits
    if isinstance(logits, LazyLogits):
        chunk = logits.chunk
        if chunk is None or chunk >= targets.shape[1]:
            return logit_stats(logits.logits(), targets)
        return read_chunks(logits, targets, chunk)
    wide = logits.astype(accumulation_dtype(logits))
    at_target = jnp.take_along_axis(wide, targets[..., None], -1)[..., 0]
    return LogitStats(jax.nn.logsumexp(wide, -1), at_target, wide.mean(-1), logits.argmax(-1) == targets)


def read_chunks(scores: LazyLogits, targets: Int[Array, "B T"], chunk: int) -> LogitStats:
    """What losses need, `chunk` positions of each row at a time; the last may be short."""
    length = targets.shape[1]

    def cut(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, -length % chunk), *((0, 0),) * (x.ndim - 2)))
        return x.reshape(x.shape[0], -1, chunk, *x.shape[2:]).swapaxes(0, 1)

    @jax.checkpoint
    def of_chunk(weights: tuple[Array, Array | None], hidden: Array, targets: Array) -> LogitStats:
        part = replace(scores, hidden=hidden, kernel=weights[0], bias=weights[1])
        return logit_stats(part.logits(), targets)

    weights = (scores.kernel, scores.bias)
    _, parts = jax.lax.scan(lambda _, x: (None, of_chunk(weights, *x)), None, (cut(scores.hidden), cut(targets)))
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(x.shape[1], -1)[:, :length], parts)


def cross_entropy(
    logits: Logits,
    targets: Int[Array, "*B"],
    weights: Float[Array, "*B"],
    *,
    label_smoothing: float = 0.0,
) -> LossTerm:
    """The weighted sum of `-(1 - e) log p[target] - e/V * sum over all V classes of log p`, in nats, and the sum of the weights.

    With smoothing `e` the target's own class gets `1 - e + e/V`; the padding class has its share like any other.

    Reference: Szegedy et al. 2016, arXiv:1512.00567, section 7.
    """
    seen = logit_stats(logits, targets)
    losses = seen.log_denominator - (1 - label_smoothing) * seen.at_target
    if label_smoothing:
        losses = losses - label_smoothing * seen.mean
    return LossTerm((losses * weights).sum(), weights.sum())


def z_loss(logits: Logits, weights: Float[Array, "*B"], weight: float) -> LossTerm:
    """The weighted sum of the squared logarithm of the softmax's denominator, which pulls it towards 1, and the sum of the weights.

    Reference: Chowdhery et al. 2022, arXiv:2204.02311, section 5.
    """
    seen = logit_stats(logits, jnp.zeros(weights.shape, jnp.int32))
    return LossTerm((seen.log_denominator**2 * weights).sum(), weights.sum(), weight)


def squared_error(values: Float[Array, "*B"], targets: Float[Array, "*B"], weights: Float[Array, "*B"]) -> LossTerm:
    """The weighted sum of the squared differences, and the sum of the weights."""
    differences = values.astype(accumulation_dtype(values)) - targets
    return LossTerm((differences**2 * weights).sum(), weights.sum())


def confusion(logits: Float[Array, "*B C"], targets: Int[Array, "*B"], weights: Float[Array, "*B"]) -> LossTerm:
    """How much weight of each class, a row, lies on positions where which class, a column, is the most probable one."""
    classes = logits.shape[-1]
    pairs = (targets * classes + logits.argmax(-1)).reshape(-1)
    table = jnp.zeros(classes**2, weights.dtype).at[pairs].add(weights.reshape(-1))
    return LossTerm(table.reshape(classes, classes), weights.sum())


def accuracy(logits: Logits, targets: Int[Array, "*B"], weights: Float[Array, "*B"]) -> LossTerm:
    """How much weight lies on positions where the most probable class is the target."""
    return LossTerm((logit_stats(logits, targets).right * weights).sum(), weights.sum())
