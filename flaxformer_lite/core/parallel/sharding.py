"""Shardings: a table gives the axis of the mesh that divides each dimension of an array.

| axis | divides | known as |
|---|---|---|
| `data` | rows of the batch; all else is copied | data parallelism |
| `fsdp` | rows of the batch, and parameters with their optimizer state, gathered layer by layer | fully sharded data parallelism |
| `tensor` | heads, feed-forward width and vocabulary; the products are summed | tensor parallelism |

Reference: Rajbhandari et al. 2020, arXiv:1910.02054 (fsdp, there stage 3); Shoeybi et al. 2019, arXiv:1909.08053 (tensor).
"""

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from flaxformer_lite.core.base.tree_paths import leaf_path, leaves_by_path

MESH_AXES = ("data", "fsdp", "tensor")
ROW_AXES = ("data", "fsdp")
"""The axes that divide the rows of a batch."""


class ShardingRule(NamedTuple):
    """The sharding of the parameters whose path matches a pattern. A leading axis of layers is never divided."""

    pattern: str
    dimensions: tuple[str, ...]
    """The setting that each of the last dimensions comes from."""
    axes: tuple[str | None, ...]
    """The axis of the mesh that divides each of the last dimensions."""


VOCABULARY, WIDTH, INNER, RANK = "model.vocab_size", "model.d_model", "model.d_ff", "model.lora.rank"
EMBEDDED = "model.d_model (or model.embedding_projection.width)"
HEAD_WIDTHS = "model.num_heads (or model.attention.num_kv_heads) times the head's width"

PARAMETERS = (
    ShardingRule(r"(source_|target_|)embedding/embedding", (VOCABULARY, EMBEDDED), ("tensor", "fsdp")),
    ShardingRule(r"(token_type_embedding|.*/(relative_|)positions)/embedding", ("rows", EMBEDDED), (None, "fsdp")),
    ShardingRule(r".*/(relative_|)(query|key|value)/kernel", (WIDTH, HEAD_WIDTHS), ("fsdp", "tensor")),
    ShardingRule(r".*/(relative_|)(query|key|value)/bias", (HEAD_WIDTHS,), ("tensor",)),
    ShardingRule(r".*/out/kernel", (HEAD_WIDTHS, WIDTH), ("tensor", "fsdp")),
    ShardingRule(r".*/(up|gate)/kernel", (WIDTH, INNER), ("fsdp", "tensor")),
    ShardingRule(r".*/(up|gate)/bias", (INNER,), ("tensor",)),
    ShardingRule(r".*/down/kernel", (INNER, WIDTH), ("tensor", "fsdp")),
    ShardingRule(r"head/kernel", (EMBEDDED, VOCABULARY), ("fsdp", "tensor")),
    ShardingRule(r"head/bias", (VOCABULARY,), ("tensor",)),
    ShardingRule(
        r"(head/transform|pooler/dense|.*/(embedding|output)_projection)/kernel", (EMBEDDED, WIDTH), ("fsdp", None)
    ),
    # Adapters: the side that they share with the kernel, divided as it is.
    ShardingRule(r".*/((relative_|)(query|key|value)|up|gate)/lora_a/kernel", (WIDTH, RANK), ("fsdp", None)),
    ShardingRule(r".*/(relative_|)(query|key|value)/lora_b/kernel", (RANK, HEAD_WIDTHS), (None, "tensor")),
    ShardingRule(r".*/(up|gate)/lora_b/kernel", (RANK, INNER), (None, "tensor")),
    ShardingRule(r".*/out/lora_a/kernel", (HEAD_WIDTHS, RANK), ("tensor", None)),
    ShardingRule(r".*/down/lora_a/kernel", (INNER, RANK), ("tensor", None)),
    ShardingRule(r".*/(out|down)/lora_b/kernel", (RANK, WIDTH), (None, "fsdp")),
)
"""The first matching rule counts. All other parameters (norms, other biases, small tables) are whole on every device."""

