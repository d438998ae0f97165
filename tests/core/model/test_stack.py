"""Laws of a stack: unrolled = rolled, bit for bit where they start; dropout by its key; each place at its own rate; a position
scheme's bias = the same numbers given as a bias."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.model import ALiBi, DropoutRates, ModelConfig, NoPositions, RelativeBias, layers
from flaxformer_lite.core.model.contexts import SequenceContext
from flaxformer_lite.core.model.transformer import Stack
from tests.support import reference
from tests.support.limits import assert_close
from tests.support.quick import quick

B, T, S, D, F, N = 2, 5, 11, 14, 17, 2
RATES = DropoutRates(embedding_rate=0.11, attention_rate=0.13, feed_forward_rate=0.17, residual_rate=0.19)
CONFIG = ModelConfig(vocab_size=3, d_model=D, num_heads=N, d_ff=F, dropout=RATES)
KEYS = [jax.random.key(seed) for seed in (6, 7)]
X = jnp.asarray(np.random.default_rng(1).normal(size=(B, T, D)), jnp.float32)
POSITIONS = jnp.broadcast_to(jnp.arange(T), (B, T))


@functools.cache
def stack(scan_unroll: int):
    """First values, and the function from random keys to the answer, of an encoder of two layers."""
    module = Stack(dataclasses.replace(CONFIG, scan_unroll=scan_unroll), num_layers=2)
    values = jax.jit(module.init)(KEYS[0], X, SequenceContext(POSITIONS))
    return values, jax.jit(lambda values, keys: module.apply(values, X, SequenceContext(POSITIONS), rngs=keys))


def test_unrolled_scan_has_the_same_tree_and_first_values_bit_for_bit():
    (rolled, _), (unrolled, _) = stack(1), stack(2)
    assert jax.tree.structure(rolled) == jax.tree.structure(unrolled)
    jax.tree.map(np.testing.assert_array_equal, rolled, unrolled)


def test_unrolled_scan_gives_the_same_answer():
    (values, rolled), (_, unrolled) = stack(1), stack(2)
    assert_close(rolled(values, {}), unrolled(values, {}))


def test_dropout_is_a_function_of_the_key():
    values, run = stack(1)
    one, other, one_again = (run(values, {"dropout": key}) for key in (*KEYS, KEYS[0]))
    np.testing.assert_array_equal(one, one_again)
    assert not np.allclose(one, other) and not np.allclose(one, run(values, {}))


def test_every_place_drops_out_at_its_own_rate(monkeypatch):
    """The shapes and rates that reach `dropout` while an encoder and a decoder are traced."""
    calls = []
    monkeypatch.setattr(layers, "dropout", lambda x, rate, key, **_: calls.append((rate, x.shape)) or x)
    memory = jnp.zeros((B, S, D))
    for cross, context in ((False, SequenceContext(POSITIONS)), (True, SequenceContext(POSITIONS, memory=memory))):
        module = Stack(CONFIG, 2, cross)
        values = jax.eval_shape(module.init, {"params": KEYS[0]}, X, context)
        assert calls == []  # no key, no dropout
        jax.eval_shape(functools.partial(module.apply, rngs={"dropout": KEYS[1]}), values, X, context)
        lengths = [(T, T), (T, S)] if cross else [(T, T)]
        assert set(calls) == {
            (0.11, (B, T, D)),
            *((0.13, (B, N, *pair)) for pair in lengths),
            (0.17, (B, T, F)),
            (0.19, (B, T, D)),
        }
        calls.clear()


@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize(
    "scheme",
    quick([ALiBi(), RelativeBias(num_buckets=8, max_distance=5)], lambda scheme: isinstance(scheme, RelativeBias)),
    ids=["alibi", "relative"],
)
def test_a_scheme_adds_its_bias_to_the_one_that_is_given(scheme, causal):
    """Oracle: a stack without positions that is given the sum; positions differ from row to row."""
    places, given = np.array([[0, 1, 2, 0, 1], [3, 4, 5, 9, 7]]), np.random.default_rng(2).normal(size=(B, N, T, T))
    offsets = places[:, None] - places[:, :, None]
    if scheme == ALiBi():
        added = -np.array(reference.alibi_slopes(N))[:, None, None] * np.abs(offsets)[:, None]
        params = {}
    else:
        table = np.random.default_rng(3).normal(size=(8, N)).astype(np.float32)
        rows = np.vectorize(lambda offset: reference.relative_bucket(int(offset), 8, 5, causal))(offsets)
        added, params = table[rows].transpose(0, 3, 1, 2), {"position_bias": {"embedding": table}}

    def run(positions, params, bias):
        config = dataclasses.replace(CONFIG, positions=positions)
        module = Stack(config, num_layers=2, causal=causal)
        context = SequenceContext(jnp.asarray(places), bias=jnp.asarray(bias, jnp.float32))
        return jax.jit(lambda params: module.apply({"params": params}, X, context))(params)

    plain = {name: leaf for name, leaf in stack(1)[0]["params"].items() if not name.startswith("position")}
    np.testing.assert_allclose(
        run(scheme, plain | params, given), run(NoPositions(), plain, given + added), atol=1e-5, rtol=1e-5
    )
