"""Oracles: the same model that stores everything for the backward pass, and the sizes in the compiled program itself."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.dropout import DropoutRates
from flaxformer_lite.model.inputs import Inputs
from flaxformer_lite.model.transformer import Transformer

KEY = jax.random.key(3)

B, T, L = 3, 16, 3
PLAIN = ModelConfig(
    vocab_size=11,
    d_model=8,
    num_heads=2,
    d_ff=24,
    num_encoder_layers=0,
    num_decoder_layers=L,
    dropout=DropoutRates(residual_rate=0.2, attention_rate=0.1),
)


def loss_of(remat: str, unroll: int = 1):
    """A loss with dropout, and random parameters."""
    model = Transformer(dataclasses.replace(PLAIN, remat=remat, scan_unroll=unroll))
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, 11, (B, T)))
    inputs = Inputs(target_tokens=tokens, target_mask=tokens != 0)
    shapes = jax.eval_shape(model.init, KEY, inputs)["params"]
    rng = np.random.default_rng(2)
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(scale=0.3, size=x.shape), x.dtype), shapes)

    def loss(params):
        return (model.apply({"params": params}, inputs, rngs={"dropout": KEY}).logits ** 2).mean()

    return loss, params


@functools.cache
def compiled(remat: str):
    """Loss and gradient, and the bytes of what is neither input nor output."""
    loss, params = loss_of(remat)
    program = jax.jit(jax.value_and_grad(loss)).lower(params).compile()
    return program(params), program.memory_analysis().temp_size_in_bytes


@functools.cache
def kept(remat: str, unroll: int) -> int:
    """Elements that the forward pass hands to the backward pass."""
    loss, params = loss_of(remat, unroll)
    _, back = jax.eval_shape(lambda p: jax.vjp(loss, p), params)
    return sum(x.size for x in jax.tree.leaves(back))


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["full", "dots"])
def test_what_is_computed_again_is_the_same(remat):
    """Law: loss and gradient with dropout, from a smaller program."""
    (loss, gradient), plain_bytes = compiled("none")
    (again, gradient_again), fewer_bytes = compiled(remat)
    np.testing.assert_allclose(again, loss, rtol=1e-6)
    largest = max(float(abs(x).max()) for x in jax.tree.leaves(gradient))
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6 * largest), gradient_again, gradient
    )
    assert fewer_bytes < 0.8 * plain_bytes


@pytest.mark.slow
@pytest.mark.parametrize("unroll", [1, L])
def test_less_is_kept_for_the_backward_pass(unroll):
    """full keeps less than dots, and dots less than everything: no scores and nothing as wide as a dropout mask."""
    assert kept("full", unroll) < 0.6 * kept("dots", unroll)
    assert kept("dots", unroll) < 0.5 * kept("none", unroll)
