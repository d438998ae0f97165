"""Who talks to whom in a collective of a compiled program."""

import math
import re

import numpy as np

Groups = tuple[tuple[int, ...], ...]
"""Devices that talk to each other, by their numbers in the mesh."""


def replica_groups(attributes: str) -> Groups:
    """Who talks to whom, from any of the ways that programs write it; empty: all devices with each other."""
    if found := re.search(r"source_target_pairs=\{(\{.*?\})\}", attributes):
        return listed(found.group(1))
    if found := re.search(r"replica_groups=\{(\{.*?\})\}", attributes):
        return listed(found.group(1))
    if found := re.search(r"replica_groups=\[([\d,]+)\](<=\[[\d,]+\](?:T\([\d,]+\))?)", attributes):
        return rows(iota(found.group(2)).reshape(numbers_in(found.group(1))))
    if found := re.search(
        r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((.*?\]?(?:T\([\d,]+\))?)\))? \{([^}]*)\}", attributes
    ):
        return mesh_groups(*found.groups())
    return ()


def mesh_groups(axes: str, order: str | None, grouped: str) -> Groups:
    """Groups along axes of a mesh, `'a'=2,'b'=4` and `'a','b':(2)2`: the second takes 2 of b's 4, of those that are 2 apart."""
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", axes)}
    parts: dict[str, list[tuple[int, int]]] = {}
    for name, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", grouped):
        parts.setdefault(name, []).append((int(before or 1), int(size or sizes[name])))
    shape, chosen = [], []
    for name, size in sizes.items():
        done = 1
        for before, taken in sorted(parts.get(name, [])):
            shape += [before // done, taken]
            chosen.append(len(shape) - 1)
            done = before * taken
        shape.append(size // done)
    total = math.prod(sizes.values())
    devices = np.arange(total) if not order else iota(order if "<=" in order else "<=" + order)
    others = [axis for axis in range(len(shape)) if axis not in chosen]
    width = math.prod(shape[axis] for axis in chosen)
    return rows(devices.reshape(shape).transpose(others + chosen).reshape(-1, width))


def iota(text: str) -> np.ndarray:
    """The numbers 0, 1, 2, … seen as an array, its axes exchanged, as `<=[2,4]T(1,0)` says."""
    found = re.search(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    assert found is not None
    shape = numbers_in(found.group(1))
    numbers = np.arange(math.prod(shape)).reshape(shape)
    return (numbers.transpose(numbers_in(found.group(2))) if found.group(2) else numbers).reshape(-1)


def numbers_in(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", text))


def listed(text: str) -> Groups:
    return tuple(numbers_in(group) for group in re.findall(r"\{([^{}]*)\}", text))


def rows(array: np.ndarray) -> Groups:
    return tuple(tuple(int(n) for n in row) for row in array)
