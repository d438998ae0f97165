"""Models with their parameters on the devices of a placement, and answers that have the same bits."""

import functools

import jax
import numpy as np

from flaxformer_lite.core.model import ModelConfig, Transformer
from flaxformer_lite.core.model.inputs import example_inputs
from flaxformer_lite.core.parallel import MeshConfig, make_mesh, parameter_sharding
from flaxformer_lite.core.placement.placement import Placement
from flaxformer_lite.core.search.answers import Hypothesis


def placed(data: int, tensor: int) -> Placement:
    return Placement(make_mesh(MeshConfig(data=data, tensor=tensor), jax.devices()[: data * tensor]))


@functools.cache
def first_values(config: ModelConfig, seed: int):
    """Parameters, three times as large as a training starts from, so that answers differ."""
    params = jax.jit(lambda: Transformer(config).init(jax.random.key(seed), example_inputs(config))["params"])()
    return jax.tree.map(lambda x: np.asarray(3 * x, config.dtype), params)


def parameters(config: ModelConfig, placement: Placement, seed: int = 0):
    """Returns a model and its variables on the devices, their vocabulary padded by zeros where it does not divide."""
    params = first_values(config, seed)
    if placement.mesh is None:
        return Transformer(config), {"params": params}
    model = Transformer(config, placement.tensor)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), example_inputs(config)))["params"]
    sizes = jax.tree.map(lambda x, like: [(0, b - a) for a, b in zip(x.shape, like.shape, strict=True)], params, shapes)
    padded = jax.tree.map(lambda x, widths: np.pad(x, widths), params, sizes)
    return model, {"params": jax.device_put(padded, parameter_sharding(shapes, placement.mesh))}


def assert_same_bits(ours: list[list[Hypothesis]], theirs: list[list[Hypothesis]]) -> None:
    """The compiler of JAX 0.7 fuses a step otherwise where it is divided: the last bits of scores differ there."""
    if jax.__version_info__ >= (0, 8):
        assert ours == theirs
    assert [[one.tokens for one in each] for each in ours] == [[one.tokens for one in each] for each in theirs]
    scores = ([one.score for each in answers for one in each] for answers in (ours, theirs))
    np.testing.assert_allclose(*scores, rtol=1e-4)
