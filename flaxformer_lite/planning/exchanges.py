"""What the devices of a slice send each other in a step, added up, and the least time that it takes."""

import math
from dataclasses import dataclass

import numpy as np
from jax.sharding import Mesh

from flaxformer_lite.planning.program import Collective, Program
from flaxformer_lite.planning.topology import Slice


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """All collectives of one kind over the same axes, in one step, of one device."""

    kind: str
    axes: str
    count: int
    bytes: float
    """Of the arrays: what one device puts in, or for an all-gather what it gets. From the compiled program."""
    seconds: float
    """At least, by the links' published bandwidth."""


def add_up(program: Program, mesh: Mesh, slice_: Slice) -> list[Exchange]:
    """The program's collectives by kind and axes, those that take longest first."""
    sums: dict[tuple[str, str], tuple[int, float, float]] = {}
    for collective in program.collectives:
        groups = collective.groups or (tuple(range(mesh.size)),)
        key = (collective.kind, axes_of(groups, mesh))
        seconds = exchange_seconds(collective, groups, mesh, slice_)
        count, total, time = sums.get(key, (0, 0.0, 0.0))
        trips = collective.trips
        sums[key] = (count + trips, total + trips * collective.bytes, time + trips * seconds)
    exchanges = [
        Exchange(kind=kind, axes=axes, count=count, bytes=total, seconds=seconds)
        for (kind, axes), (count, total, seconds) in sums.items()
    ]
    return sorted(exchanges, key=lambda exchange: -exchange.seconds)


def axes_of(groups: tuple[tuple[int, ...], ...], mesh: Mesh) -> str:
    """The axes of the mesh along which the devices of a group differ."""
    places = np.array([np.unravel_index(group, mesh.devices.shape) for group in groups if len(group) > 1])
    if not len(places):
        return "none"
    differ = (places != places[:, :, :1]).any(axis=(0, 2))
    return "+".join(axis for axis, differs in zip(mesh.axis_names, differ, strict=True) if differs) or "none"


def exchange_seconds(collective: Collective, groups: tuple[tuple[int, ...], ...], mesh: Mesh, slice_: Slice) -> float:
    """The least time that the links allow: each device sends its share of what the others lack.

    Permutations come in pairs that go opposite ways at once, so that they are given all links along their axes.
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
    """The devices that differ from the first along these axes only."""
    numbers = np.arange(mesh.size).reshape(mesh.devices.shape)
    chosen = numbers[tuple(slice(None) if axis in axes.split("+") else 0 for axis in mesh.axis_names)]
    return tuple(int(n) for n in chosen.ravel())
