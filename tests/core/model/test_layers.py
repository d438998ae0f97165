"""Oracles: NumPy in float64 with math.erf and math.tanh; statistics of the uniform, normal, truncated and binomial laws; the traced
program; one device's bits on a mesh."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.model import Inputs, Transformer
from flaxformer_lite.core.model.layers import (
    ACTIVATIONS,
    DTYPES,
    Dense,
    FeedForward,
    Normal,
    XavierUniform,
    accumulation_dtype,
    apply_dropout,
    dropout,
    matrix_product,
    round_kernels,
)
from tests.support import reference
from tests.support.experiments import tiniest_config
from tests.support.limits import assert_close
from tests.support.programs import products

B, T, D, F = 2, 3, 5, 7
KEY = jax.random.key(17)
SIGMAS = 6  # a fair generator leaves ±6 standard deviations twice in 10^9 draws, for each number compared


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize(
    ("name", "sums"), [("bfloat16", "float32"), ("float16", "float32"), ("float32", "float32"), ("float64", "float64")]
)
def test_sums_are_at_least_float32(name, sums):
    with jax.enable_x64(True):
        assert accumulation_dtype(jnp.zeros(3, name)) == sums
        assert jnp.dtype(DTYPES.get(name, name)) == name


# Initial values --------------------------------------------------------------------------------------------------------


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


# Dense -----------------------------------------------------------------------------------------------------------------


def test_a_product_with_a_bfloat16_kernel_rounds_its_input_and_sums_in_the_inputs_type():
    rng = np.random.default_rng(0)
    x, kernel = (rng.normal(size=size).astype(np.float32) for size in ((2, 5, 700), (700, 11)))
    rounded = [np.asarray(jnp.asarray(a, jnp.bfloat16), np.float64) for a in (x, kernel)]
    y = matrix_product(jnp.asarray(x), jnp.asarray(kernel, jnp.bfloat16))
    assert y.dtype == jnp.float32
    assert_close(y, np.tensordot(*rounded, 1))
    assert np.abs(y - np.tensordot(x, kernel, 1)).max() > 1e-2


def test_with_rounded_kernels_all_products_with_kernels_are_in_their_type_and_nothing_else_is():
    model = Transformer(tiniest_config().model)
    tokens = jnp.ones((3, 5), jnp.int32)
    inputs = Inputs(source_tokens=tokens, target_tokens=tokens)
    params = jax.eval_shape(model.init, jax.random.key(0), inputs)["params"]
    rounded = jax.eval_shape(lambda params: round_kernels(params, "bfloat16"), params)
    for path, leaf in leaves_by_path(rounded).items():
        assert leaf.dtype == (jnp.bfloat16 if path.endswith(("/kernel", "/embedding")) else jnp.float32), path
    program = jax.make_jaxpr(lambda params: model.apply({"params": params}, inputs).logits)(rounded)
    assert program.out_avals[0].dtype == jnp.float32
    found = [([operand.dtype for operand in pair], bool(rows)) for pair, rows in products(program.jaxpr)]
    assert {rows for _, rows in found} == {False, True}
    assert all(types == [jnp.float32 if rows else jnp.bfloat16] * 2 for types, rows in found)


def test_a_product_in_float64_keeps_its_precision_with_a_float32_kernel():
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(5, 7)), rng.normal(size=(7, 11)).astype(np.float32)
    with jax.enable_x64(True):
        double, single = jnp.asarray(x), jnp.asarray(kernel)
        y = matrix_product(double, single)
        layer = Dense(11, use_bias=False, dtype=jnp.float64).apply({"params": {"kernel": single}}, double)
    for found in (y, layer):
        np.testing.assert_allclose(found, x @ kernel.astype(np.float64), rtol=1e-13, atol=1e-14)


# Dropout ---------------------------------------------------------------------------------------------------------------


drop = jax.jit(dropout, static_argnums=1)


ROWS, WIDTH = 499, 1013  # an odd width: the last random word of a row serves one element


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


# Feed-forward ----------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("activation", sorted(set(ACTIVATIONS) - {"relu", "linear"}))
def test_the_backward_pass_computes_inner_activations_again(activation):
    """Kept are the inputs of the activation, one or two with a gate, and that of the product after it."""
    x = jnp.asarray(normal(20, B, T, D), jnp.bfloat16)
    layer, params = FeedForward(D, F, activation, dtype=jnp.bfloat16), feed_forward_params(activation, True)
    _, back = jax.eval_shape(lambda p, x: jax.vjp(lambda *words: layer.apply(*words), {"params": p}, x), params, x)
    kept = [leaf for leaf in jax.tree.leaves(back) if leaf.size == B * T * F]
    assert len(kept) == (3 if activation in reference.GATED else 2)


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
