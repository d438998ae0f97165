"""Oracles: float64 numpy; rows where nothing varies, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.model.norms import DeviationNorm, LayerNorm, Normalize, RMSNorm
from tests.support import reference

B, T, D = 2, 3, 5
KEY = jax.random.key(17)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def at_last_axis(function, x: np.ndarray) -> np.ndarray:
    return np.apply_along_axis(function, -1, x)


EPSILON = 0.3  # large, so that its place in the formula shows
NORMS = [
    (LayerNorm(epsilon=EPSILON), {"scale", "bias"}, lambda x, s, b: reference.layer_norm(x, s, b, EPSILON)),
    (LayerNorm(epsilon=EPSILON, bias=False), {"scale"}, lambda x, s, b: reference.layer_norm(x, s, 0 * b, EPSILON)),
    (RMSNorm(epsilon=EPSILON), {"scale"}, lambda x, s, b: reference.rms_norm(x, s, EPSILON)),
    (DeviationNorm(epsilon=EPSILON), {"scale", "bias"}, lambda x, s, b: reference.deviation_norm(x, s, b, EPSILON)),
]
NORM_IDS = ["layer_norm", "layer_norm_without_bias", "rms_norm", "deviation_norm"]


@pytest.mark.parametrize(("norm", "names", "expected"), NORMS, ids=NORM_IDS)
def test_norms_equal_the_float64_reference(norm, names, expected):
    x, scale, bias = 3 + normal(1, B, T, D), normal(2, D), normal(3, D)
    params = {name: {"scale": scale, "bias": bias}[name] for name in names}
    with jax.enable_x64(True):
        got = jax.jit(Normalize(norm).apply)({"params": params}, x)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, at_last_axis(lambda v: expected(v, scale, bias), x), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("norm", "names", "expected"), NORMS, ids=NORM_IDS)
def test_norms_start_with_scale_one_and_bias_zero(norm, names, expected):
    params = jax.jit(Normalize(norm).init)(KEY, jnp.zeros((B, D)))["params"]
    assert set(params) == names
    for name, value in params.items():
        assert value.dtype == jnp.float32
        np.testing.assert_array_equal(value, np.full(D, {"scale": 1, "bias": 0}[name]))


@pytest.mark.parametrize(("norm", "names", "expected"), NORMS, ids=NORM_IDS)
def test_norms_of_bfloat16_add_up_in_float32(norm, names, expected):
    """Exact but for the last rounding to bfloat16, 2^-8 relative; sums in bfloat16 would be off by whole units here."""
    x = jnp.asarray(100 + 8 * normal(4, B, 1009), jnp.bfloat16)
    scale, bias = np.ones(1009, np.float32), np.zeros(1009, np.float32)
    params = {name: {"scale": scale, "bias": bias}[name] for name in names}
    got = jax.jit(Normalize(norm).apply)({"params": params}, x)
    assert got.dtype == jnp.bfloat16
    want = at_last_axis(lambda v: expected(v, scale, bias), np.asarray(x, np.float64))
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=1.01 * 2**-8, atol=1e-4)


@pytest.mark.parametrize("width", [7, 14, 23])
@pytest.mark.parametrize("value", [0.7, 1.5, -3.3])
@pytest.mark.parametrize("norm", [LayerNorm(epsilon=1e-12), DeviationNorm()])
def test_a_constant_row_gives_exactly_the_bias(norm, value, width):
    """By hand: nothing varies. The deviation's derivative is 0 there, so the gradient is (g - mean g) / epsilon, as in float64."""
    scale, bias = np.float32(1.25), np.float32(0.5)
    params = {"params": {"scale": jnp.full(width, scale), "bias": jnp.full(width, bias)}}
    x, cotangent = jnp.full((2, width), value, jnp.float32), jnp.asarray(normal(31, 2, width), jnp.float32)

    def loss(x):
        y = Normalize(norm).apply(params, x)
        return (y * cotangent).sum(), y

    gradient, y = jax.jit(jax.grad(loss, has_aux=True))(x)
    np.testing.assert_array_equal(y, np.full((2, width), bias))
    if isinstance(norm, DeviationNorm):
        g = scale * np.float64(cotangent)
        np.testing.assert_allclose(gradient, (g - g.mean(-1, keepdims=True)) / 1e-6, rtol=1e-5, atol=1)
