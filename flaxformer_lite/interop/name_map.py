"""Two-way tables of weights: another system's names, our paths, and the reshapes between them.

A system lists its names as data, our module and theirs: `{"encoder/layers/attention/query": "encoder.{i}.q_lin", …}`.
`name_map` turns such a table into a list of `WeightName`, one for each parameter of a model. The same list turns their weights into
our parameters (`to_params`) and back (`from_params`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum
from typing import NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import PyTree

from flaxformer_lite.core.base.bounds import cut
from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.model.transformer import parameter_shapes

NumpyArrays = Mapping[str, np.ndarray]
Tensors = dict[str, np.ndarray]
NARROW = ("float32", "float16", "bfloat16")
"""Types of numbers that float32 holds exactly."""


class Layout(Enum):
    """The memory layout of their array, compared with ours."""

    SAME = "same"
    TRANSPOSED = "transposed"
    """A matrix `[out, in]`, as PyTorch stores it; ours is `[in, out]`."""
    LEADING_AXIS = "leading_axis"
    """An additional first axis of length 1."""

    def to_ours(self, x: np.ndarray) -> np.ndarray:
        if self is Layout.TRANSPOSED:
            return x.T
        return x if self is Layout.SAME else x[0]

    def to_theirs(self, x: np.ndarray) -> np.ndarray:
        if self is Layout.TRANSPOSED:
            return x.T
        return x if self is Layout.SAME else x[None]


class WeightName(NamedTuple):
    """A parameter of ours and its name in the other system."""

    path: str
    """Our path, parts joined by `/`."""
    names: tuple[str, ...]
    """Their name; of a parameter of a stack one name for each layer, or for each head of each layer, first layer first."""
    layout: Layout = Layout.SAME
    part: slice | np.ndarray | None = None
    """Our part of the last axis of their array in our layout, a slice or indices, where they fuse several parameters."""

    @property
    def stacked(self) -> bool:
        return "layers" in self.path.split("/")


# Tables of names -------------------------------------------------------------------------------------------------------


class Tensor(NamedTuple):
    """An array of theirs by its whole name."""

    name: str
    layout: Layout = Layout.TRANSPOSED


Names = Mapping[str, str | Tensor]
"""Their name of each module of ours that any model of the system may have; a row that a model does not need is not read.

key      the path of a module, or of one parameter. `{query,key}` stands for several paths: their array holds our outputs one after
         the other. `{query|key|value}`: it holds them by key/value head, the queries that read it, its key and its value
value    their name of the module, without the ends of `Leaves`, or of the parameter. `{i}` stands for the layer's number, from 0,
         `{n}` for the head's, where each head has an array of its own
"""


class Leaves(NamedTuple):
    """The ends of an array's name in another system, separator included, and the layout of matrices; by default PyTorch's."""

    kernel: str = ".weight"
    bias: str = ".bias"
    scale: str = ".weight"
    norm_bias: str = ".bias"
    embedding: str = ".weight"
    layout: Layout = Layout.TRANSPOSED

    def ends(self, of_norm: bool) -> dict[str, str]:
        """Returns the end of their name, by the end of our path; nothing is added to the path of a parameter."""
        ends = {"": "", "/kernel": self.kernel, "/bias": self.norm_bias if of_norm else self.bias}
        return ends | {"/scale": self.scale, "/embedding": self.embedding, "/table": self.embedding}


PYTORCH = Leaves()


def prefixed(ours: str, theirs: str, names: Mapping[str, str]) -> dict[str, str]:
    """Returns a table of names within a module as one of whole names. The prefixes include the separators."""
    return {f"{ours}{path}": f"{theirs}{name}" for path, name in names.items()}


def name_map(names: Names, model: ModelConfig, leaves: Leaves = PYTORCH) -> list[WeightName]:
    """Returns the parameters of the model that the table names."""
    shapes = our_shapes(model)
    weights = []
    for key, theirs in names.items():
        before, _, rest = key.partition("{")
        choices, _, after = rest.partition("}")
        groups = model.for_decoder.heads.num_kv_heads if "|" in choices else 1
        modules = [f"{before}{choice}{after}" for choice in choices.replace("|", ",").split(",")]
        for leaf, end in leaves.ends(of_norm=f"{modules[0]}/scale" in shapes).items():
            paths = [f"{module}{leaf}" for module in modules if f"{module}{leaf}" in shapes]
            num_columns = sum(shapes[path][-1] for path in paths)
            columns = np.arange(num_columns).reshape(groups, -1)
            start = 0
            for path in paths:
                layout = leaves.layout if path.endswith("/kernel") else Layout.SAME
                name, layout = theirs if isinstance(theirs, Tensor) else (theirs + end, layout)
                stop = start + shapes[path][-1] // groups
                places = slice(start, stop) if groups == 1 else columns[:, start:stop].ravel()
                weight = WeightName(path, (name,), layout, places if len(modules) > 1 else None)
                if weight.stacked:
                    weight = weight._replace(names=names_in_stack(name, shapes[path]))
                weights.append(weight)
                start = stop
    return weights


def names_in_stack(name: str, shape: Sequence[int]) -> tuple[str, ...]:
    """Returns a name for each layer, or for each head of each layer, of a parameter of a stack with this shape."""
    names = list[str]()
    for i in range(shape[0]):
        of_layer = name.replace("{i}", str(i))
        heads = range(shape[1] if "{n}" in name else 1)
        names += [of_layer.replace("{n}", str(n)) for n in heads]
    return tuple(names)


# Names of wrapped models ---------------------------------------------------------------------------------------------

WRAPPERS = ("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Modules that PyTorch puts around others: compiled, on several devices, sharded, recomputed. None has arrays of its own."""


