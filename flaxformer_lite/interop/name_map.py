"""Two-way tables of weights: another system's names, our paths, and the reshapes between them.

A name map is a list of `WeightName`. The same list turns their weights into our parameters (`to_params`) and back (`from_params`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import PyTree

from flaxformer_lite.bounds import cut
from flaxformer_lite.model import ModelConfig
from flaxformer_lite.model.transformer import parameter_shapes

Arrays = Mapping[str, np.ndarray]


class Leaves(NamedTuple):
    """The ends of a layer's two names in another system, separator included."""

    weight: str
    bias: str


PYTORCH = Leaves(".weight", ".bias")


class Layout(Enum):
    """The memory layout of their array, compared with ours."""

    SAME = "same"
    TRANSPOSED = "transposed"
    """A matrix `[out, in]`, as PyTorch stores it; ours is `[in, out]`."""
    LEADING_AXIS = "leading_axis"
    """An additional first axis of length 1."""

    def to_ours(self, x: np.ndarray) -> np.ndarray:
        return x if self is Layout.SAME else x.T if self is Layout.TRANSPOSED else x[0]

    def to_theirs(self, x: np.ndarray) -> np.ndarray:
        return x if self is Layout.SAME else x.T if self is Layout.TRANSPOSED else x[None]


class FusedSlice(NamedTuple):
    """The slice `[start, stop)` along `axis` of their fused array that is one parameter of ours."""

    axis: int
    start: int
    stop: int

    def take(self, x: np.ndarray) -> np.ndarray:
        """Returns the slice of a fused array."""
        return np.moveaxis(np.moveaxis(x, self.axis, 0)[self.start : self.stop], 0, self.axis)


class WeightName(NamedTuple):
    """A parameter of ours and its name in the other system."""

    path: str
    """Our path, parts joined by `/`."""
    names: tuple[str, ...]
    """Their name; of a parameter of a stack one name for each layer, first layer first."""
    layout: Layout = Layout.SAME
    part: FusedSlice | None = None
    """Our slice of their array, where they fuse several parameters; together the slices cover the array."""

    @property
    def stacked(self) -> bool:
        return "layers" in self.path.split("/")


# The rows of a name map -----------------------------------------------------------------------------------------------


def linear(
    ours: str, theirs: str, *, bias: bool = True, layout: Layout = Layout.TRANSPOSED, leaves: Leaves = PYTORCH
) -> list[WeightName]:
    """Returns the names of a dense layer: its kernel and, unless it has none, its bias."""
    kernel = WeightName(f"{ours}/kernel", (f"{theirs}{leaves.weight}",), layout)
    return [kernel, WeightName(f"{ours}/bias", (f"{theirs}{leaves.bias}",))] if bias else [kernel]


def norm(ours: str, theirs: str, *, bias: bool = True, leaves: Leaves = PYTORCH) -> list[WeightName]:
    """Returns the names of a norm: its scale and, unless it has none, its bias."""
    scale = WeightName(f"{ours}/scale", (f"{theirs}{leaves.weight}",))
    return [scale, WeightName(f"{ours}/bias", (f"{theirs}{leaves.bias}",))] if bias else [scale]


def table(ours: str, theirs: str) -> list[WeightName]:
    """Returns the name of an embedding table, as PyTorch calls it."""
    return [WeightName(f"{ours}/embedding", (f"{theirs}.weight",))]


def stacked(weights: Iterable[WeightName], num_layers: int) -> list[WeightName]:
    """Returns the names of every layer, from those of one; `{i}` in a name stands for the layer's number, from 0."""
    return [
        weight._replace(names=tuple(name.replace("{i}", str(i)) for i in range(num_layers) for name in weight.names))
        for weight in weights
    ]


# Both directions ------------------------------------------------------------------------------------------------------


