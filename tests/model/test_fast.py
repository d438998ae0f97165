"""Oracle: the formula that each fast way replaces, answers and gradients."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.model import ModelConfig, Transformer, fast
from flaxformer_lite.model.attention import weighted_values
from flaxformer_lite.model.inputs import example_inputs
from flaxformer_lite.model.positions import rotate_pairs
from flaxformer_lite.model.transformer import step_variables

RNG = np.random.default_rng(3)
KEY = jax.random.key(0)
pytestmark = pytest.mark.usefixtures("float64")


def normal(*shape: int):
    return jnp.asarray(RNG.normal(size=shape))


def assert_same(fast_way, formula, *operands):
    """Compares answers and gradients by all operands."""
    answers, back = jax.vjp(fast_way, *operands)
    expected, expected_back = jax.vjp(formula, *operands)
    cotangent = normal(*expected.shape)
    for found, wanted in zip((answers, *back(cotangent)), (expected, *expected_back(cotangent)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13)


def test_a_product_with_a_kernel():
    assert_same(lambda x, kernel: fast.matmul(x, kernel, x.dtype), jnp.matmul, normal(2, 3, 5), normal(5, 7))


def test_the_values_of_a_cache():
    assert_same(fast.cached_values, weighted_values, normal(2, 6, 3, 5), normal(2, 5, 2, 7))


@pytest.mark.parametrize("layout", ["half_split", "interleaved"])
def test_a_rotation_and_its_gradient(layout: str):
    angles = normal(2, 3, 1, 5)
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    formula = inspect.unwrap(rotate_pairs)
    assert_same(
        lambda x: rotate_pairs(x, sin, cos, layout), lambda x: formula(x, sin, cos, layout), normal(2, 3, 5, 10)
    )


@pytest.mark.parametrize("rate", [0.1, 0.5, 1 - 2**-17])
def test_the_mask_of_dropout(rate: float):
    """It has the odd length that is asked for, the rate that it names, and no element that depends on its neighbours."""
    kept, exact = fast.random_mask(KEY, (64, 127, 31), rate)
    assert kept.shape == (64, 127, 31) and abs(exact - rate) <= 2**-16
    deviation = (exact * (1 - exact) / kept.size) ** 0.5
    assert abs(1 - kept.mean() - exact) < 4 * deviation
    pairs = (kept[:, :63] & kept[:, 64:]).mean()
    assert abs(pairs - (1 - exact) ** 2) < 8 * deviation


def test_the_variables_of_steps():
    """A step reads the same numbers from both layouts."""
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 12, "num_encoder_layers": 0, "num_decoder_layers": 2}
    model = Transformer(ModelConfig(vocab_size=11, dtype="float64", **sizes))
    variables = model.init(KEY, example_inputs(model.config))
    cache = model.apply(variables, None, 3, 1, method="start_cache")

    def step(variables):
        token, index = jnp.array([[4]]), jnp.int32(0)
        return model.apply(variables, token, index, cache, method="decode_step")[0]

    np.testing.assert_allclose(step(step_variables(model, variables)), step(variables), rtol=1e-12)
