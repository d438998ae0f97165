"""TPU slices that this machine need not have: published figures of the chips, and devices as the TPU's own compiler describes them.

Nothing here was measured.
"""

import importlib.util
import math
import os
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from flaxformer_lite.core.base.accelerators import PEAK_FLOPS
from flaxformer_lite.core.search.devices import GIB

# Chips ------------------------------------------------------------------------------------------------------------------


Coordinates = tuple[int, ...]


class Chip(NamedTuple):
    """Published figures of one chip, not one core: where a chip is two devices, each has half of everything."""

    name: str
    flops: float
    """Peak bfloat16 operations per second."""
    hbm_bytes: int
    """Memory in bytes, as published; the compiler reserves a part of it."""
    hbm_bandwidth: float
    """Bytes per second."""
    link_bandwidth: float
    """Bytes per second over one link between chips, in one direction; the published figure is for all links, both ways."""
    network_bandwidth: float
    """Bytes per second that a chip can send to other slices: its share of the data center network."""
    dimensions: int
    """Dimensions of the torus that the links make, with two links each."""
    whole_turn: int
    """The size at which a dimension closes to a ring; in three dimensions, its multiples too."""
    pod: int
    """The largest number of linked chips."""
    config_name: str = "default"
    """The compiler's name of the chip's mode; "megacore": its two cores are one device."""
    further_sources: tuple[str, ...] = ()
    matrix_unit: int = 128
    """Rows and columns of a matrix unit: the widths of attention heads are padded to them."""

    @property
    def sources(self) -> tuple[str, ...]:
        return (f"{DOCS}{self.name}", *self.further_sources)

    def bandwidth(self, group: Iterable[Coordinates], shape: Coordinates) -> float:
        """Returns the bytes per second that a chip of the group can at best send to the others, in a slice of that shape.

        Along each dimension that the group spans, a whole ring has two links; else one counts, as at the end of a line. Links that
        groups share are not counted.
        """
        links = 0
        for size, coordinates in zip(shape, zip(*group, strict=True), strict=True):
            spread = len(set(coordinates))
            if spread > 1:
                links += 2 if spread == size and self.is_ring(shape, size) else 1
        return max(links, 1) * self.link_bandwidth

    def is_ring(self, shape: Coordinates, size: int) -> bool:
        """Returns whether a dimension of that size closes to a ring in a slice of that shape."""
        if self.dimensions == 2:
            return size == self.whole_turn
        return all(side % self.whole_turn == 0 for side in shape)


DOCS = "https://docs.cloud.google.com/tpu/docs/"
SOURCES_OF_V4 = (
    "https://arxiv.org/abs/2304.01433 (six links of 50 GB/s)",
    "https://jax-ml.github.io/scaling-book/tpus (a network of 25 GB/s for each host)",
)

CHIPS = {
    chip.name: chip
    for chip in (
        # In the order of the fields: name, flops, memory and its bandwidth, a link's and the network's, torus, pod, mode.
        Chip("v4", PEAK_FLOPS["v4"], 32 * GIB, 1200e9, 50e9, 25e9 / 4, 3, 4, 4096, "megacore", SOURCES_OF_V4),
        Chip("v5e", PEAK_FLOPS["v5e"], 16 * GIB, 819e9, 400e9 / 8, 800e9 / 256, 2, 16, 256),
        Chip("v5p", PEAK_FLOPS["v5p"], 95 * GIB, 2765e9, 1200e9 / 12, 50e9 / 8, 3, 4, 8960, "megacore"),
        Chip("v6e", PEAK_FLOPS["v6e"], 32 * GIB, 1638e9, 800e9 / 8, 100e9 / 8, 2, 16, 256, matrix_unit=256),
        Chip("tpu7x", 2 * PEAK_FLOPS["tpu7x"], 192 * GIB, 7380e9, 1200e9 / 12, 100e9 / 8, 3, 4, 9216, matrix_unit=256),
    )
}
"""By the names that topologies start with. Each tpu7x chip is two devices."""

OLDEST_JAX = (0, 10)
"""The oldest version of JAX with which the compiler was tried."""

# Slices -----------------------------------------------------------------------------------------------------------------


class Slice(NamedTuple):
    """A number of linked chips of one kind, or several such slices with a network between them."""

    name: str
    chip: Chip
    shape: tuple[int, ...]
    """The sides of one slice."""
    num_slices: int
    devices: list[jax.Device]

    @property
    def chips(self) -> int:
        return self.num_slices * math.prod(self.shape)

    @property
    def devices_per_chip(self) -> int:
        return len(self.devices) // self.chips


def describe_slice(name: str, num_slices: int = 1) -> Slice:
    """Returns the slice of a name such as v5e:4x4, or several of them.

    Raises: ValueError for an impossible slice, or without a compiler for it.
    """
    if num_slices < 1:
        raise ValueError(f"--num-slices is {num_slices}: it must be at least 1")
    kind, _, sizes = name.partition(":")
    if kind not in CHIPS or not re.fullmatch(r"\d+(x\d+)*", sizes):
        raise ValueError(
            f"--topology is {name!r}: it must be a chip and the sides of the slice, such as v5e:4x4 or v5p:4x4x4; the chips are "
            f"{', '.join(CHIPS)}"
        )
    chip = CHIPS[kind]
    shape = tuple(map(int, sizes.split("x")))
    example = "x".join(["4"] * chip.dimensions)
    if len(shape) != chip.dimensions:
        raise ValueError(
            f"--topology is {name!r}, but slices of {kind} have {chip.dimensions} sides: use as many, such as {kind}:{example}"
        )
    if math.prod(shape) > chip.pod:
        raise ValueError(f"--topology is {name!r}, but a pod of {kind} has {chip.pod} chips: use fewer")
    if jax.__version_info__ < OLDEST_JAX:
        raise ValueError(
            f"compiling for TPUs needs JAX {'.'.join(map(str, OLDEST_JAX))} or newer, and this is {jax.__version__}: use an "
            "environment with a newer JAX"
        )
    if importlib.util.find_spec("libtpu") is None:
        raise ValueError('compiling for TPUs needs libtpu, on Linux: pip install "flaxformer-lite[tpu]"')
    settings: dict[str, Any] = {"chip_config_name": chip.config_name}
    if num_slices > 1:
        settings["num_slices"] = num_slices
    if math.prod(shape) == 1:
        settings["chips_per_host_bounds"] = (1, 1, 1)
    # libtpu reads this when it is loaded: then it neither looks for TPUs nor refuses to share with other processes.
    os.environ |= {
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": os.environ.get("TPU_ACCELERATOR_TYPE", "v5litepod-4"),
    }
    try:
        devices = topologies.get_topology_desc(name, platform="tpu", **settings).devices
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(
            f"--topology is {name!r}, which the compiler does not know ({error}): all sides must be 1, or all even, such as "
            f"{kind}:{example}"
        ) from None
    return Slice(name, chip, shape, num_slices, devices)