def to_params(weights: Arrays, names: Sequence[WeightName], model: ModelConfig) -> PyTree:
    """Returns our parameters for their weights, all float32.

    Raises: ValueError that lists the arrays that are missing, left over, wider than float32, of another shape than the model's, or
        have a number that is not finite.
    """
    check_sizes(weights, model)
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
    if damaged := listed("with a NaN or an infinity", (name for name in wanted if not is_finite(weights[name]))):
        raise ValueError(f"{damaged}: the file is damaged, or its training failed; get another copy")
    params = {}
    for weight in names:
        theirs = [np.asarray(weights[name], np.float32) for name in weight.names]
        ours = [weight.layout.to_ours(x if weight.part is None else weight.part.take(x)) for x in theirs]
        params[weight.path] = np.stack(ours) if weight.stacked else ours[0]
    return unflatten_dict(params, sep="/")


def check_sizes(weights: Arrays, model: ModelConfig) -> None:
    """Raises: ValueError where the model is larger than all arrays together, before anything of its size is made."""
    numbers = sum(x.size for x in weights.values())
    sizes = ("d_model", "num_heads", "d_ff", "vocab_size", "output_size", "num_token_types")
    for names, most, what in (
        (("num_encoder_layers", "num_decoder_layers"), len(weights), "arrays"),
        (sizes, numbers, "numbers"),
    ):
        for name in names:
            if (size := getattr(model, name)) > most:
                raise ValueError(
                    f"model.{name} is {size}, but the weights are {most:,} {what}: the config does not fit them"
                )


def narrow(dtype: np.dtype) -> bool:
    """Returns whether float32 holds every number of this type exactly."""
    return dtype.name in ("float32", "float16", "bfloat16")


def is_finite(x: np.ndarray) -> bool:
    """Returns whether every number is finite, without an array of flags."""
    return x.size == 0 or bool(np.isfinite(x.min()) and np.isfinite(x.max()))


def from_params(params: PyTree, names: Sequence[WeightName]) -> dict[str, np.ndarray]:
    """Returns their weights for our parameters: `to_params` backwards, bit for bit.

    Raises: ValueError that lists the parameters that the system has no name for, and those that are missing.
    """
    flat = flatten_dict(params, sep="/")
    paths = {weight.path for weight in names}
    complaints = [listed("without a name there", flat.keys() - paths), listed("missing", paths - flat.keys())]
    if found := [complaint for complaint in complaints if complaint]:
        raise ValueError("; ".join(found) + ": that system cannot hold this model")
    whole: dict[str, np.ndarray] = {}
    pieces: dict[str, list[tuple[FusedSlice, np.ndarray]]] = {}
    for weight in names:
        for name, array in zip(weight.names, per_layer(np.asarray(flat[weight.path]), weight), strict=True):
            theirs = weight.layout.to_theirs(array)
            if weight.part is None:
                whole[name] = np.ascontiguousarray(theirs)
            else:
                pieces.setdefault(name, []).append((weight.part, theirs))
    for name, found_pieces in pieces.items():
        in_order = sorted(found_pieces, key=lambda piece: piece[0].start)
        whole[name] = np.concatenate([array for _, array in in_order], in_order[0][0].axis)
    return whole


def per_layer(array: np.ndarray, weight: WeightName) -> Iterator[np.ndarray]:
    """Yields the layers of a stacked parameter, or the parameter itself."""
    yield from array if weight.stacked else (array,)


def their_shapes(names: Sequence[WeightName], model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every array of theirs that the model needs.

    Raises: ValueError where a parameter of the model has no name, or a name has no parameter.
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


def our_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter of the model, by path."""
    return {path: leaf.shape for path, leaf in flatten_dict(parameter_shapes(model), sep="/").items()}


def listed(what: str, names: Iterable[str]) -> str:
    """Returns a complaint that lists the names, at most 8 of them; empty if there are none."""
    found = sorted(names)
    shown = ", ".join(map(cut, found[:8])) + (f" and {len(found) - 8} more" if len(found) > 8 else "")
    return f"{len(found)} array{'s' * (len(found) > 1)} {what}: {shown}" if found else ""
