"""The mesh of devices, and how arrays lie on it."""

from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec


def make_mesh() -> Mesh:
    """All devices along the axis `data`: every device has the whole state and its share of each batch's rows."""
    return jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))


def check_rows(rows_multiple: int, mesh: Mesh) -> None:
    """Raises: ValueError where batches would not divide over the devices."""
    if rows_multiple % mesh.size:
        raise ValueError(
            f"data.rows_multiple is {rows_multiple}, which {mesh.size} devices do not divide: make it a multiple of {mesh.size}"
        )


def replicated(mesh: Mesh) -> NamedSharding:
    """The same whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def by_rows(mesh: Mesh) -> NamedSharding:
    """Rows of the batch divided over the devices."""
    return NamedSharding(mesh, PartitionSpec("data"))


def abstract(tree: Any, mesh: Mesh) -> Any:
    """Shapes and types of the arrays in `tree`, with the sharding they should have here."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated(mesh)), tree)
