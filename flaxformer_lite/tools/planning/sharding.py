"""The sharding of a training state over a number of devices, without any of them."""

from jax.sharding import AbstractMesh, AxisType

from flaxformer_lite.config import Config
from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.parallel.sharding import ACTIVATIONS, MESH_AXES, shard_bytes
from flaxformer_lite.core.runners import abstract_state
from flaxformer_lite.training import train_task

TABLE_ROW = "{:<{width}}  {:<18} {:<22} {:<18} {:>13}"


def sharding_table(config: Config, devices: int) -> list[str]:
    """Returns lines on every array of the training state: the mesh axes that divide it, its shape and bytes on each device.

    Raises: ValueError if the mesh does not fit the devices or an array.
    """
    shape = config.train.mesh.shape(devices)
    mesh = AbstractMesh(shape, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))
    arrays = leaves_by_path(abstract_state(train_task(config), mesh))
    width = max(map(len, arrays))
    lines = [TABLE_ROW.format("array", "shape", "cut over", "on each device", "bytes there", width=width)]
    sizes: dict[str, tuple[int, int]] = {}
    for path, x in arrays.items():
        there = shard_bytes(x)
        whole = x.size * x.dtype.itemsize
        axes = [*x.sharding.spec, *[None] * (x.ndim - len(x.sharding.spec))]
        cut = ", ".join(axis or "-" for axis in axes) if any(axes) else "whole"
        lines.append(
            TABLE_ROW.format(path, f"{x.shape}", cut, f"{x.sharding.shard_shape(x.shape)}", f"{there:,}", width=width)
        )
        kind = {"params": "parameters", "opt_state": "optimizer", "ema": "average"}.get(path.split("/")[0], "step")
        before = sizes.get(kind, (0, 0))
        sizes[kind] = (before[0] + there, before[1] + whole)
    for letters, cuts in ACTIVATIONS.items():
        words = [" and ".join(cut) if isinstance(cut, tuple) else cut or "-" for cut in cuts]
        lines.append(TABLE_ROW.format(f"activations {letters}", "", ", ".join(words), "", "", width=width).rstrip())
    lines += ["", "mesh: " + ", ".join(f"{axis} {size}" for axis, size in zip(MESH_AXES, shape, strict=True))]
    return lines + [
        f"{kind}: {there:,} bytes on each device, of {whole:,} ({there / whole:.1%})"
        for kind, (there, whole) in sizes.items()
    ]
