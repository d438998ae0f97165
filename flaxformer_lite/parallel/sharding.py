"""Which dimension of which array is cut over which axis of the mesh: one table, and what follows from it.

The mesh has three axes. Over `data` rows of the batch are divided and everything else is copied; over `fsdp` rows too, and also
the parameters with their optimizer state, which are gathered layer by layer as they are needed (fully sharded data parallelism);
over `tensor` heads, feed-forward width and vocabulary, whose products are then summed (tensor parallelism).

Reference: Rajbhandari et al. 2020, arXiv:1910.02054 (fsdp, there stage 3); Shoeybi et al. 2019, arXiv:1909.08053 (tensor).
"""

import math
import re
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

MESH_AXES = ("data", "fsdp", "tensor")
ROW_AXES = ("data", "fsdp")
"""The axes that divide the rows of a batch."""


class Rule(NamedTuple):
    """Parameters whose path the pattern matches, and for each of their last dimensions: its name, and the axis that cuts it.

    A leading axis of layers is never cut. The name is the setting that the dimension comes from.
    """

    pattern: str
    dimensions: tuple[str, ...]
    axes: tuple[str | None, ...]


VOCABULARY, WIDTH, INNER = "model.vocab_size", "model.d_model", "model.d_ff"
HEADS = "model.num_heads (or model.attention.num_kv_heads) times the head's width"

PARAMETERS = (
    Rule(r"(source_|target_|)embedding/embedding", (VOCABULARY, WIDTH), ("tensor", "fsdp")),
    Rule(r"(token_type_embedding|.*/positions)/embedding", ("rows", WIDTH), (None, "fsdp")),
    Rule(r".*/(query|key|value)/kernel", (WIDTH, HEADS), ("fsdp", "tensor")),
    Rule(r".*/(query|key|value)/bias", (HEADS,), ("tensor",)),
    Rule(r".*/out/kernel", (HEADS, WIDTH), ("tensor", "fsdp")),
    Rule(r".*/(up|gate)/kernel", (WIDTH, INNER), ("fsdp", "tensor")),
    Rule(r".*/(up|gate)/bias", (INNER,), ("tensor",)),
    Rule(r".*/down/kernel", (INNER, WIDTH), ("tensor", "fsdp")),
    Rule(r"head/kernel", (WIDTH, VOCABULARY), ("fsdp", "tensor")),
    Rule(r"head/bias", (VOCABULARY,), ("tensor",)),
    Rule(r"(head/transform|pooler/dense)/kernel", (WIDTH, WIDTH), ("fsdp", None)),
)
"""The first rule that matches counts. Every other parameter (norms, the other biases, small tables) is whole on every device."""

ACTIVATIONS: dict[str, tuple[str | tuple[str, ...] | None, ...]] = {
    "B T D": (ROW_AXES, None, None),
    "V D": ("tensor", None),
}
"""By their letters (see `layers.py`): the layers' outputs, and the table of embeddings while tokens are looked up. The compiler
finds the rest from these and from the parameters."""


# Parameters and what belongs to them -----------------------------------------------------------------------------------


Owner = tuple[tuple[int, ...], tuple[str | None, ...]]
"""A parameter's shape and axes."""


