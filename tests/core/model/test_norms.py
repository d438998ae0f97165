"""Oracles: float64 numpy; rows where nothing varies, by hand."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.config.serialize import from_json, to_json
from flaxformer_lite.core.base.bounds import NonNegativeFloat
from flaxformer_lite.core.model import Inputs, ModelConfig, Transformer
from flaxformer_lite.core.model.norms import BaseNorm, DeviationNorm, LayerNorm, Normalize, RMSNorm
from tests.support import reference
from tests.support.experiments import tiny_config
from tests.support.limits import assert_close

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
        assert_close(gradient, (g - g.mean(-1, keepdims=True)) / 1e-6)


@dataclass(frozen=True, kw_only=True)
class MaxNorm(BaseNorm):
    """The values divided by the largest magnitude among them, times a learned scale."""

    kind: Literal["max_norm"] = "max_norm"
    epsilon: NonNegativeFloat = 1e-6

    def __call__(self, x, param):
        scale = param("scale", jax.nn.initializers.ones, x.shape[-1:], jnp.float32)
        return x / (jnp.abs(x).max(-1, keepdims=True) + self.epsilon) * scale.astype(x.dtype)


@pytest.mark.slow
def test_a_norm_from_outside_is_every_norm_of_a_model_and_has_a_name_in_config_json():
    """The last norm is that of the hidden state by hand; every norm's scale has a gradient."""
    config = ModelConfig(
        vocab_size=11, d_model=6, num_heads=2, d_ff=5, num_encoder_layers=0, num_decoder_layers=1, norm=MaxNorm()
    )
    model, tokens = Transformer(config), Inputs(target_tokens=jnp.array([[4, 7, 5, 9]]))
    params = jax.jit(model.init)(KEY, tokens)["params"]

    def hidden(params):
        return model.apply({"params": params}, tokens).hidden

    found = jax.jit(hidden)(params)
    np.testing.assert_allclose(np.abs(found).max(-1), 1, rtol=1e-4)
    gradients = jax.jit(jax.grad(lambda params: (hidden(params) * jnp.arange(6.0)).sum()))(params)
    scales = [x for path, x in jax.tree_util.tree_leaves_with_path(gradients) if "scale" in jax.tree_util.keystr(path)]
    assert len(scales) == 3 and all(np.abs(x).max() > 0 for x in scales)
    experiment = tiny_config(model=dataclasses.replace(tiny_config().model, norm=MaxNorm(epsilon=0.5)))
    assert f"{__name__}:MaxNorm" in to_json(experiment) and from_json(to_json(experiment)) == experiment
    with pytest.raises(ValueError, match=r"model.norm.epsilon is -1"):
        MaxNorm(epsilon=-1)
