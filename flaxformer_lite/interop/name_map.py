"""Weights of other systems: their names, ours, and the reshapes between them.

A system's name map is a list of `WeightName`. The same list reads their weights into our parameters and writes ours back.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import PyTree

from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.inputs import example_inputs
from flaxformer_lite.model.transformer import Transformer

Arrays = Mapping[str, np.ndarray]


class Layout(Enum):
    """How an array of theirs lies in memory, seen from ours."""

    SAME = "same"
    TRANSPOSED = "transposed"
    """A matrix `[out, in]`, as PyTorch keeps it; ours is `[in, out]`."""
    ROW = "row"
    """With a leading axis of length 1."""

    def to_ours(self, x: np.ndarray) -> np.ndarray:
        return x if self is Layout.SAME else x.T if self is Layout.TRANSPOSED else x[0]

    def to_theirs(self, x: np.ndarray) -> np.ndarray:
        return x if self is Layout.SAME else x.T if self is Layout.TRANSPOSED else x[None]


class Part(NamedTuple):
    """Where a parameter of ours lies in a larger array of theirs: from `start` to before `stop` along `axis` (of theirs)."""

    axis: int
    start: int
    stop: int

    def of(self, x: np.ndarray) -> np.ndarray:
        """The part of the whole array."""
        return np.moveaxis(np.moveaxis(x, self.axis, 0)[self.start : self.stop], 0, self.axis)


class WeightName(NamedTuple):
    """One of our parameters and what it is called elsewhere."""

    path: str
    """Ours, parts joined by `/`."""
    names: tuple[str, ...]
    """Theirs: one, or for a parameter of a stack one a layer, first layer first."""
    layout: Layout = Layout.SAME
    part: Part | None = None
    """Where several of ours are one of theirs; together the parts make it up entirely."""

    @property
    def stacked(self) -> bool:
        return "layers" in self.path.split("/")


def layers(path: str, name: str, num_layers: int, layout: Layout = Layout.SAME) -> WeightName:
    """A parameter of every layer of a stack; `{i}` in `name` stands for the layer's number, from 0."""
    return WeightName(path, tuple(name.replace("{i}", str(i)) for i in range(num_layers)), layout)


def to_params(weights: Arrays, names: Sequence[WeightName], model: ModelConfig) -> PyTree:
    """Our parameters from their weights, all float32.

    Raises: ValueError that lists what is missing, what is left over, what is no float32 (or narrower) number, and what has another
    shape than the model's.
    """
    wanted = their_shapes(names, model)
    complaints = [
        listed("missing", (f"{name} {wanted[name]}" for name in wanted.keys() - weights.keys())),
        listed("left over", (f"{name} {weights[name].shape}" for name in weights.keys() - wanted.keys())),
        listed(
            "not float32, float16 or bfloat16",
            (f"{x} ({weights[x].dtype})" for x in wanted.keys() & weights.keys() if not narrow(weights[x].dtype)),
        ),
        listed(
            "of another shape",
            (
                f"{name} ({weights[name].shape}, the config needs {shape})"
                for name, shape in wanted.items()
                if name in weights and weights[name].shape != shape
            ),
        ),
    ]
    if found := [complaint for complaint in complaints if complaint]:
        raise ValueError("; ".join(found) + ": the weights and the config are of different models")
    params = {}
    for weight in names:
        theirs = [np.asarray(weights[name], np.float32) for name in weight.names]
        ours = [weight.layout.to_ours(x if weight.part is None else weight.part.of(x)) for x in theirs]
        params[weight.path] = np.stack(ours) if weight.stacked else ours[0]
    return unflatten_dict(params, sep="/")


def narrow(dtype: np.dtype) -> bool:
    """Whether every number of that type is a float32 too."""
    return dtype.name in ("float32", "float16", "bfloat16")


def from_params(params: PyTree, names: Sequence[WeightName]) -> dict[str, np.ndarray]:
    """Their weights from our parameters: `to_params` backwards, bit for bit.

    Raises: ValueError that lists parameters which the system has no name for, or which the run has not.
    """
    flat = flatten_dict(params, sep="/")
    paths = {weight.path for weight in names}
    complaints = [listed("without a name there", flat.keys() - paths), listed("missing", paths - flat.keys())]
    if found := [complaint for complaint in complaints if complaint]:
        raise ValueError("; ".join(found) + ": that system cannot hold this model")
    whole: dict[str, np.ndarray] = {}
    pieces: dict[str, list[tuple[Part, np.ndarray]]] = {}
    for weight in names:
        for name, array in zip(weight.names, parts(np.asarray(flat[weight.path]), weight), strict=True):
            theirs = weight.layout.to_theirs(array)
            if weight.part is None:
                whole[name] = np.ascontiguousarray(theirs)
            else:
                pieces.setdefault(name, []).append((weight.part, theirs))
    for name, found_pieces in pieces.items():
        in_order = sorted(found_pieces, key=lambda piece: piece[0].start)
        whole[name] = np.concatenate([array for _, array in in_order], in_order[0][0].axis)
    return whole


def parts(array: np.ndarray, weight: WeightName) -> Iterator[np.ndarray]:
    """The layers of a stacked parameter, or the parameter itself."""
    yield from array if weight.stacked else (array,)


def their_shapes(names: Sequence[WeightName], model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every array of theirs that the model needs.

    Raises: ValueError where the model has a parameter without a name there, or a name without a parameter.
    """
    ours = our_shapes(model)
    paths = {weight.path for weight in names}
    complaints = [listed("without a name there", ours.keys() - paths), listed("not in the model", paths - ours.keys())]
    if found := [complaint for complaint in complaints if complaint]:
        raise ValueError("; ".join(found) + ": that system cannot hold this model")
    theirs: dict[str, tuple[int, ...]] = {}
    for weight in names:
        shape = ours[weight.path][1:] if weight.stacked else ours[weight.path]
        shape = weight.layout.to_theirs(np.broadcast_to(np.float32(0), shape)).shape
        for name in weight.names:
            if weight.part is not None:
                stop = max(weight.part.stop, theirs.get(name, shape)[weight.part.axis])
                axis = weight.part.axis % len(shape)
                theirs[name] = (*shape[:axis], stop, *shape[axis + 1 :])
            else:
                theirs[name] = shape
    return theirs


@functools.cache
def our_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter of the model."""
    shapes = jax.eval_shape(Transformer(model).init, jax.random.key(0), example_inputs(model))["params"]
    return {path: leaf.shape for path, leaf in flatten_dict(shapes, sep="/").items()}


def listed(what: str, names: Iterable[str]) -> str:
    """A complaint that lists the names, empty if there are none."""
    found = sorted(names)
    shown = ", ".join(found[:8]) + (f" and {len(found) - 8} more" if len(found) > 8 else "")
    return f"{len(found)} array{'s' * (len(found) > 1)} {what}: {shown}" if found else ""


def setting(settings: Mapping[str, Any], name: str, kind: type | tuple[type, ...] = int) -> Any:
    """A value of the other system's config. Raises: ValueError where it is missing or of another type."""
    if name not in settings:
        raise ValueError(f"the config has no {name!r}; it has {', '.join(sorted(settings))}")
    value = settings[name]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        kinds = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise ValueError(f"the config's {name} is {value!r}: it should be {kinds}")
    return value
