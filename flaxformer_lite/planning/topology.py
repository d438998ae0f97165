"""Slices of TPUs that need not be there, as the TPU's own compiler knows them."""

import importlib.util
import math
import os
import re
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from flaxformer_lite.planning.chips import CHIPS, Chip


class Slice(NamedTuple):
    """Some chips of one kind."""

    name: str
    chip: Chip
    shape: tuple[int, ...]
    devices: list[jax.Device]

    @property
    def chips(self) -> int:
        return math.prod(self.shape)

    @property
    def devices_per_chip(self) -> int:
        return len(self.devices) // self.chips


def describe_slice(name: str) -> Slice:
    """The slice that a name such as v5e:4x4 means. Raises: ValueError where there is no such slice, or no compiler for it."""
    kind, _, sizes = name.partition(":")
    if kind not in CHIPS or not re.fullmatch(r"\d+(x\d+)*", sizes):
        raise ValueError(
            f"--topology is {name!r}: give a chip and the sides of the slice, such as v5e:4x4 or v5p:4x4x4; the chips are "
            f"{', '.join(CHIPS)}"
        )
    chip, shape = CHIPS[kind], tuple(int(size) for size in sizes.split("x"))
    example = "x".join(["4"] * chip.dimensions)
    if len(shape) != chip.dimensions:
        raise ValueError(
            f"--topology is {name!r}, but slices of {kind} have {chip.dimensions} sides: give as many, such as {kind}:{example}"
        )
    if math.prod(shape) > chip.pod:
        raise ValueError(f"--topology is {name!r}, but a pod of {kind} has {chip.pod} chips: give fewer")
    if importlib.util.find_spec("libtpu") is None:
        raise ValueError('compiling for TPUs needs libtpu, on Linux: pip install "flaxformer-lite[tpu]"')
    settings: dict[str, Any] = {"chip_config_name": chip.config_name}
    if math.prod(shape) == 1:
        settings["chips_per_host_bounds"] = (1, 1, 1)
    # So that libtpu neither looks for TPUs nor minds other processes that use it; it reads this when it is loaded.
    os.environ |= {
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
    } | {"TPU_ACCELERATOR_TYPE": os.environ.get("TPU_ACCELERATOR_TYPE", "v5litepod-4")}
    try:
        devices = topologies.get_topology_desc(name, platform="tpu", **settings).devices
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(
            f"--topology is {name!r}, which the compiler does not know ({error}): give sides that are 1 in all, or even, such as "
            f"{kind}:{example}"
        ) from None
    return Slice(name, chip, shape, devices)
