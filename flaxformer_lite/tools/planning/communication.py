"""The data that the devices of a slice exchange in a step, and the least time that this takes."""

import math
from dataclasses import dataclass

import numpy as np
from jax.sharding import Mesh

from flaxformer_lite.tools.planning.hlo_parser import Groups
from flaxformer_lite.tools.planning.program import Collective, Program
from flaxformer_lite.tools.planning.topology import Slice


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """All collectives of one kind over the same axes, hidden or not, in one step, on one device."""

    kind: str
    axes: str
    count: int
    bytes: float
    """Size of the arrays that a device sends, or for an all-gather receives. From the compiled program."""
    seconds: float
    """The least time, by the links' published bandwidth."""
    hidden: bool = False
    """Whether the device computes something else meanwhile."""


def exchanges_of(program: Program, mesh: Mesh, slice_: Slice) -> list[Exchange]:
    """Returns the program's collectives by kind and axes, the slowest first."""
    sums: dict[tuple[str, str, bool], np.ndarray] = {}
    for collective in program.collectives:
        if collective.between_slices:
            axes, seconds = "between slices", network_seconds(collective, slice_)
        else:
            groups = collective.groups or (tuple(range(mesh.size // slice_.num_slices)),)
            axes, seconds = axes_of(groups, mesh), exchange_seconds(collective, groups, mesh, slice_)
        key = (collective.kind, axes, collective.hidden)
        sums[key] = sums.get(key, 0) + collective.trips * np.array([1, collective.bytes, seconds])
    exchanges = [
        Exchange(kind=kind, axes=axes, count=round(count), bytes=total, seconds=seconds, hidden=hidden)
        for (kind, axes, hidden), (count, total, seconds) in sums.items()
    ]
    return sorted(exchanges, key=lambda exchange: -exchange.seconds)


def network_seconds(collective: Collective, slice_: Slice) -> float:
    """Returns the least time that the network between slices allows: each device sends what the devices of the others lack."""
    share = (slice_.num_slices - 1) / slice_.num_slices * (2 if collective.kind == "all-reduce" else 1)
    return share * collective.bytes * slice_.devices_per_chip / slice_.chip.network_bandwidth


def axes_of(groups: Groups, mesh: Mesh) -> str:
    """Returns the axes of the mesh along which the devices of a group differ; the program of each slice numbers its own devices."""
    coordinates = np.array([np.unravel_index(group, mesh.devices.shape) for group in groups if len(group) > 1])
    if not len(coordinates):
        return "none"
    differ = (coordinates != coordinates[:, :, :1]).any(axis=(0, 2))
    return "+".join(axis for axis, differs in zip(mesh.axis_names, differ, strict=True) if differs) or "none"


def exchange_seconds(collective: Collective, groups: Groups, mesh: Mesh, slice_: Slice) -> float:
    """Returns the least time that the links allow. Each device sends its share of the data that the others lack.

    Permutations come in pairs with opposite directions at the same time, so all links along their axes count for them.
    """
    sent, slowest = 0.0, math.inf
    if collective.kind == "collective-permute":
        moving = tuple(group for group in groups if group[0] != group[1])
        groups = (neighbours(axes_of(moving, mesh), mesh),) if moving else ()
    for group in groups:
        n = len(group)
        if n == 1:
            continue
        share = 1.0 if collective.kind == "collective-permute" else (n - 1) / n
        sent = collective.bytes * share * (2 if collective.kind == "all-reduce" else 1)
        chips = {tuple(mesh.devices.flat[i].coords) for i in group}
        bandwidth = slice_.chip.bandwidth((chip[: len(slice_.shape)] for chip in chips), slice_.shape)
        slowest = min(slowest, bandwidth / slice_.devices_per_chip)
    return sent / slowest


def neighbours(axes: str, mesh: Mesh) -> tuple[int, ...]:
    """Returns the devices that differ from the first along these axes only."""
    numbers = np.arange(mesh.size).reshape(mesh.devices.shape)
    chosen = numbers[tuple(slice(None) if axis in axes.split("+") else 0 for axis in mesh.axis_names)]
    return tuple(chosen.ravel().tolist())
