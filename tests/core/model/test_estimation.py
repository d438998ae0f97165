"""Oracles: the formulas of COMET in NumPy, and the projection onto the simplex by a search."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.model.estimation import Estimation, Estimator, LayerMix, MixedLayers, sparsemax
from tests.support.limits import assert_close

RNG = np.random.default_rng(5)
LAYERS = jnp.asarray(RNG.normal(size=(3, 2, 4, 5)), jnp.float32)
SHOWN = jnp.array([[1, 1, 1, 1], [1, 1, 0, 0]], bool)
WEIGHTS, FACTOR = jnp.array([0.4, -1.5, 0.1]), jnp.array([1.7])


@pytest.mark.parametrize("x", [[0.4, -1.5, 0.1], [0.0, 0.0, 0.0], [5.0, 1.0, -2.0]], ids=str)
def test_sparsemax_is_the_nearest_point_of_the_simplex(x):
    """By its definition: of all points on each face of the simplex, the one that is nearest."""
    number, nearest = len(x), (np.inf, np.zeros(3))
    for size in range(1, number + 1):
        for face in map(list, itertools.combinations(range(number), size)):
            point = np.zeros(number)
            point[face] = np.asarray(x)[face] + (1 - np.asarray(x)[face].sum()) / size
            if point.min() >= 0:
                nearest = min(nearest, (float(np.square(point - x).sum()), point), key=lambda one: one[0])
    assert_close(sparsemax(jnp.asarray(x)), nearest[1])


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    ("weights", "shares"), [("softmax", [0.52899, 0.07912, 0.39189]), ("sparsemax", [0.65, 0, 0.35])]
)
def test_a_mix_is_a_factor_times_the_weighted_sum_of_the_layers(weights, shares, normalize):
    """Shares by hand; a normalised layer has mean 0 and variance 1 over the tokens of each text that are not padding."""
    module = MixedLayers(LayerMix(weights=weights, normalize=normalize))
    assert jax.tree.map(np.shape, module.init(jax.random.key(0), LAYERS, SHOWN)["params"]) == {
        "weights": (3,),
        "factor": (1,),
    }
    x = np.asarray(LAYERS, np.float64)
    if normalize:
        of_text = [x[:, [i], : m.sum()] for i, m in enumerate(SHOWN)]
        x = np.concatenate(
            [(x[:, [i]] - t.mean((2, 3), keepdims=True)) / t.std((2, 3), keepdims=True) for i, t in enumerate(of_text)],
            1,
        )
    wanted = 1.7 * sum(share * layer for share, layer in zip(shares, x, strict=True))
    found = module.apply({"params": {"weights": WEIGHTS, "factor": FACTOR}}, LAYERS, SHOWN)
    np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize("reference", [True, False])
def test_an_estimator_reads_products_and_differences(reference):
    source, translation, other = jnp.asarray(RNG.normal(size=(3, 2, 4)), jnp.float32)
    kernels = RNG.normal(size=(24 if reference else 16, 3)), RNG.normal(size=(3, 1))
    params = {f"dense_{i}": {"kernel": k, "bias": np.full(k.shape[1], 0.1)} for i, k in enumerate(kernels)}
    kernel_init = ModelConfig(vocab_size=3).initializer.kernel()
    module = Estimation(Estimator(reference=reference, widths=(3,)), kernel_init)
    shapes = module.init(jax.random.key(0), source, translation, other)["params"]
    assert jax.tree.map(np.shape, shapes) == jax.tree.map(np.shape, params)
    first, *rest = [other, source] if reference else [source]
    parts = [translation, first, translation * first, abs(translation - first)]
    parts += [part for one in rest for part in (translation * one, abs(translation - one))]
    wanted = np.tanh(np.concatenate(parts, 1) @ kernels[0] + 0.1) @ kernels[1] + 0.1
    assert_close(module.apply({"params": params}, source, translation, other), wanted[:, 0])
