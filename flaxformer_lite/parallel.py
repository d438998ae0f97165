"""The mesh of devices, and how arrays lie on it."""

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec


def make_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The devices (all there are by default) along the axis `data`: each has the whole state and its share of a batch's rows."""
    devices = jax.devices() if devices is None else devices
    return jax.make_mesh((len(devices),), ("data",), axis_types=(AxisType.Auto,), devices=devices)


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
