"""Oracles: the same model that stores everything for the backward pass, the sizes in the compiled program itself, and the stacks
of a Transformer for single layers."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.model import ALiBi, DropoutRates, Inputs, Rotary, padding_mask
from flaxformer_lite.core.model.config import POST_NORM, PRE_NORM, ModelConfig, Residual
from flaxformer_lite.core.model.positions import PositionScheme
from flaxformer_lite.core.model.transformer import DecoderLayer, EncoderLayer, PositionBias, Transformer
from tests.support.limits import assert_close

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


# Single layers ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("residual", "positions"), [(PRE_NORM, Rotary()), (POST_NORM, ALiBi())])
def test_single_layers_are_those_of_the_stacks(residual: Residual, positions: PositionScheme):
    """The layers of both stacks, one after the other with the same parameters, are the model's own outputs."""
    config = dataclasses.replace(
        PLAIN,
        vocab_size=0,
        head=None,
        scale_embeddings=False,
        residual=dataclasses.replace(residual, final=""),
        positions=positions,
        num_encoder_layers=2,
        num_decoder_layers=2,
    )
    rng = np.random.default_rng(5)
    source, target = (jnp.asarray(rng.normal(size=(B, length, 8)), jnp.float32) for length in (5, 7))
    is_token, is_target = (jnp.arange(n) < jnp.array([[n], [3], [1]]) for n in (5, 7))
    inputs = Inputs(source_tokens=source, target_tokens=target, source_mask=is_token, target_mask=is_target)
    model = Transformer(config)
    shapes = jax.eval_shape(model.init, KEY, inputs)["params"]
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(scale=0.3, size=x.shape), x.dtype), shapes)

    def layers(stack: str):
        return [{"params": jax.tree.map(lambda leaf, i=i: leaf[i], params[stack]["layers"])} for i in range(2)]

    def bias(length: int, causal: bool):
        return PositionBias(positions, config.num_heads, causal).apply({}, *[jnp.arange(length)[None]] * 2)

    @jax.jit
    def one_by_one(x, y):
        masks = {"mask": padding_mask(is_target), "memory_mask": padding_mask(is_token)}
        for layer in layers("encoder"):
            x = EncoderLayer(config).apply(layer, x, mask=masks["memory_mask"], bias=bias(5, False))
        for layer in layers("decoder"):
            y = DecoderLayer(config).apply(layer, y, x, bias=bias(7, True), **masks)
        return x, y

    expected = jax.jit(model.apply)({"params": params}, inputs)
    memory, hidden = one_by_one(source, target)
    np.testing.assert_allclose(memory, expected.memory, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(hidden, expected.hidden, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_layer_without_a_mask_sees_everything_and_a_decoder_nothing_that_comes_later():
    """Law: a change of a token is seen where `expected` says, and one of rotary positions everywhere."""
    config = dataclasses.replace(PLAIN, positions=Rotary(), dropout=DropoutRates())
    x = jnp.asarray(np.random.default_rng(6).normal(size=(1, 4, 8)), jnp.float32)
    for layer, expected in ((EncoderLayer(config), np.ones((4, 4))), (DecoderLayer(config, cross=False), np.tri(4))):
        variables, apply = jax.jit(layer.init)(KEY, x), jax.jit(layer.apply)
        changed = [apply(variables, x.at[0, i, 0].add(1.0))[0] != apply(variables, x)[0] for i in range(4)]
        np.testing.assert_array_equal(np.stack(changed, 1).any(-1), expected)
        far, same = (apply(variables, x, positions=jnp.array([[0, 1, 2, last]])) for last in (90, 3))
        assert_close(same, apply(variables, x))
        assert jnp.abs(far - same).max() > 1e-3


@pytest.mark.parametrize("cross", [True, False])
def test_a_decoder_layer_without_the_memory_that_it_reads_is_refused(cross: bool) -> None:
    config, x = ModelConfig(vocab_size=0, head=None, d_model=8, num_heads=2, d_ff=8), jnp.zeros((1, 3, 8))
    with pytest.raises(ValueError, match=f"cross is {cross}: give a memory exactly if cross is True"):
        DecoderLayer(config, cross=cross).init(jax.random.key(0), x, None if cross else x)
