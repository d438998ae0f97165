"""Oracles: float64 numpy, one head at a time; the same tensors with rank 2 and rank 3. More cases: the seed systems' fixtures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.interop.systems.bert_attention import AttentionLayer

B, F, T, N, H = 2, 3, 4, 2, 5
RNG = np.random.default_rng(6)
pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(name="tensors", scope="module")
def two_sequences(float64):
    """From-tensor, to-tensor and mask."""
    mask = np.array([[[1, 1, 0, 0.5]] * F, [[0, 0, 0, 0]] * F])
    return jnp.asarray(RNG.normal(size=(B, F, 7))), jnp.asarray(RNG.normal(size=(B, T, 6))), jnp.asarray(mask)


def layer(**options) -> AttentionLayer:
    return AttentionLayer(N, H, dtype=jnp.float64, **options)


@pytest.mark.slow
def test_rank_2_and_rank_3_equal_the_float64_reference(tensors):
    """A mask of one half takes 5,000 off the score; a row of zeros attends as if nothing were masked."""
    query, key, mask = tensors
    module = layer(query_act="tanh", value_act=jnp.abs)
    params = jax.tree.map(lambda x: jnp.asarray(RNG.normal(size=x.shape)), module.init(jax.random.key(0), query, key))
    got, sown = module.apply(params, query, key, mask, mutable="intermediates")
    p = params["params"]
    q, k, v = (
        np.asarray(x @ p[name]["kernel"] + p[name]["bias"])
        for name, x in (("query", query), ("key", key), ("value", key))
    )
    q, v = np.tanh(q), np.abs(v)
    for b, n in np.ndindex(B, N):
        head = slice(n * H, (n + 1) * H)
        scores = q[b][:, head] @ k[b][:, head].T / np.sqrt(H) - 10_000 * (1 - mask[b])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        np.testing.assert_allclose(sown["intermediates"]["attention_probs"][0][b, n], weights, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(got[b][:, head], weights @ v[b][:, head], rtol=1e-8)
    sizes = {"batch_size": B, "from_seq_length": F, "to_seq_length": T}
    matrices = query.reshape(B * F, -1), key.reshape(B * T, -1)
    np.testing.assert_allclose(module.apply(params, *matrices, mask, **sizes), got, rtol=1e-12)
    flat = layer(query_act="tanh", value_act=jnp.abs, do_return_2d_tensor=True).apply(params, query, key, mask)
    np.testing.assert_allclose(flat, got.reshape(B * F, N * H), rtol=1e-12)


@pytest.mark.parametrize(
    ("shapes", "options", "words"),
    [
        (((7,), (2, 4, 6)), {}, "both must have rank 3"),
        (((3, 7), (2, 4, 6)), {}, "both must have rank 3"),
        (((3, 7), (4, 6)), {}, "inputs of rank 2 need all of them"),
        (
            ((3, 7), (4, 6)),
            {"batch_size": 2, "from_seq_length": 2, "to_seq_length": 2},
            "but the sizes are .* change one",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(shapes, options, words):
    with pytest.raises(ValueError, match=words):
        layer().init(jax.random.key(0), *map(jnp.ones, shapes), **options)


def test_an_unknown_activation_is_answered_with_the_known_ones(tensors):
    with pytest.raises(ValueError, match=r"^unsupported activation 'selu': choose one of linear, relu, gelu, tanh, "):
        layer(key_act="selu").init(jax.random.key(0), *tensors[:2])