def leaf_path(keys: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(keys, simple=True, separator="/")


def parameter_axes(path: str, shape: tuple[int, ...], mesh: Mesh | AbstractMesh) -> tuple[str | None, ...]:
    """For each dimension of a parameter the axis that cuts it, or None.

    Raises: ValueError where the axis does not divide the dimension.
    """
    rule = next((rule for rule in PARAMETERS if re.fullmatch(rule.pattern, path)), None)
    if rule is None:
        return (None,) * len(shape)
    layers = len(shape) - len(rule.axes)
    parts = [1 if axis is None else mesh.shape.get(axis, 1) for axis in rule.axes]
    for name, size, axis, n in zip(rule.dimensions, shape[layers:], rule.axes, parts, strict=True):
        if size % n:
            raise ValueError(
                f"the parameter {path} has shape {shape}, and train.mesh.{axis} {n} does not divide its {size}: choose a divisor "
                f"of {size} for train.mesh.{axis}, or make {name} a multiple of {n}"
            )
    return (None,) * layers + tuple(axis if n > 1 else None for axis, n in zip(rule.axes, parts, strict=True))


def parameter_sharding(params: PyTree, mesh: Mesh | AbstractMesh) -> PyTree:
    """A `NamedSharding` for every parameter. Raises: ValueError naming the parameter that an axis does not divide."""
    return jax.tree.map_with_path(
        lambda keys, x: NamedSharding(mesh, PartitionSpec(*parameter_axes(leaf_path(keys), x.shape, mesh))), params
    )


def state_sharding(state: Any, mesh: Mesh | AbstractMesh) -> Any:
    """A `NamedSharding` for every leaf of a `TrainState` (or of its shapes).

    What an optimizer or an average keeps for a parameter lies as the parameter does: its path has the parameter's in it, and its
    shape is the parameter's, or that with one dimension summed away. All else is whole on every device.
    """
    owners = {
        leaf_path(keys): (x.shape, parameter_axes(leaf_path(keys), x.shape, mesh))
        for keys, x in jax.tree_util.tree_leaves_with_path(state.params)
    }

    def leaf(keys: tuple[Any, ...], x: Any) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*axes_of_owner(leaf_path(keys).split("/"), x.shape, owners)))

    return jax.tree.map_with_path(leaf, state)


def axes_of_owner(names: list[str], shape: tuple[int, ...], owners: dict[str, Owner]) -> tuple[str | None, ...]:
    """The axes of a leaf of the state, from those of the parameter that it belongs to."""
    places = [(i, j) for i in range(len(names)) for j in range(len(names), i, -1)]
    owner = next((path for i, j in places if (path := "/".join(names[i:j])) in owners), None)
    if owner is not None:
        whole, axes = owners[owner]
        if shape == whole:
            return axes
        for gone in reversed(range(len(whole))):
            if shape == whole[:gone] + whole[gone + 1 :]:
                return axes[:gone] + axes[gone + 1 :]
    return ()


def with_shardings(tree: PyTree, shardings: PyTree) -> PyTree:
    """Shapes and types of the arrays in `tree`, with the shardings they should have here."""
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, shardings)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows of a batch, divided over the axes that do that."""
    return NamedSharding(mesh, PartitionSpec(ROW_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
    """The same whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


# Inside a traced function ----------------------------------------------------------------------------------------------


def current_mesh() -> AbstractMesh | None:
    """The mesh that the function being traced is for; None outside of `within_mesh` and in a `pmap`."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh if mesh.axis_names == MESH_AXES else None


def within_mesh(mesh: Mesh) -> Any:
    """A context that tells `constrain_sharding` and `constrain_parameters` the mesh. Enter it while a function is traced."""
    return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


def constrain_sharding(x: Array, letters: str) -> Array:
    """An activation, cut over the mesh as its letters say, as far as the axes divide it; the same array where there is no mesh."""
    mesh = current_mesh()
    if mesh is None:
        return x
    axes = zip(x.shape, ACTIVATIONS[letters], strict=True)
    return jax.lax.with_sharding_constraint(
        x, PartitionSpec(*(axis if divides(mesh, axis, n) else None for n, axis in axes))
    )


def divides(mesh: AbstractMesh, axis: str | tuple[str, ...] | None, size: int) -> bool:
    """Whether the axis, or several together, cut a dimension of that size into equal parts."""
    names = (axis,) if isinstance(axis, str) else axis or ()
    return size % math.prod(mesh.shape[name] for name in names) == 0


def constrain_parameters(params: PyTree) -> PyTree:
    """Parameters, or their gradients, cut over the mesh as the table says; the same where there is no mesh."""
    mesh = current_mesh()
    if mesh is None:
        return params
    return jax.tree.map_with_path(
        lambda keys, x: jax.lax.with_sharding_constraint(
            x, PartitionSpec(*parameter_axes(leaf_path(keys), x.shape, mesh))
        ),
        params,
    )
