"""The work of a compiled program: its matrix products, its memory traffic and its collectives.

The compiler's own totals count the body of a loop once, whatever its trips. Here the text of the optimised program is walked from
its entry, and the body of a loop counts once for each trip.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from flaxformer_lite.tools.planning.hlo_parser import (
    KERNEL,
    Computation,
    Groups,
    Instruction,
    parse,
    replica_groups,
    root_of,
)
from flaxformer_lite.tools.planning.traffic import traffic

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "ragged-all-to-all")


class Collective(NamedTuple):
    """One exchange of data between devices."""

    kind: str
    bytes: float
    """Size of the data that one device sends; for an all-gather, receives."""
    groups: Groups
    trips: int
    """Executions in one step."""


@dataclass
class Program:
    """The work of one step, loops multiplied."""

    flops: float = 0
    """Operations of matrix products and convolutions on one device."""
    kernels: int = 0
    """Calls of handwritten kernels, such as attention's. Their products are not in `flops`."""
    hbm_bytes: float = 0
    """Bytes that one device reads from and writes to HBM."""
    collectives: list[Collective] = field(default_factory=list)
    parameter_bytes: float = 0
    """Size of the program's arguments, without the padding of their layouts."""
    loops: dict[str, int | None] = field(default_factory=dict)
    """Trips of each loop; None: unknown, counted once."""

    def add(self, part: "Program") -> None:
        """Adds the work of a part of the step."""
        self.flops += part.flops
        self.kernels += part.kernels
        self.hbm_bytes += part.hbm_bytes
        self.collectives += part.collectives
        self.loops |= part.loops


# Instructions to totals ------------------------------------------------------------------------------------------------


def read_program(text: str) -> Program:
    """Returns the totals of an optimised program, the text of `compiled.as_text()`."""
    computations, entry = parse(text)
    pieces = set[tuple[str, ...]]()

    def walk(name: str, trips: int, fused: bool) -> Program:
        computation, part = computations[name], Program()
        for i in computation.values():
            kind = i.opcode.removesuffix("-start")
            if i.opcode in ("convolution", "dot"):
                part.flops += trips * product_flops(i, computation)
            elif i.opcode == "custom-call" and KERNEL in i.attributes:
                part.kernels += trips
            elif kind in COLLECTIVES and not repeated(i, pieces):
                part.collectives.append(read_collective(i, kind, name, computation, trips))
            if not fused:
                part.hbm_bytes += trips * traffic(i, computation, computations)
            called = []
            for inner, times, is_fusion in calls(i, computation, computations):
                if i.opcode == "while":
                    part.loops[i.name] = times
                called.append(walk(inner, trips * (times or 1), fused or is_fusion))
            if (
                i.opcode == "conditional"
            ):  # one branch is run: count the one with more products, or else with more traffic
                called = [max(called, key=lambda branch: (branch.flops, branch.hbm_bytes))]
            for inner_part in called:
                part.add(inner_part)
        return part

    program = walk(entry, 1, False)
    parameters = [i for i in computations[entry].values() if i.opcode == "parameter"]
    program.parameter_bytes = sum(t.bytes for i in parameters for t in i.types)
    return program


def calls(
    i: Instruction, around: Computation, computations: dict[str, Computation]
) -> Iterator[tuple[str, int | None, bool]]:
    """Yields the computations that an instruction runs: name, trips (None: unknown), and whether it is a fused kernel."""
    if i.opcode == "while":
        body, condition = i.attribute(r"body=%?([^\s,}]+)"), i.attribute(r"condition=%?([^\s,}]+)")
        assert body is not None and condition is not None
        known = i.attribute(r'known_trip_count":\{"n":"(\d+)"')
        trips = int(known) if known else trips_of(i, around, computations[condition], computations[body])
        yield body, trips, False
    elif i.opcode in ("fusion", "async-start", "call", "call-start", "conditional"):
        for name in re.findall(r"(?:calls|to_apply|true_computation|false_computation)=(%[^\s,}]+)", i.attributes):
            yield name.lstrip("%"), 1, i.opcode == "fusion"
        for name in re.findall(r"%([^\s,}]+)", i.attribute(r"branch_computations=\{([^}]*)\}") or ""):
            yield name, 1, False


