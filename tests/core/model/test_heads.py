"""Oracle: one vector of a text, by plain loops over its tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.model.config import ModelConfig
from flaxformer_lite.core.model.heads import Pooling, TextVector
from flaxformer_lite.core.model.inputs import Inputs
from flaxformer_lite.core.model.transformer import Transformer
from flaxformer_lite.core.reading.heads import DenseLayer, Pooler, SentenceEmbedding, last_token
from tests.support.limits import assert_close

RNG = np.random.default_rng(4)
HIDDEN = RNG.normal(size=(4, 5, 3)).astype(np.float32)
SHOWN = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 1, 1, 0], [1, 0, 0, 0, 0]], bool)


CONFIG = ModelConfig(vocab_size=3, d_model=3, num_heads=1)


def vector_of(hidden, mask, **settings):
    """The vector without dense layers, and so without parameters."""
    return TextVector(CONFIG, SentenceEmbedding(**settings)).apply({}, jnp.asarray(hidden), mask)


def one_by_one(pooling: str) -> np.ndarray:
    """Of each text alone, without its padding."""
    ways = {"mean": lambda x: x.mean(0), "max": lambda x: x.max(0), "cls": lambda x: x[0], "last": lambda x: x[-1]}
    ways["weighted_mean"] = lambda x: sum(n * row for n, row in enumerate(x, 1)) / sum(range(len(x) + 1))
    ways["mean_sqrt_length"] = lambda x: x.sum(0) / len(x) ** 0.5
    return np.array([ways[pooling](x if pooling == "cls" else x[m]) for x, m in zip(HIDDEN, SHOWN, strict=True)])


POOLINGS = ["mean", "weighted_mean", "mean_sqrt_length", "max", "cls", "last"]


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_sentence_embedding_is_that_of_its_tokens(pooling):
    wanted = one_by_one(pooling)
    assert_close(vector_of(HIDDEN, jnp.asarray(SHOWN), pooling=pooling, normalize=False), wanted)
    assert_close(
        vector_of(HIDDEN, jnp.asarray(SHOWN), pooling=pooling), wanted / np.sqrt((wanted**2).sum(1, keepdims=True))
    )


def test_dense_layers_follow_the_pooling_and_come_before_the_length():
    layers = (DenseLayer(width=5, activation="tanh"), DenseLayer(width=2, bias=False))
    vector = TextVector(CONFIG, SentenceEmbedding(dense=layers))
    kernels, bias = [RNG.normal(size=shape) for shape in ((3, 5), (5, 2))], RNG.normal(size=5)
    params = {"dense_0": {"kernel": kernels[0], "bias": bias}, "dense_1": {"kernel": kernels[1]}}
    shapes = jax.eval_shape(vector.init, jax.random.key(0), jnp.asarray(HIDDEN), jnp.asarray(SHOWN))["params"]
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, shapes)
    wanted = np.tanh(one_by_one("mean") @ kernels[0] + bias) @ kernels[1]
    found = vector.apply({"params": params}, jnp.asarray(HIDDEN), jnp.asarray(SHOWN))
    assert_close(found, wanted / np.sqrt((wanted**2).sum(1, keepdims=True)))
    assert SentenceEmbedding(dense=layers).width(3) == 2 and SentenceEmbedding().width(3) == 3


def test_a_late_mean_is_that_of_the_classes_of_each_token():
    """By loops: the logits of each token that is not padding, and their mean."""
    settings = {"activation": "gelu", "norm": True, "num_classes": 2}
    each, late = (Pooling(CONFIG, Pooler(token=token, **settings)) for token in ("each", "late_mean"))
    (_, of_tokens), variables = jax.jit(each.init_with_output)(jax.random.key(0), jnp.asarray(HIDDEN), None)
    wanted = [row[shown].mean(0) for row, shown in zip(np.asarray(of_tokens), SHOWN, strict=True)]
    _, found = jax.jit(late.apply)(variables, jnp.asarray(HIDDEN), jnp.asarray(SHOWN))
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_row_of_padding_alone_is_finite_and_so_is_the_gradient(pooling: str, normalize: bool):
    """Its embedding is compared with those of the other rows before its weight of 0 counts."""
    shown = jnp.asarray(SHOWN).at[1].set(False)

    def total(hidden: jax.Array) -> jax.Array:
        return jnp.square(vector_of(hidden, shown, pooling=pooling, normalize=normalize)).sum()

    value, gradient = jax.jit(jax.value_and_grad(total))(jnp.asarray(HIDDEN))
    assert np.isfinite(value) and np.isfinite(gradient).all()


def test_without_a_mask_all_are_tokens():
    np.testing.assert_array_equal(last_token(jnp.asarray(HIDDEN), None), HIDDEN[:, -1])
    assert_close(vector_of(HIDDEN, None, normalize=False), HIDDEN.mean(1))


@pytest.mark.slow
@pytest.mark.parametrize("layers", [(1, 0), (0, 1), (1, 1)], ids=str)
def test_a_pooler_reads_the_last_token_of_the_last_stack(layers):
    """Classes without a bias or a dense layer are one product; padding changes nothing."""
    encoder, decoder = layers
    config = ModelConfig(
        vocab_size=13,
        d_model=6,
        num_heads=2,
        d_ff=7,
        num_encoder_layers=encoder,
        num_decoder_layers=decoder,
        pooler=Pooler(token="last", activation=None, num_classes=3, class_bias=False),
    )
    tokens = jnp.asarray(RNG.integers(13, size=(2, 5)))
    shown = jnp.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
    inputs = Inputs(
        *(tokens if layers else None for layers in (encoder, decoder)),
        *(shown if layers else None for layers in (encoder, decoder)),
    )
    outputs, variables = jax.jit(Transformer(config).init_with_output)(jax.random.key(0), inputs)
    kernel = variables["params"]["pooler"]["classes"]["kernel"]
    assert jax.tree.map(jnp.shape, variables["params"]["pooler"]) == {"classes": {"kernel": (6, 3)}}
    last = np.asarray(outputs.hidden if decoder else outputs.memory)[[0, 1], [2, 4]]
    np.testing.assert_allclose(outputs.pooled, last, rtol=1e-6)
    np.testing.assert_allclose(outputs.class_logits, last @ kernel, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("token", ["mean", "each"])
def test_a_pooler_of_all_tokens_has_a_dense_layer_a_norm_and_classes(token):
    """Each token by itself, in NumPy: tanh(x W) normalised, then classes; their mean is that of the tokens before it all."""
    config = ModelConfig(
        vocab_size=13,
        d_model=6,
        num_heads=2,
        d_ff=7,
        num_encoder_layers=1,
        num_decoder_layers=0,
        pooler=Pooler(token=token, dense_bias=False, norm=True, num_classes=3),
    )
    tokens, shown = jnp.asarray(RNG.integers(13, size=(2, 5))), jnp.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
    inputs = Inputs(tokens, source_mask=shown)
    outputs, variables = jax.jit(Transformer(config).init_with_output)(jax.random.key(0), inputs)
    params = variables["params"]["pooler"]
    assert sorted(params) == ["classes", "dense", "norm"] and sorted(params["dense"]) == ["kernel"]
    x = np.asarray(outputs.memory, np.float64)
    if token == "mean":
        x = np.stack([row[: m.sum()].mean(0) for row, m in zip(x, np.asarray(shown), strict=True)])
    x = np.tanh(x @ params["dense"]["kernel"])
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + config.norm.epsilon)
    np.testing.assert_allclose(outputs.pooled, x, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outputs.class_logits, x @ params["classes"]["kernel"], rtol=1e-4, atol=1e-5)