def renamings(weights: NumpyArrays) -> Iterator[tuple[Tensors, str]]:
    """Yields the weights under names that a model may know them by, and a note on the parts of their names that are left out.

    First the names as they are, then without `WRAPPERS`, then also without the starts that at least half of them have, shortest
    first. No two weights get the same name.
    """
    yield dict(weights), ""
    inner = dict[str, str]()
    seen = set[str]()
    for name in weights:
        words = name.split(".")
        seen.update(words)
        inner[name] = ".".join(word for word in words if word not in WRAPPERS)
    wrappers = [f"{word}." for word in WRAPPERS if word in seen]
    starts = Counter[str]()
    for name in inner.values():
        starts.update(name[: i + 1] for i, letter in enumerate(name) if letter == ".")
    usual = sorted((start for start, number in starts.items() if 2 * number >= len(weights)), key=len)
    for start in ["", *usual]:
        renamed = {name.removeprefix(start): weights[theirs] for theirs, name in inner.items()}
        left_out = [*wrappers, start] if start else wrappers
        if len(renamed) == len(weights) and left_out:
            yield renamed, f"the names of the arrays are read without {' and '.join(map(repr, left_out))}"


def unwrapped(weights: NumpyArrays, known: Set[str]) -> tuple[NumpyArrays, str]:
    """Returns the weights under names that are all known, with the note of `renamings`; as they are where no renaming fits."""
    for renamed, note in renamings(weights):
        if renamed.keys() <= known:
            return renamed, note
    return weights, ""


# Both directions ------------------------------------------------------------------------------------------------------


def to_params(weights: NumpyArrays, names: Sequence[WeightName], model: ModelConfig) -> PyTree:
    """Returns our parameters for their weights, all float32.

    Raises: ValueError that lists the arrays that are missing, left over, wider than float32, of another shape than the model's, or
        have a number that is not finite.
    """
    check_sizes(weights, model)
    wanted = {name: x.shape for name, x in from_params(placeholders(model), names).items()}
    missing = [f"{name} {shape}" for name, shape in wanted.items() if name not in weights]
    left = weights.keys() - wanted.keys()
    left_over = [f"{name} {weights[name].shape}" for name in left]
    wide_ones, unlike = list[str](), list[str]()
    for name in wanted.keys() & weights.keys():
        x = weights[name]
        if x.dtype.name not in NARROW:
            wide_ones.append(f"{name} ({x.dtype})")
        if x.shape != wanted[name]:
            unlike.append(f"{name} ({x.shape}, the config needs {wanted[name]})")
    wide = listed("not float32, float16 or bfloat16", wide_ones)
    complaints = [listed("missing", missing), listed("left over", left_over), listed("of another shape", unlike), wide]
    reasons = [complaint for complaint in complaints if complaint]
    if reasons:
        why = "convert them" if reasons == [wide] else "the weights and the config are of different models"
        if any(".lora_" in name for name in left):
            why = "adapters are not read: merge them into the weights, as by PEFT's merge_and_unload"
        raise ValueError("; ".join(reasons) + f": {why}")
    damaged = listed("with a NaN or an infinity", (name for name in wanted if not is_finite(weights[name])))
    if damaged:
        raise ValueError(f"{damaged}: the file is damaged, or its training failed; get another copy")
    params = {}
    shapes = our_shapes(model)
    for weight in names:
        ours = [weight.layout.to_ours(np.asarray(weights[name], np.float32)) for name in weight.names]
        if weight.part is not None:
            ours = [x[..., weight.part] for x in ours]
        params[weight.path] = np.stack(ours).reshape(shapes[weight.path]) if weight.stacked else ours[0]
    return unflatten_dict(params, sep="/")


