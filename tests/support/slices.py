"""TPU slices without a TPU: stand-ins for the devices, with what JAX asks of them to arrange a mesh."""

import itertools
from typing import Any
from unittest.mock import NonCallableMock

import jax

KINDS = {"v4": "TPU v4", "v5e": "TPU v5 lite", "v5p": "TPU v5", "v6e": "TPU v6 lite", "tpu7x": "TPU7x"}


def stand_ins(topology: str, num_slices: int = 1) -> list[Any]:
    """Returns the devices of one or several slices such as v6e:4x4."""
    kind, sides = topology.split(":")
    x, y, z = (*(int(side) for side in sides.split("x")), 1)[:3]
    cores = 2 if kind == "tpu7x" else 1
    return [
        NonCallableMock(
            spec=jax.Device,
            platform="tpu",
            device_kind=KINDS[kind],
            slice_index=index,
            coords=[x, y, z],
            core_on_chip=core,
        )
        for index, z, y, x, core in itertools.product(*map(range, (num_slices, z, y, x, cores)))
    ]