def trips_of(loop: Instruction, around: Computation, condition: Computation, body: Computation) -> int | None:
    """Returns the trips of a loop that counts up to a constant in equal steps; None for another loop."""
    test, last = root_of(condition), root_of(body)
    if test.opcode != "compare" or "direction=LT" not in test.attributes:
        return None
    counter = condition[test.operands[0]].attribute(r"index=(\d+)")
    limit, start = constant(test.operands[1], condition), around[loop.operands[0]]
    if counter is None or limit is None or last.opcode != "tuple" or start.opcode != "tuple":
        return None
    first, advance = constant(start.operands[int(counter)], around), body[last.operands[int(counter)]]
    steps = [constant(name, body) for name in advance.operands] if advance.opcode == "add" else []
    step = next((step for step in steps if step), None)
    return None if step is None or first is None else max(0, math.ceil((limit - first) / step))


def constant(name: str, computation: Computation) -> int | None:
    """Returns the value of an instruction that is a constant or a copy of one; else None."""
    i = computation[name]
    if i.opcode in ("copy", "bitcast"):
        return constant(i.operands[0], computation)
    found = i.attribute(r"^\((-?\d+)\)") if i.opcode == "constant" else None
    return None if found is None else int(found)


def product_flops(i: Instruction, computation: Computation) -> float:
    """Returns 2 for each multiplication of a matrix product or convolution; padding does not count."""
    left, right = (computation[name].types[0].shape for name in i.operands[:2])
    out = i.types[0].shape
    if i.opcode == "dot":
        contracted = [int(d) for d in (i.attribute(r"lhs_contracting_dims=\{([\d,]*)\}") or "").split(",") if d]
        return 2 * math.prod(out) * math.prod(left[d] for d in contracted)
    labels = i.attribute(r"dim_labels=([^\s,]+)") or ""
    of_left, of_right, of_out = re.split(r"_|->", labels)
    pairs = 1
    for dimension, window in enumerate(windows(i)):
        n_in, n_out = left[of_left.index(str(dimension))], out[of_out.index(str(dimension))]
        pairs *= window.pairs(n_in, n_out)
    channels = right[of_right.index("i")] * right[of_right.index("o")]
    return 2 * out[of_out.index("b")] * channels * pairs


class Window(NamedTuple):
    """The window of a convolution along one dimension."""

    size: int
    stride: int
    pad: int
    base: int
    step: int

    def pairs(self, n_in: int, n_out: int) -> int:
        """Returns the number of pairs of a window position and an input element, padding excluded."""
        at = np.arange(n_out)[:, None] * self.stride + np.arange(self.size)[None] * self.step - self.pad
        return int(((at >= 0) & (at % self.base == 0) & (at // self.base < n_in)).sum())


def windows(i: Instruction) -> Iterator[Window]:
    """Yields the window of each dimension that a convolution slides along."""
    text = i.attribute(r"window=\{([^}]*)\}") or ""
    parts = dict(part.split("=") for part in text.split() if "=" in part)
    sizes = [int(size) for size in parts.get("size", "").split("x") if size]

    def numbers(name: str, default: int) -> list[int]:
        return [int(n.split("_")[0]) for n in parts[name].split("x")] if name in parts else [default] * len(sizes)

    rows = (sizes, numbers("stride", 1), numbers("pad", 0), numbers("lhs_dilate", 1), numbers("rhs_dilate", 1))
    yield from map(Window._make, zip(*rows, strict=True))


# Collectives -----------------------------------------------------------------------------------------------------------


def repeated(i: Instruction, pieces: set[tuple[str, ...]]) -> bool:
    """Returns whether this is a further piece of a collective that was split over several fused kernels."""
    chain = i.attribute(r'chain_id="(\d+)"')
    if chain is None:
        return False
    key = (i.opcode, chain, i.attribute(r"channel_id=(\d+)") or "")
    if key in pieces:
        return True
    pieces.add(key)
    return False


def read_collective(i: Instruction, kind: str, name: str, computation: Computation, trips: int) -> Collective:
    groups = replica_groups(i.attributes)
    payload = sum(t.bytes for operand in i.operands for t in computation[operand].types)
    if kind == "all-gather":
        payload *= len(groups[0]) if groups else 1
    if kind == "all-reduce" and name.startswith("all-reduce-scatter"):
        kind = "reduce-scatter"  # as the TPU compiler writes it: each device keeps its slice of the sum
    return Collective(kind, payload, groups, trips)
