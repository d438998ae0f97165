"""Selections of parameters by patterns of their paths: which of them train, and at which fraction of the learning rate.

A path is one that `inspect` lists, such as `decoder/layers/attention/query/kernel`. An array of all layers has a path for each
layer too, `decoder/layers/3/attention/query/kernel`. So a pattern may name some of the layers. `*` matches slashes as well.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import PyTree

from flaxformer_lite.core.base.suggest import suggest
from flaxformer_lite.core.base.tree_paths import leaf_path, leaves_by_path


def layer_paths(path: str, x: Any) -> list[str]:
    """Returns the paths of the layers of a stacked array, or the array's own path if it is not one."""
    before, layers, after = path.partition("/layers/")
    return [f"{before}/layers/{i}/{after}" for i in range(x.shape[0])] if layers else [path]


def by_layer(path: str, x: Any, value: Callable[[str], float]) -> np.ndarray:
    """Returns `value(path)` as an array that broadcasts against the parameter `x`: one number, or one for each layer."""
    values = np.array([value(layer) for layer in layer_paths(path, x)], np.float32)
    return values.reshape([-1, *[1] * (x.ndim - 1)] if "/layers/" in path else [])


def matches(path: str, pattern: str) -> bool:
    """Returns whether a pattern matches the path of a layer, or of the stacked array that holds it."""
    return fnmatchcase(path, pattern) or fnmatchcase(re.sub(r"/layers/\d+/", "/layers/", path), pattern)


def all_layer_paths(params: PyTree) -> list[str]:
    paths = list[str]()
    for path, x in leaves_by_path(params).items():
        paths += layer_paths(path, x)
    return paths


def check_patterns(setting: str, patterns: Iterable[str], params: PyTree) -> None:
    """Raises: ValueError for a pattern that matches no parameter."""
    paths = all_layer_paths(params)
    for pattern in patterns:
        if not any(matches(path, pattern) for path in paths):
            raise ValueError(
                f"{setting} has {pattern!r}, which matches no parameter: `flaxformer-lite inspect RUN` lists their paths"
                f"{suggest(pattern, paths)}"
            )


# Freezing ----------------------------------------------------------------------------------------------------------------


def trains(path: str, trainable: tuple[str, ...]) -> bool:
    """Returns whether a parameter trains, by the path of its array or of one of its layers."""
    if any(matches(path, pattern[1:]) for pattern in trainable if pattern.startswith("!")):
        return False
    return any(matches(path, pattern) for pattern in trainable)


def trained_layers(path: str, x: object, trainable: tuple[str, ...]) -> np.ndarray:
    """Returns which layers of a parameter train, as an array that broadcasts against it: 1 for those, 0 for the others."""
    return by_layer(path, x, lambda layer: trains(layer, trainable))


def split(params: PyTree, trainable: tuple[str, ...]) -> tuple[PyTree, PyTree]:
    """Returns the parameters with at least one trained layer, and the frozen parameters: two trees without each other's leaves.

    Raises: ValueError for a pattern that matches no parameter.
    """
    check_patterns("train.trainable", [pattern.removeprefix("!") for pattern in trainable], params)
    flat = flatten_dict(params, sep="/")
    trained = {path: x for path, x in flat.items() if trained_layers(path, x, trainable).any()}
    frozen = {path: x for path, x in flat.items() if path not in trained}
    return unflatten_dict(trained, sep="/"), unflatten_dict(frozen, sep="/")


def merge_trees(trained: PyTree, frozen: PyTree) -> PyTree:
    """Returns the parameters of both trees of `split` in one."""
    return unflatten_dict({**flatten_dict(trained), **flatten_dict(frozen)}) if frozen else trained


def with_frozen_dtype(params: PyTree, trainable: tuple[str, ...], dtype: str) -> PyTree:
    """Returns the parameters with the frozen ones in that type, as a run keeps them."""
    trained, frozen = split(params, trainable)
    return merge_trees(trained, jax.tree.map(lambda x: x.astype(dtype), frozen))


def without_frozen_layers(tree: PyTree, trainable: tuple[str, ...]) -> PyTree:
    """Sets gradients or updates of frozen layers to zero, in stacked arrays whose other layers train."""

    def masked(keys: tuple[object, ...], x: Any) -> Any:
        trains = trained_layers(leaf_path(keys), x, trainable)
        return x if trains.all() else jnp.where(trains > 0, x, 0)

    return jax.tree.map_with_path(masked, tree)


# Rates -------------------------------------------------------------------------------------------------------------------


def check_rates(rates: Mapping[str, float], params: PyTree, trainable: tuple[str, ...]) -> None:
    """Compares the patterns of `optimizer.rates` with all parameters of a model, frozen ones too.

    Raises: ValueError for a pattern that matches no parameter, or only frozen parameters.
    """
    check_patterns("optimizer.rates", rates, params)
    trained = [path for path in all_layer_paths(params) if trains(path, trainable)]
    for pattern in rates:
        if not any(matches(path, pattern) for path in trained):
            raise ValueError(
                f"optimizer.rates has {pattern!r}, which matches only frozen parameters (what trains is {trainable}): name "
                "them in train.trainable, or leave the rate out"
            )


def depth_below_head(path: str, num_layers: Mapping[str, int]) -> int:
    """Returns how far a parameter lies below the head, which is 0: layers count in their own stack; embeddings are the lowest.

    num_layers: of each stack of the model, by its name.
    """
    stack, _, rest = path.partition("/")
    if stack in num_layers:
        layer = re.match(r"layers/(\d+)/", rest)
        if layer:
            return num_layers[stack] - int(layer[1])
        return 0 if rest.startswith(("final_norm/", "output_projection/")) else num_layers[stack] + 1
    return max(num_layers.values()) + 1 if stack.endswith("embedding") else 0


def scaled_updates(
    inner: optax.GradientTransformation,
    rates: Mapping[str, float],
    layer_decay: float,
    num_layers: Mapping[str, int],
) -> optax.GradientTransformation:
    """Multiplies the updates of `inner` by a factor for each parameter of each layer; the state is that of `inner`.

    The factor is the product of all `rates` whose pattern matches, times `layer_decay` to the power of `depth_below_head`.
    `num_layers` is the model's: the parameters that train tell nothing about the layers that are frozen.

    Reference: Howard & Ruder 2018, arXiv:1801.06146, section 3.2; Bao et al. 2022, arXiv:2106.08254, appendix on fine-tuning.
    """

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        updates, state = inner.update(updates, state, params)

        def factor(path: str) -> float:
            chosen = [factor for pattern, factor in rates.items() if matches(path, pattern)]
            return math.prod(chosen) * layer_decay ** depth_below_head(path, num_layers)

        def scale(keys: tuple[Any, ...], x: Any) -> Any:
            return (x * by_layer(leaf_path(keys), x, factor)).astype(x.dtype)

        return jax.tree.map_with_path(scale, updates), state

    return inner if not rates and layer_decay == 1 else optax.GradientTransformation(inner.init, update)
