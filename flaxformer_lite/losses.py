"""Token-weighted losses, as sums with their counts: never means of means."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flaxformer_lite.layers import accumulation_dtype


class Term(NamedTuple):
    """One part of an objective. The objective is the sum over its terms of `weight * sum / count`, with global sums and counts."""

    sum: Float[Array, ""]
    count: Float[Array, ""]  # type: ignore[assignment]  # tuples have a method of that name
    weight: float = 1.0

    def across(self, axis_name: str | None) -> "Term":
        """The term over all devices of a `pmap`, where there is one."""
        if axis_name is None:
            return self
        return self._replace(sum=jax.lax.psum(self.sum, axis_name), count=jax.lax.psum(self.count, axis_name))


def cross_entropy(
    logits: Float[Array, "*B V"],
    targets: Int[Array, "*B"],
    weights: Float[Array, "*B"],
    *,
    label_smoothing: float = 0.0,
) -> Term:
    """The weighted sum of `-(1 - e) log p[target] - e/V * sum over all V classes of log p`, in nats, and the sum of the weights.

    With smoothing `e` the target's own class gets `1 - e + e/V`; the padding class has its share like any other.

    Reference: Szegedy et al. 2016, arXiv:1512.00567, section 7.
    """
    logits = logits.astype(accumulation_dtype(logits))
    at_target = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    losses = jax.nn.logsumexp(logits, -1) - (1 - label_smoothing) * at_target
    if label_smoothing:
        losses = losses - label_smoothing * logits.mean(-1)
    return Term((losses * weights).sum(), weights.sum())


def z_loss(logits: Float[Array, "*B V"], weights: Float[Array, "*B"], weight: float) -> Term:
    """The weighted sum of the squared logarithm of the softmax's denominator, which pulls it towards 1, and the sum of the weights.

    Reference: Chowdhery et al. 2022, arXiv:2204.02311, section 5.
    """
    log_denominator = jax.nn.logsumexp(logits.astype(accumulation_dtype(logits)), -1)
    return Term((log_denominator**2 * weights).sum(), weights.sum(), weight)


def accuracy(logits: Float[Array, "*B V"], targets: Int[Array, "*B"], weights: Float[Array, "*B"]) -> Term:
    """How much weight lies on positions where the most probable class is the target."""
    return Term(((logits.argmax(-1) == targets) * weights).sum(), weights.sum())