ACTIVATIONS: dict[str, tuple[str | tuple[str, ...] | None, ...]] = {
    "B T D": (ROW_AXES, None, None),
    "V D": ("tensor", None),
    "D V": (None, "tensor"),
    "B K S H": (ROW_AXES, "tensor", None, None),
}
"""Axes of activations by their letters (see `model/__init__.py`): outputs of layers, the embedding table during lookup, the head's
kernel and the cache of a search. The compiler derives all other shardings from these and from the parameters."""


# Parameters and their optimizer state ------------------------------------------------------------------------------------


Owner = tuple[tuple[int, ...], tuple[str | None, ...]]
"""The shape of a parameter, and the axis that divides each dimension."""


def parameter_axes(path: str, shape: tuple[int, ...], mesh: Mesh | AbstractMesh) -> tuple[str | None, ...]:
    """Returns for each dimension of a parameter the axis that divides it, or None.

    Raises: ValueError if the size of the axis does not divide the dimension.
    """
    rule = parameter_rule(path)
    if rule is None:
        return (None,) * len(shape)
    layers = len(shape) - len(rule.axes)
    parts = [1 if axis is None else mesh.shape.get(axis, 1) for axis in rule.axes]
    for name, size, axis, n in zip(rule.dimensions, shape[layers:], rule.axes, parts, strict=True):
        if size % n:
            raise ValueError(
                f"train.mesh.{axis} is {n}, but the parameter {path} has shape {shape} and {n} does not divide its {size}: choose "
                f"a divisor of {size} for train.mesh.{axis}, or make {name} a multiple of {n}"
            )
    return (None,) * layers + tuple(axis if n > 1 else None for axis, n in zip(rule.axes, parts, strict=True))


def parameter_rule(path: str) -> ShardingRule | None:
    """Returns the rule of the parameter with that path; None: it is whole on every device."""
    return next((rule for rule in PARAMETERS if re.fullmatch(rule.pattern, path)), None)


def parameter_sharding(params: PyTree, mesh: Mesh | AbstractMesh) -> PyTree:
    """Returns a `NamedSharding` for every parameter. Raises: ValueError with the parameter that an axis does not divide."""
    return jax.tree.map_with_path(
        lambda keys, x: NamedSharding(mesh, PartitionSpec(*parameter_axes(leaf_path(keys), x.shape, mesh))), params
    )


# Parameters whose vocabulary no axis divides: they are stored whole, divided by their width, and used padded.


def vocabulary_dimension(path: str, ndim: int) -> int | None:
    """Returns the dimension of a parameter that counts ids of the vocabulary; None: no dimension does."""
    rule = parameter_rule(path)
    if rule is None or VOCABULARY not in rule.dimensions:
        return None
    return ndim - len(rule.dimensions) + rule.dimensions.index(VOCABULARY)


def padded_vocabulary(shapes: PyTree, multiple: int) -> PyTree:
    """Returns the shapes of parameters for a vocabulary that is padded to a multiple, without shardings."""

    def leaf(keys: tuple[Any, ...], x: Any) -> jax.ShapeDtypeStruct:
        shape, dimension = list(x.shape), vocabulary_dimension(leaf_path(keys), x.ndim)
        if dimension is not None:
            shape[dimension] += -shape[dimension] % multiple
        return jax.ShapeDtypeStruct(tuple(shape), x.dtype)

    return jax.tree.map_with_path(leaf, shapes)


def stored_sharding(shapes: PyTree, mesh: Mesh | AbstractMesh) -> PyTree:
    """Returns the shardings in which stored parameters are read: those of `parameter_sharding`, where the vocabulary divides.

    A table that it does not divide is divided by its width, if that divides.
    """
    parts = mesh.shape.get("tensor", 1)

    def leaf(keys: tuple[object, ...], x: Any) -> NamedSharding:
        path = leaf_path(keys)
        dimension = vocabulary_dimension(path, x.ndim)
        if dimension is None or x.shape[dimension] % parts == 0:
            return NamedSharding(mesh, PartitionSpec(*parameter_axes(path, x.shape, mesh)))
        axes = (None if i == dimension or n % parts else "tensor" for i, n in enumerate(x.shape))
        return NamedSharding(mesh, PartitionSpec(*axes))

    return jax.tree.map_with_path(leaf, shapes)


