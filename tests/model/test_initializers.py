"""Oracles: statistics of the uniform, the normal and the truncated normal law."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.model.layers import Normal, XavierUniform

KEY = jax.random.key(17)
SIGMAS = 6  # a fair generator leaves ±6 standard deviations twice in 10^9 draws, for each number compared


def test_xavier_is_uniform_in_glorots_bound():
    """Glorot and Bengio 2010: ±sqrt(6 / (fan-in + fan-out)); a uniform law has standard deviation bound / sqrt(3)."""
    x = np.asarray(XavierUniform().kernel()(KEY, (101, 103), jnp.float32))
    bound = math.sqrt(6 / (101 + 103))
    assert 0.999 * bound < np.abs(x).max() <= bound
    assert abs(x.mean()) < SIGMAS * bound / math.sqrt(3 * x.size)
    # the variance of a square is bound^4 (1/5 - 1/9)
    assert abs((x**2).mean() - bound**2 / 3) < SIGMAS * bound**2 * math.sqrt((1 / 5 - 1 / 9) / x.size)


def test_xaviers_embeddings_are_normal_with_the_width_to_the_minus_half():
    x = np.asarray(XavierUniform().embedding(103)(KEY, (101, 103), jnp.float32)) * math.sqrt(103)
    assert abs(x.mean()) < SIGMAS / math.sqrt(x.size)
    assert abs((x**2).mean() - 1) < SIGMAS * math.sqrt(2 / x.size)
    assert np.abs(x).max() > 3  # no cut-off


@pytest.mark.parametrize("kind", ["kernel", "embedding"])
def test_normal_is_cut_off_at_two_standard_deviations(kind):
    """The variance of the normal law cut at ±2 is 1 - 4 φ(2) / (2 Φ(2) - 1) = 0.7737."""
    initializer = Normal(stddev=0.05).kernel() if kind == "kernel" else Normal(stddev=0.05).embedding(103)
    x = np.asarray(initializer(KEY, (101, 103), jnp.float32)) / 0.05
    variance = 1 - 4 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(math.sqrt(2))
    assert 1.99 < np.abs(x).max() <= 2
    assert abs((x**2).mean() - variance) < SIGMAS * math.sqrt(2 / x.size)
