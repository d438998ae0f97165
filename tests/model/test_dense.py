"""Oracles: NumPy in float64, and the traced program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.base.tree_paths import leaves_by_path
from flaxformer_lite.model import Inputs, Transformer
from flaxformer_lite.model.layers import Dense, matrix_product, round_kernels
from tests.support.experiments import tiniest_config


def products(jaxpr):
    """Yields the operands and the batch dimensions of all products in a program, those of its parts included."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield [variable.aval for variable in equation.invars], equation.params["dimension_numbers"][1][0]
        for value in jax.tree.leaves(list(equation.params.values())):
            part = getattr(value, "jaxpr", value)
            if hasattr(part, "eqns"):
                yield from products(part)


@pytest.mark.parametrize("shape", [(5, 7), (2, 5, 7), (2, 3, 5, 7)], ids=len)
def test_a_product_is_one_of_matrices_and_so_are_its_gradients(shape):
    rng = np.random.default_rng(0)
    x, kernel, upstream = (rng.normal(size=size) for size in (shape, (7, 11), (*shape[:-1], 11)))

    def gradients(x, kernel):
        y, pull_back = jax.vjp(matrix_product, x, kernel)
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


def test_products_with_kernels_are_of_matrices_in_a_whole_model():
    model = Transformer(tiniest_config().model)
    tokens = jnp.ones((3, 5), jnp.int32)
    inputs = Inputs(source_tokens=tokens, target_tokens=tokens)
    variables = jax.eval_shape(model.init, jax.random.key(0), inputs)
    program = jax.make_jaxpr(jax.grad(lambda params: model.apply(params, inputs).logits.sum()))(variables).jaxpr
    without_batch = [pair for pair, rows in products(program) if not rows]
    assert len(without_batch) > 10
    assert all(len(operand.shape) == 2 for pair in without_batch for operand in pair)


def test_a_product_with_a_bfloat16_kernel_rounds_its_input_and_sums_in_the_inputs_type():
    rng = np.random.default_rng(0)
    x, kernel = (rng.normal(size=size).astype(np.float32) for size in ((2, 5, 700), (700, 11)))
    rounded = [np.asarray(jnp.asarray(a, jnp.bfloat16), np.float64) for a in (x, kernel)]
    y = matrix_product(jnp.asarray(x), jnp.asarray(kernel, jnp.bfloat16))
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, np.tensordot(*rounded, 1), rtol=0, atol=1e-4)
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
