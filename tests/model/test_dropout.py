"""Oracles: statistics of the binomial law; gradients; one device's bits on a mesh."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from flaxformer_lite.model.layers import DropoutRates, apply_dropout, dropout

T, D = 3, 5
KEY = jax.random.key(17)
drop = jax.jit(dropout, static_argnums=1)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


ROWS, WIDTH = 499, 1013  # an odd width: the last random word of a row serves one element
SIGMAS = 6  # a fair generator leaves ±6 standard deviations twice in 10^9 draws, for each number compared


def assert_share(kept: np.ndarray, probability: float) -> None:
    error = math.sqrt(probability * (1 - probability) / kept.size)
    assert abs(kept.mean() - probability) < SIGMAS * error


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.7])
def test_dropout_keeps_its_share_and_the_mean(rate):
    """The kept share, and so the mean of ones, within 6 standard deviations: of all, of the upper and the lower rows, and of
    both members of a pair, which come from one random word, and of neighbours from two."""
    out = np.asarray(drop(jnp.ones((ROWS, WIDTH)), rate, KEY), np.float64)
    kept, keep = out != 0, 1 - round(rate * 65536) / 65536
    np.testing.assert_allclose(out[kept], 1 / keep, rtol=2e-7)
    half = (ROWS + 1) // 2
    upper, lower = kept[:half], kept[half:]
    for share in (kept, upper, lower, kept[-1]):
        assert_share(share, keep)
    for pairs in (upper[: ROWS - half] & lower, kept[:, :-1] & kept[:, 1:], kept[:-1] & kept[1:]):
        assert_share(pairs, keep**2)


@pytest.mark.parametrize(("length", "width"), [(3, 1), (3, 7), (1, 2), (2, 2)])
def test_dropout_keeps_the_shape_and_scales_what_it_keeps(length, width):
    x = normal(6, 11, length, width)
    with jax.enable_x64(True):
        out = np.asarray(drop(jnp.asarray(x), 0.25, KEY))
    kept = out != 0
    assert out.shape == x.shape and 0 < kept.sum() < x.size
    np.testing.assert_allclose(out[kept], x[kept] / 0.75, rtol=1e-15)


def test_dropout_rounds_the_rate_to_a_multiple_of_2_to_the_minus_16():
    """A rate of 2^-16 drops about 16 of a million (fewer than 1 or more than 45 once in 10^6 keys); a quarter of it, none."""
    x = jnp.ones((1009, WIDTH))
    out = np.asarray(drop(x, 2.0**-16, KEY))
    assert 1 <= (out == 0).sum() <= 45
    np.testing.assert_allclose(out[out != 0], 65536 / 65535, rtol=1e-7)
    np.testing.assert_array_equal(drop(x, 2.0**-18, KEY), x)


def test_the_gradient_is_exactly_zero_where_dropped():
    x, c = normal(7, 11, D), normal(8, 11, D)
    with jax.enable_x64(True):
        kept = np.asarray(drop(jnp.ones((11, D)), 0.5, KEY)) != 0
        gradient = np.asarray(jax.jit(jax.grad(lambda x: (dropout(x, 0.5, KEY) * c).sum()))(jnp.asarray(x)))
    assert 0 < kept.sum() < kept.size
    np.testing.assert_array_equal(gradient, np.where(kept, 2 * c, 0))


def test_dropout_is_a_function_of_the_key():
    x, other = jnp.ones((11, 13)), jax.random.key(19)
    np.testing.assert_array_equal(dropout(x, 0.5, KEY), drop(x, 0.5, KEY))
    assert (np.asarray(drop(x, 0.5, KEY)) != np.asarray(drop(x, 0.5, other))).any()


@pytest.mark.parametrize("axes", [("data",), (None, None, "data"), ("data", None, "tensor")])
def test_dropout_of_a_sharded_array_has_one_devices_bits(axes):
    """Eight virtual devices, the batch sharded, the width sharded, and both."""
    x = jnp.asarray(normal(9, 8, T, 16), jnp.float32)
    sizes, names = ((2, 4), ("data", "tensor")) if "tensor" in axes else ((8,), ("data",))
    mesh = jax.make_mesh(sizes, names, axis_types=(jax.sharding.AxisType.Auto,) * len(sizes))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
    out = drop(jax.device_put(x, sharding), 0.3, KEY)
    assert len(out.sharding.device_set) == 8
    np.testing.assert_array_equal(out, drop(x, 0.3, KEY))


def test_dropout_of_nearly_everything_stays_finite():
    assert np.isfinite(drop(jnp.ones((11, 13)), 1 - 1e-7, KEY)).all()


def test_dropout_of_bfloat16_keeps_the_mean():
    """The rounding of single elements averages out: 500,000 of them are off by 2^-8 / sqrt(3 n) or 3e-6 together."""
    x = np.asarray(jnp.asarray(1 + np.random.default_rng(1).random((ROWS, WIDTH)), jnp.bfloat16))
    out = np.asarray(drop(jnp.asarray(x), 0.1, KEY), np.float64)
    kept = out != 0
    assert out[kept].mean() / x.astype(np.float64)[kept].mean() == pytest.approx(65536 / (65536 - 6554), rel=1e-4)


@pytest.mark.parametrize("name", ["embedding_rate", "attention_rate", "feed_forward_rate", "residual_rate"])
@pytest.mark.parametrize("rate", [-0.1, 1.0, math.nan])
def test_dropout_rates_are_probabilities_below_one(name, rate):
    with pytest.raises(
        ValueError, match=rf"^model\.dropout\.{name} is {rate}: it must be at least 0 and below 1; .*\Z"
    ):
        DropoutRates(**{name: rate})


def test_dropout_that_scales_in_evaluation():
    """Training leaves what it keeps as it is; evaluation multiplies all by what is kept on average."""

    class Drop(nn.Module):
        @nn.compact
        def __call__(self, x):
            return apply_dropout(self, x, 0.25, "evaluation")

    x = jnp.asarray(normal(7, 101, 103), jnp.float32)
    trained = np.asarray(Drop().apply({}, x, rngs={"dropout": KEY}))
    assert set(np.unique(trained[trained != np.asarray(x)])) == {0.0}
    assert abs((trained == 0).mean() - 0.25) < 0.02
    np.testing.assert_array_equal(Drop().apply({}, x), x * np.float32(0.75))
