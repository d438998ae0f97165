"""Oracle: the formula that each fast way replaces, answers and gradients."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.model import Inputs, LoRA, ModelConfig, Transformer, fast
from flaxformer_lite.core.model.attention import DotProduct, weighted_values
from flaxformer_lite.core.model.fast import with_layout
from flaxformer_lite.core.model.inputs import example_inputs
from flaxformer_lite.core.model.positions import rotate_pairs
from flaxformer_lite.core.model.transformer import step_copies
from tests.support.experiments import tiniest_config
from tests.support.programs import products

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


@pytest.mark.parametrize("shape", [(5, 7), (2, 5, 7), (2, 3, 5, 7)], ids=len)
def test_a_product_is_one_of_matrices_and_so_are_its_gradients(shape):
    rng = np.random.default_rng(0)
    x, kernel, upstream = (rng.normal(size=size) for size in (shape, (7, 11), (*shape[:-1], 11)))

    def gradients(x, kernel):
        y, pull_back = jax.vjp(lambda x, kernel: fast.matmul(x, kernel, x.dtype), x, kernel)
        return y, *pull_back(upstream)

    with jax.enable_x64(True):
        y, of_x, of_kernel = gradients(x, kernel)
        assert all(
            len(operand.shape) == 2
            for pair, _ in products(jax.make_jaxpr(gradients)(x, kernel).jaxpr)
            for operand in pair
        )
    np.testing.assert_allclose(y, np.tensordot(x, kernel, 1), rtol=1e-12)
    np.testing.assert_allclose(of_x, np.tensordot(upstream, kernel.T, 1), rtol=1e-12)
    np.testing.assert_allclose(of_kernel, x.reshape(-1, 7).T @ upstream.reshape(-1, 11), rtol=1e-12)


@pytest.mark.parametrize("shape", [(7,), (2, 5, 7), (1, 1, 7), (2, 3, 300)], ids=str)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "bfloat16_values"])
def test_products_of_rounded_factors_have_float32_sums(shape, tied, dtype):
    """Oracle: float64 products of the rounded factors, to the float32 rounding of n - 1 sums (the products are exact)."""
    rng = np.random.default_rng(0)
    x, kernel, upstream = (rng.normal(size=s).astype(np.float32) for s in (shape, (shape[-1], 11), (*shape[:-1], 11)))

    @jax.jit
    def found(x, table, upstream):
        y, pull_back = jax.vjp(lambda x, table: fast.rounded_matmul(x, table.T if tied else table, dtype), x, table)
        return y, *pull_back(upstream)

    y, of_x, of_table = found(x, kernel.T if tied else kernel, upstream)
    rows, weights, gradient = (
        np.asarray(jnp.asarray(a).astype(jnp.bfloat16), np.float64).reshape(-1, a.shape[-1])
        for a in (x, kernel, upstream)
    )
    of_kernel = (of_table + 0).T if tied else of_table  # `+ 0`: read by another program, in its layout
    for answer, left, right in ((y, rows, weights), (of_x, gradient, weights.T), (of_kernel, rows.T, gradient)):
        assert answer.dtype == jnp.float32
        error = np.abs(np.asarray(answer).reshape(left.shape[0], -1) - left @ right)
        assert (error <= left.shape[1] * 2.0**-24 * (np.abs(left) @ np.abs(right))).all()


@pytest.mark.slow
def test_with_a_matmul_dtype_a_model_multiplies_all_kernels_in_it_and_nothing_else():
    config = dataclasses.replace(tiniest_config().model, matmul_dtype="bfloat16", lora=LoRA(rank=3))
    model, tokens = Transformer(config), jnp.ones((3, 5), jnp.int32)
    inputs = Inputs(source_tokens=tokens, target_tokens=tokens)
    variables = jax.eval_shape(model.init, jax.random.key(0), inputs)
    loss = jax.grad(lambda params: model.apply(params, inputs).logits.sum())
    program = jax.make_jaxpr(loss)(variables)
    types = {(not rows, operand.dtype.name) for pair, rows in products(program.jaxpr) for operand in pair}
    assert types == {(True, "bfloat16"), (False, "float32")}
    assert {x.dtype.name for x in jax.tree.leaves(program.out_avals)} == {"float32"}


def test_products_with_kernels_are_of_matrices_in_a_whole_model():
    model = Transformer(tiniest_config().model)
    tokens = jnp.ones((3, 5), jnp.int32)
    inputs = Inputs(source_tokens=tokens, target_tokens=tokens)
    variables = jax.eval_shape(model.init, jax.random.key(0), inputs)
    program = jax.make_jaxpr(jax.grad(lambda params: model.apply(params, inputs).logits.sum()))(variables).jaxpr
    without_batch = [pair for pair, rows in products(program) if not rows]
    assert len(without_batch) > 10
    assert all(len(operand.shape) == 2 for pair in without_batch for operand in pair)


@pytest.mark.slow
def test_a_tool_that_replaces_dot_general_finds_every_product_with_a_parameter(monkeypatch):
    """Law: the second operands are the kernels of the model, all of different shapes, and the tied table as the head's kernel."""
    attention = DotProduct(d_key=5, d_value=3, num_kv_heads=2)
    sizes = {"d_model": 7, "num_heads": 6, "d_ff": 17, "num_encoder_layers": 0, "num_decoder_layers": 2}
    model, found = Transformer(ModelConfig(vocab_size=11, attention=attention, **sizes)), set()
    inputs = Inputs(target_tokens=jnp.ones((3, 5), jnp.int32))
    params = jax.jit(model.init)(KEY, inputs)["params"]

    def listen(x, kernel, *arguments, product=jax.lax.dot_general, **options):
        found.add(kernel.shape)
        return product(x, kernel, *arguments, **options)

    monkeypatch.setattr(jax.lax, "dot_general", listen)
    model.apply({"params": params}, inputs)
    kernels = {x.shape[1:] for path, x in leaves_by_path(params).items() if path.endswith("/kernel")}
    assert len(kernels) == 6
    assert found == {*kernels, (7, 11)}


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


@pytest.mark.slow
def test_the_variables_of_steps():
    """A step reads the same numbers from both layouts."""
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 12, "num_encoder_layers": 0, "num_decoder_layers": 2}
    model = Transformer(ModelConfig(vocab_size=11, dtype="float64", **sizes))
    variables = jax.jit(model.init)(KEY, example_inputs(model.config))
    cache = model.apply(variables, None, 3, 1, method="start_cache")

    def step(variables):
        token, index = jnp.array([[4]]), jnp.int32(0)
        return model.apply(variables, token, index, cache, method="decode_step")[0]

    np.testing.assert_allclose(step(with_layout(variables, step_copies(model, variables))), step(variables), rtol=1e-12)
