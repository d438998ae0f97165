"""The mesh of devices, and the rows of a batch that each process reads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh
from jaxtyping import Int

from flaxformer_lite.core.base.bounds import Checked, PositiveInt
from flaxformer_lite.core.parallel.sharding import MESH_AXES, ROW_AXES, batch_sharding


@dataclass(frozen=True, kw_only=True)
class MeshConfig(Checked, at="train.mesh"):
    """Number of devices along each axis of the mesh; the product is the number of devices. One axis may be -1: all the rest."""

    data: PositiveInt | Literal[-1] = -1
    """Devices with the whole model and their share of the rows. A multiple of the number of TPU slices: only this axis goes over
    the network between them."""
    fsdp: PositiveInt | Literal[-1] = 1
    """Devices with their share of the rows, the parameters and the optimizer state. Parameters are gathered layer by layer."""
    tensor: PositiveInt | Literal[-1] = 1
    """Devices with their share of heads, feed-forward width and vocabulary: for layers too wide for one device."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rest = [f"train.mesh.{axis}" for axis in MESH_AXES if getattr(self, axis) == -1]
        if len(rest) > 1:
            raise ValueError(f"{' and '.join(rest)} are -1 (all remaining devices): set only one of them to -1")

    def shape(self, num_devices: int) -> tuple[int, int, int]:
        """Returns the sizes of the axes data, fsdp and tensor. Raises: ValueError if their product cannot be `num_devices`."""
        sizes = [getattr(self, axis) for axis in MESH_AXES]
        fixed = math.prod(size for size in sizes if size != -1)
        if num_devices % fixed or (fixed != num_devices and -1 not in sizes):
            raise ValueError(
                f"{sizes_in_words(sizes)} do not make up {num_devices} device{'s' if num_devices > 1 else ''}: choose sizes whose "
                f"product {'divides' if -1 in sizes else 'is'} {num_devices}, or -1 for one of them"
            )
        data, fsdp, tensor = (num_devices // fixed if size == -1 else size for size in sizes)
        return data, fsdp, tensor


def sizes_in_words(sizes: Sequence[int]) -> str:
    """Returns the sizes for a message, without `data` where it takes the remaining devices."""
    named = [*zip(MESH_AXES, sizes, strict=True)]
    return ", ".join(f"train.mesh.{axis} {size}" for axis, size in named if (axis, size) != ("data", -1))


def make_mesh(config: MeshConfig = MeshConfig(), devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Returns the mesh of the devices (by default all) with the axes data, fsdp and tensor.

    On a TPU the axes follow the links between the chips, `tensor` first; where needed, one dimension of the torus is split.
    With several TPU slices `fsdp` and `tensor` stay inside a slice.

    Raises: ValueError if the config does not fit the number of devices or slices, or JAX cannot arrange them.
    """
    devices = jax.devices() if devices is None else devices
    data, fsdp, tensor = shape = config.shape(len(devices))
    slices = len({getattr(device, "slice_index", 0) for device in devices if device.platform == "tpu"} or {0})
    if data % slices:
        raise ValueError(
            f"train.mesh.data is {data}, but the devices are {slices} TPU slices, and only data goes over the network between "
            f"them: make it a multiple of {slices}, or -1"
        )
    try:
        if slices > 1:
            inside = (data // slices, fsdp, tensor)
            grid = mesh_utils.create_hybrid_device_mesh(inside, (slices, 1, 1), devices, allow_split_physical_axes=True)
        else:
            grid = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    except (AssertionError, ValueError) as error:
        raise ValueError(
            f"{sizes_in_words(shape)}: JAX cannot arrange {len(devices)} of these TPU's devices so: choose powers of two, "
            "and chips that form a whole block"
        ) from error
    return Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def row_groups(mesh: Mesh) -> int:
    """Returns the number of parts into which the mesh divides the rows of a batch."""
    return math.prod(mesh.shape[axis] for axis in ROW_AXES)


def check_rows(setting: str, rows: int, mesh: Mesh, num_micro_batches: int = 1) -> None:
    """Checks that the rows of each batch divide over the devices and micro-batches.

    setting: the name of the setting that divides the rows of every batch. rows: its value.

    Raises: ValueError if they do not.
    """
    parts = row_groups(mesh) * num_micro_batches
    if rows % parts:
        by = f"{row_groups(mesh)} devices" + (
            f" with {num_micro_batches} micro-batches each" if num_micro_batches > 1 else ""
        )
        raise ValueError(f"{setting} is {rows}, which {by} do not divide: make it a multiple of {parts}")


def local_rows(mesh: Mesh, num_rows: int) -> Int[np.ndarray, "R"]:
    """Returns the row indices of a batch that the devices of this process hold, in order."""
    slices = batch_sharding(mesh).addressable_devices_indices_map((num_rows,)).values()
    return np.unique(np.concatenate([np.arange(num_rows)[rows] for (rows,) in slices]))


def interleaved_rows(mesh: Mesh, num_micro_batches: int, num_rows: int) -> Int[np.ndarray, "R"]:
    """Returns the row indices of a batch that the devices of this process hold in a `pmap`, one device after the other.

    With D devices and M micro-batches, row r belongs to group r mod DM, as it would belong to micro-batch r mod DM on one
    device. Device d holds the groups dM … dM + M - 1: its micro-batches.
    """
    mine = [i for i, device in enumerate(mesh.devices.flat) if device.process_index == jax.process_index()]
    groups = np.arange(num_rows).reshape(-1, mesh.size, num_micro_batches)
    return groups.swapaxes(0, 1).reshape(mesh.size, -1)[mine].ravel()