def from_params(params: PyTree, names: Sequence[WeightName]) -> Tensors:
    """Returns their weights for our parameters: `to_params` backwards, bit for bit. They may be views.

    Raises: ValueError that lists the parameters that the system has no name for, and those that are missing.
    """
    flat = flatten_dict(params, sep="/")
    paths = {weight.path for weight in names}
    complaints = [listed("without a name in that system", flat.keys() - paths), listed("missing", paths - flat.keys())]
    reasons = [complaint for complaint in complaints if complaint]
    if reasons:
        raise ValueError("; ".join(reasons) + ": it cannot hold this model")
    parts: dict[str, list[tuple[slice | np.ndarray | None, np.ndarray]]] = {}
    layouts = dict[str, Layout]()
    for weight in names:
        layouts |= dict.fromkeys(weight.names, weight.layout)
        array = np.asarray(flat[weight.path])
        if weight.stacked and len(weight.names) != len(array):
            array = array.reshape(len(weight.names), *array.shape[2:])
        arrays = array if weight.stacked else (array,)
        for name, x in zip(weight.names, arrays, strict=True):
            parts.setdefault(name, []).append((weight.part, x))
    return {name: layouts[name].to_theirs(fused(columns)) for name, columns in parts.items()}


def fused(parts: Sequence[tuple[slice | np.ndarray | None, np.ndarray]]) -> np.ndarray:
    """Returns the array that has these columns, one after the other or at their indices; a single one as it is."""
    arrays = [x for _, x in parts]
    whole = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, -1)
    indices = [places for places, _ in parts if isinstance(places, np.ndarray)]
    if not indices:
        return whole
    return whole[..., np.argsort(np.concatenate(indices))]


def check_sizes(weights: NumpyArrays, model: ModelConfig) -> None:
    """Raises: ValueError where the model is larger than all arrays together, before anything of its size is made."""
    numbers = sum(x.size for x in weights.values())
    layers = () if model.share_layers else ("num_encoder_layers", "num_decoder_layers")
    limits = dict.fromkeys(layers, (len(weights), "arrays"))
    sizes = ("d_model", "embedding_width", "num_heads", "d_ff", "vocab_size", "output_size", "num_token_types")
    limits |= dict.fromkeys(sizes, (numbers, "numbers"))
    for name, (most, what) in limits.items():
        size = getattr(model, name)
        if size > most:
            raise ValueError(
                f"model.{name} is {size}, but the weights are {most:,} {what}: the config does not fit them"
            )


def is_finite(x: np.ndarray) -> bool:
    """Returns whether every number is finite, without an array of flags."""
    return x.size == 0 or bool(np.isfinite(x.min()) and np.isfinite(x.max()))


def placeholders(model: ModelConfig) -> PyTree:
    """Returns arrays with the shapes of the model's parameters that take no memory: each is one byte, broadcast."""
    return jax.tree.map(lambda x: np.broadcast_to(np.int8(0), x.shape), parameter_shapes(model))


def our_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter of the model, by path."""
    return {path: leaf.shape for path, leaf in flatten_dict(parameter_shapes(model), sep="/").items()}


def listed(what: str, names: Iterable[str]) -> str:
    """Returns a complaint that lists the names, at most 8 of them; empty without names."""
    in_order = sorted(names)
    number = len(in_order)
    if number == 0:
        return ""
    shown = ", ".join(map(cut, in_order[:8]))
    if number > 8:
        shown += f" and {number - 8} more"
    return f"{number} array{'s' if number > 1 else ''} {what}: {shown}"