def with_padded_vocabulary(params: PyTree, mesh: Mesh) -> PyTree:
    """Returns parameters of `stored_sharding` with their vocabulary padded by zeros, in the shardings of `parameter_sharding`.

    One table at a time is copied, from shard to shard.
    """
    padded = padded_vocabulary(params, mesh.shape["tensor"])

    def leaf(x: Array, like: Any, sharding: NamedSharding) -> Array:
        if x.shape == like.shape:
            return x
        widths = [(0, new - old) for old, new in zip(x.shape, like.shape, strict=True)]
        grown: Array = jax.jit(lambda x: jnp.pad(x, widths), out_shardings=sharding)(x)
        return grown

    return jax.tree.map(leaf, params, padded, parameter_sharding(padded, mesh))


def without_padding(params: PyTree, shapes: PyTree) -> PyTree:
    """Returns parameters without the padding of a divided vocabulary."""
    return jax.tree.map(
        lambda x, like: x if x.shape == like.shape else x[tuple(map(slice, like.shape))], params, shapes
    )


def state_sharding(state: PyTree, mesh: Mesh | AbstractMesh) -> PyTree:
    """Returns a `NamedSharding` for every leaf of a `TrainState` (or of its shapes).

    The state that an optimizer or an average keeps for a parameter is divided as the parameter is. Its path contains the
    parameter's path, and its shape is the parameter's, or that without one dimension. All else is whole on every device.
    """
    owners = {path: (x.shape, parameter_axes(path, x.shape, mesh)) for path, x in leaves_by_path(state.params).items()}

    def leaf(keys: tuple[Any, ...], x: Any) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*axes_of_owner(leaf_path(keys).split("/"), x.shape, owners)))

    return jax.tree.map_with_path(leaf, state)


def axes_of_owner(names: list[str], shape: tuple[int, ...], owners: dict[str, Owner]) -> tuple[str | None, ...]:
    """Returns the axes of a leaf of the state, from those of its parameter; none for a leaf without a parameter."""
    spans = [(i, j) for i in range(len(names)) for j in range(len(names), i, -1)]
    paths = ("/".join(names[i:j]) for i, j in spans)
    owner = next((path for path in paths if path in owners), None)
    if owner is not None:
        whole, axes = owners[owner]
        if shape == whole:
            return axes
        for gone in reversed(range(len(whole))):
            if shape == whole[:gone] + whole[gone + 1 :]:
                return axes[:gone] + axes[gone + 1 :]
    return ()


def with_shardings(tree: PyTree, shardings: PyTree) -> PyTree:
    """Returns shapes and types of the arrays in `tree`, with their shardings."""
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, shardings)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of a batch: its rows are divided over the axes `data` and `fsdp`."""
    return NamedSharding(mesh, PartitionSpec(ROW_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of an array that is whole on every device."""
    return NamedSharding(mesh, PartitionSpec())


def gather_to_each(params: PyTree, mesh: Mesh | None) -> PyTree:
    """Returns whole parameters in each process, divided over a mesh of its devices and padded as they need it; None: one device.

    All processes call it. One array at a time is gathered, and each device gets only its share.
    """
    if mesh is None:
        return jax.tree.map(lambda x: jax.block_until_ready(whole_in_each_process(x)), params)

    def leaf(x: Array, sharding: NamedSharding) -> Array:
        return jax.block_until_ready(jax.device_put(whole_in_each_process(x), sharding))

    return with_padded_vocabulary(jax.tree.map(leaf, params, stored_sharding(params, mesh)), mesh)


