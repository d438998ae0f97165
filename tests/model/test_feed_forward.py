"""Oracles: float64 numpy with math.erf and math.tanh; hand-worked dropout of the inner activations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.model.layers import ACTIVATIONS, FeedForward
from tests.support import reference

B, T, D, F = 2, 3, 5, 7
KEY = jax.random.key(17)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def at_last_axis(function, x: np.ndarray) -> np.ndarray:
    return np.apply_along_axis(function, -1, x)


def feed_forward_params(activation: str, bias: bool) -> dict:
    names = {"up": (D, F), "down": (F, D)} | ({"gate": (D, F)} if activation in reference.GATED else {})
    params = {}
    for seed, (name, shape) in enumerate(names.items()):
        params[name] = {"kernel": normal(seed, *shape)} | ({"bias": normal(seed + 10, shape[1])} if bias else {})
    return params


@pytest.mark.parametrize(
    ("activation", "bias"),
    [*((name, True) for name in (*reference.PLAIN, *reference.GATED)), ("relu", False), ("swiglu", False)],
)
def test_feed_forward_equals_the_float64_reference(activation, bias):
    x, params = 2 * normal(20, B, T, D), feed_forward_params(activation, bias)
    with jax.enable_x64(True):
        layer = FeedForward(D, F, activation, bias, dtype=jnp.float64)
        shapes = jax.eval_shape(layer.init, KEY, x)["params"]
        got = jax.jit(layer.apply)({"params": params}, x)
    assert jax.tree.map(np.shape, shapes) == jax.tree.map(np.shape, params)
    want = at_last_axis(lambda v: reference.feed_forward(v, params, activation), x)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_every_activation_is_tested():
    assert set(ACTIVATIONS) == {*reference.PLAIN, *reference.GATED}


def test_feed_forward_drops_out_only_with_a_key():
    x, params = jnp.asarray(normal(5, B, T, D), jnp.float32), {"params": feed_forward_params("relu", True)}
    plain, drops = (jax.jit(FeedForward(D, F, dropout_rate=rate).apply) for rate in (0, 0.5))
    expected = plain(params, x)
    np.testing.assert_array_equal(drops(params, x), expected)
    np.testing.assert_array_equal(plain(params, x, rngs={"dropout": KEY}), expected)
    assert not np.allclose(drops(params, x, rngs={"dropout": KEY}), expected)


def test_feed_forward_drops_the_inner_activations():
    """Seven inner activations of 1: what is left of them is doubled and summed into every column alike."""
    layer = FeedForward(D, F, bias=False, dropout_rate=0.5)
    params = {"up": {"kernel": np.full((D, F), 1 / D)}, "down": {"kernel": np.ones((F, D))}}
    out = np.asarray(jax.jit(layer.apply)({"params": params}, jnp.ones((101, D)), rngs={"dropout": KEY}))
    np.testing.assert_allclose(out, out[:, :1] * np.ones(D), rtol=1e-6)
    assert {4, 6, 8, 10} <= set(out[:, 0].round(5)) <= {0, 2, 4, 6, 8, 10, 12, 14}
