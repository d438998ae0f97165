"""Laws of heads without JAX. Oracle: the Linen modules of the same heads, which have oracles of their own."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from flaxformer_lite.core.model.config import ModelConfig
from flaxformer_lite.core.model.heads import Pooling, TextVector
from flaxformer_lite.core.reading.heads import DenseLayer, Pooler, SentenceEmbedding
from flaxformer_lite.engine.heads import NumpyHeads
from tests.support.limits import assert_close

RNG = np.random.default_rng(4)
HIDDEN = RNG.normal(size=(4, 5, 6)).astype(np.float32)
MASK = np.arange(5) < np.array([5, 1, 3, 4])[:, None]


def both(module: Any, name: str, **heads: Any) -> tuple[Any, NumpyHeads]:
    """Returns what JAX computes of a module with parameters by chance, and the heads with the same parameters."""
    shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.asarray(HIDDEN), jnp.asarray(MASK)).get("params", {})
    params = jax.tree.map(lambda x: RNG.normal(size=x.shape).astype(np.float32), shapes)
    found = module.apply({"params": params}, jnp.asarray(HIDDEN), jnp.asarray(MASK))
    flat = flatten_dict({name: params}, sep="/")
    return found, NumpyHeads(**{"pooler": None, "sentence_embedding": None, **heads}, params=flat)


@pytest.mark.parametrize("token", ["first", "last", "mean", "late_mean", "each"])
@pytest.mark.parametrize("activation", [None, "tanh", "relu", "gelu", "gelu_tanh", "silu"])
def test_classes_are_those_of_the_module(token: Any, activation: Any):
    config = ModelConfig(vocab_size=3, d_model=6, num_heads=1)
    pooler = Pooler(token=token, activation=activation, num_classes=3)
    (_, logits), heads = both(Pooling(config, pooler), "pooler", pooler=pooler)
    assert_close(heads.class_logits(HIDDEN, MASK), logits)


POOLINGS = ["mean", "weighted_mean", "mean_sqrt_length", "max", "cls", "last"]


@pytest.mark.parametrize(("pooling", "normalize"), [*itertools.product(POOLINGS, [True, False])])
def test_vectors_are_those_of_the_module(pooling: Any, normalize: bool):
    config = ModelConfig(vocab_size=3, d_model=6, num_heads=1)
    for dense in ((), (DenseLayer(width=7, activation="gelu"), DenseLayer(width=2, bias=False))):
        settings = SentenceEmbedding(pooling=pooling, normalize=normalize, dense=dense)
        vectors, heads = both(TextVector(config, settings), "sentence_embedding", sentence_embedding=settings)
        assert_close(heads.vectors(HIDDEN, MASK), vectors)
        assert heads.vectors(HIDDEN, MASK).dtype == np.float32