def allgather_text(text: str) -> list[str]:
    """Returns the text of each process, in their order, in all processes."""
    if jax.process_count() == 1:
        return [text]
    mine = np.frombuffer(text.encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.int32(len(mine)))
    row = np.zeros(lengths.max(initial=1), np.uint8)
    row[: len(mine)] = mine
    rows = multihost_utils.process_allgather(row)
    return [bytes(row[:length]).decode() for row, length in zip(rows, lengths, strict=True)]


def whole_in_each_process(x: Array) -> Array:
    """Returns an array of a mesh on the devices of this process only, divided by the same axes as far as these devices suffice."""
    if x.is_fully_addressable:
        return x
    assert isinstance(x.sharding, NamedSharding)
    mesh = x.sharding.mesh
    spec = x.sharding.spec
    processes = jax.process_count()
    fsdp = math.gcd(mesh.shape["fsdp"], mesh.size // processes)
    tensor = math.gcd(mesh.shape["tensor"], mesh.size // processes // fsdp)
    devices = sorted(mesh.devices.flat, key=lambda device: (device.process_index, device.id))
    grid = np.array(devices).reshape(processes, -1, fsdp, tensor)
    if not x.is_fully_replicated:
        x = jax.device_put(x, NamedSharding(Mesh(grid, ("process", *MESH_AXES)), spec))
    here = NamedSharding(Mesh(grid[jax.process_index()], MESH_AXES), spec)
    return jax.make_array_from_single_device_arrays(x.shape, here, [shard.data for shard in x.addressable_shards])


# Inside a traced function ----------------------------------------------------------------------------------------------


def current_mesh() -> AbstractMesh | None:
    """Returns the mesh whose axes the compiler uses to divide the function that is being traced; None: it divides nothing."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh if mesh.axis_names == MESH_AXES and AxisType.Auto in mesh.axis_types else None


def automatic(mesh: AbstractMesh, axis: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Returns those of the axes that the compiler divides; a `shard_map` divides the others by itself."""
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    names = (axis,) if isinstance(axis, str) else axis or ()
    return tuple(name for name in names if kinds[name] == AxisType.Auto)


def within_mesh(mesh: Mesh) -> Any:
    """A context that tells `constrain_sharding` and `constrain_parameters` the mesh. Enter it while a function is traced."""
    return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


def constrain_sharding(x: Array, letters: str) -> Array:
    """Divides an activation over the mesh by its letters, as far as the axes divide its sizes; no mesh: the array itself."""
    mesh = current_mesh()
    if mesh is None:
        return x
    axes = list(zip(x.shape, [automatic(mesh, axis) for axis in ACTIVATIONS[letters]], strict=True))
    if jax.__version_info__ < (0, 8):  # which refuses a mesh with axes of a `shard_map`
        mesh = AbstractMesh(mesh.axis_sizes, mesh.axis_names)
    return jax.lax.with_sharding_constraint(
        x,
        NamedSharding(
            mesh, PartitionSpec(*(names if names and divides(mesh, names, n) else None for n, names in axes))
        ),
    )


def divides(mesh: AbstractMesh, axes: Sequence[str], size: int) -> bool:
    """Returns whether the axes together divide a dimension of that size into equal parts."""
    return size % math.prod(mesh.shape[name] for name in axes) == 0


def tensor_parts(size: int) -> int:
    """Returns the number of parts into which the compiler divides heads, widths or ids of that number; 1: it does not."""
    mesh = current_mesh()
    if mesh is None or not automatic(mesh, "tensor") or not divides(mesh, ("tensor",), size):
        return 1
    return int(mesh.shape["tensor"])


def constrain_parameters(params: PyTree) -> PyTree:
    """Divides parameters, or their gradients, over the mesh by the table; no mesh: the parameters themselves."""
    mesh = current_mesh()
    if mesh is None:
        return params
    return jax.tree.map(jax.lax.with_sharding_constraint, params, parameter_sharding(params, mesh))


def shard_bytes(tree: object) -> int:
    """Returns the size of the shards that one device holds, in bytes."""
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in leaves)
