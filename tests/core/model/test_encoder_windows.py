"""Laws of an encoder: windows by gradient; packed = alone; a window longer than the text = none; the first layer without a norm."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.model import ModelConfig, Residual, Rotary, SlidingWindow, Transformer
from flaxformer_lite.core.model.inputs import Inputs
from flaxformer_lite.core.model.transformer import parameter_shapes
from tests.support.limits import assert_close

T, SIZE = 11, 3
BASE = ModelConfig(
    vocab_size=0,
    head=None,
    d_model=12,
    num_heads=2,
    d_ff=7,
    num_encoder_layers=2,
    num_decoder_layers=0,
    positions=Rotary(base=101.0),
    scale_embeddings=False,
)
LOCAL = SlidingWindow(size=SIZE, layers=(1,), positions=Rotary(base=7.0))
X = jnp.asarray(np.random.default_rng(2).normal(size=(1, T, 12)), jnp.float32)


def with_window(window: SlidingWindow | None, **settings) -> ModelConfig:
    return dataclasses.replace(BASE, sliding_window=window, **settings)


@functools.cache
def values(config: ModelConfig):
    rng, shapes = np.random.default_rng(3), parameter_shapes(config)
    return {"params": jax.tree.map(lambda x: rng.normal(scale=0.4, size=x.shape).astype(x.dtype), shapes)}


@functools.partial(jax.jit, static_argnums=0)
def program(config: ModelConfig, variables: dict, inputs: Inputs) -> jax.Array:
    return Transformer(config).apply(variables, inputs).memory


def memory(config: ModelConfig, x: jax.Array, **inputs) -> jax.Array:
    return program(config, values(config), Inputs(source_tokens=x, **inputs))


def reach(config: ModelConfig) -> np.ndarray:
    """Whether the vector of each position depends on that of each other: `[T, T]`."""
    jacobian = jax.jit(jax.jacobian(lambda x: memory(config, x)[0]))(X)[:, :, 0]
    return np.abs(jacobian).max((1, 3)) > 1e-7


def test_a_token_depends_on_both_sides_as_far_as_its_layers_reach():
    distance = np.abs(np.subtract.outer(np.arange(T), np.arange(T)))
    np.testing.assert_array_equal(reach(with_window(SlidingWindow(size=SIZE))), distance <= 2 * (SIZE - 1))


@pytest.mark.slow
def test_one_layer_without_a_window_reaches_everywhere():
    assert reach(with_window(LOCAL)).all()


def test_packed_texts_equal_each_alone():
    """With windows that would cross from one text to the next, and a rotation of its own in the layer that has one."""
    segments = jnp.array([[1] * 5 + [2] * 4 + [0] * 2])
    places = jnp.array([[*range(5), *range(4), 0, 0]])
    packed = memory(with_window(LOCAL), X, source_segments=segments, source_positions=places, source_mask=segments > 0)
    for text in (slice(0, 5), slice(5, 9)):
        alone = memory(with_window(LOCAL), X[:, text])
        assert_close(packed[:, text], alone)


def test_padding_changes_nothing():
    padded = jnp.pad(X, ((0, 0), (0, 4), (0, 0)), constant_values=9.0)
    found = memory(with_window(LOCAL), padded, source_mask=jnp.arange(T + 4)[None] < T)
    assert_close(found[:, :T], memory(with_window(LOCAL), X))


def test_a_window_longer_than_the_text_is_none():
    whole, shorter = (memory(with_window(SlidingWindow(size=size)), X) for size in (T, T - 1))
    assert_close(whole, memory(with_window(None), X))
    assert not np.allclose(shorter, whole)


@pytest.mark.slow
def test_an_encoder_beside_a_decoder_has_no_window():
    both = with_window(SlidingWindow(size=SIZE), num_decoder_layers=1)
    bare, inputs = dataclasses.replace(both, sliding_window=None), Inputs(source_tokens=X, target_tokens=X)
    np.testing.assert_array_equal(program(both, values(both), inputs), program(bare, values(both), inputs))


@pytest.mark.slow
def test_the_first_layer_may_have_commands_of_its_own():
    """With none the norm of layer 0 has no gradient, and those of all other places have one; the commands of `pre` give `pre`."""
    config = with_window(None, residual=Residual(first=""))
    params = values(config)["params"]

    def total(params):
        return jnp.sin(Transformer(config).apply({"params": params}, Inputs(source_tokens=X)).memory).sum()

    layers = jax.grad(total)(params)["encoder"]["layers"]
    moved = {name: np.abs(layers[name]["scale"]).max(-1) > 0 for name in layers if name.endswith("norm")}
    assert moved["attention_pre_norm"].tolist() == [False, True]
    assert moved["feed_forward_pre_norm"].tolist() == [True, True]
    named = dataclasses.replace(config, residual=Residual(first="n"))
    np.testing.assert_array_equal(memory(named, X), memory(with_window(None), X))


def test_without_a_norm_the_first_attention_reads_its_input_itself():
    """Oracle: the same layer with no norm before either sublayer, where the feed-forward adds nothing."""
    config = with_window(None, num_encoder_layers=1, residual=Residual(first=""))
    params = jax.tree.map(lambda x: x, values(config)["params"])
    layers = params["encoder"]["layers"]
    layers["feed_forward"] = jax.tree.map(jnp.zeros_like, layers["feed_forward"])
    bare = dataclasses.replace(config, residual=Residual(pre=""))
    found, wanted = (program(one, {"params": params}, Inputs(source_tokens=X)) for one in (config, bare))
    assert_close(found, wanted)
