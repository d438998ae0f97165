"""Reads a compiled program: its matrix products, what it moves to and from memory, and what devices say to each other.

The compiler's own totals count the body of a loop once, whatever its trips. Here the optimised program's text is walked from its
entry, and what is in a loop counts as often as the loop goes round.
"""

import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from flaxformer_lite.collectives import Groups, replica_groups

BYTES = {
    "pred": 1,
    "s4": 0.5,
    "u4": 0.5,
    "s8": 1,
    "u8": 1,
    "s16": 2,
    "u16": 2,
    "bf16": 2,
    "f16": 2,
    "s32": 4,
    "u32": 4,
    "f32": 4,
}
BYTES |= {"s64": 8, "u64": 8, "f64": 8, "c64": 8, "f8e4m3fn": 1, "f8e5m2": 1, "token": 0}

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "ragged-all-to-all")
NO_TRAFFIC = {
    "parameter",
    "constant",
    "get-tuple-element",
    "tuple",
    "bitcast",
    "while",
    "conditional",
    "call",
    "after-all",
}
NO_TRAFFIC |= {"partition-id", "replica-id", "iota", "optimization-barrier", "add-dependency"}
"""Operations that move nothing themselves."""
KERNEL = 'custom_call_target="tpu_custom_call"'


class ArrayType(NamedTuple):
    """The type of an array; HBM is memory space 0, the others are on the chip."""

    dtype: str
    shape: tuple[int, ...]
    space: int

    @property
    def bytes(self) -> float:
        return BYTES.get(self.dtype, 4) * math.prod(self.shape)

    @property
    def hbm_bytes(self) -> float:
        return self.bytes if self.space == 0 else 0


class Instruction(NamedTuple):
    name: str
    types: tuple[ArrayType, ...]
    """Of its result; several where that is a tuple."""
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    is_root: bool

    def attribute(self, pattern: str) -> str | None:
        found = re.search(pattern, self.attributes)
        return found.group(1) if found else None


Computation = dict[str, Instruction]


class Collective(NamedTuple):
    """One exchange between devices."""

    kind: str
    bytes: float
    """Of what one device puts in; for an all-gather, of what it gets."""
    groups: Groups
    trips: int
    """How often a step does it."""


@dataclass
class Program:
    """What a step does, loops multiplied."""

    flops: float = 0
    """Of matrix products and convolutions on one device."""
    kernels: int = 0
    """Calls of kernels that were written for the chip, such as attention's, whose products are not in `flops`."""
    hbm_bytes: float = 0
    """Read from and written to HBM by one device."""
    collectives: list[Collective] = field(default_factory=list)
    parameter_bytes: float = 0
    """Of the arrays that the program takes, without the padding of their layouts."""
    loops: dict[str, int | None] = field(default_factory=dict)
    """Trips of each loop; None where the program does not say, and then it counts once."""


# Text to instructions --------------------------------------------------------------------------------------------------


def parse(text: str) -> tuple[dict[str, Computation], str]:
    """The computations by name, and the name of the entry."""
    computations: dict[str, Computation] = {}
    entry, current = "", None
    for line in text.splitlines():
        if line.startswith((" ", "\t")):
            if current is not None and " = " in line:
                instruction = parse_instruction(line)
                current[instruction.name] = instruction
        elif line.startswith("}"):
            # An attribute may go on over several lines, one of which may start so too.
            current = None if line.rstrip() == "}" else current
        elif line.rstrip().endswith("{") and (header := re.match(r"(ENTRY )?%?([^\s(]+) \(", line)):
            current = computations.setdefault(header.group(2), {})
            entry = header.group(2) if header.group(1) else entry
    return computations, entry


def parse_instruction(line: str) -> Instruction:
    """One line, `name = type opcode(operands), attributes`."""
    left, right = line.strip().split(" = ", 1)
    end = closing(right, 0) + 1 if right.startswith("(") else right.index(" ")
    start = right.index("(", end)
    stop = closing(right, start)
    operands = tuple(re.findall(r"%([^\s,()]+)", right[start:stop]))
    name = left.removeprefix("ROOT ").lstrip("%")
    opcode, attributes = right[end:start].strip(), right[start:]
    return Instruction(name, array_types(right[:end]), opcode, operands, attributes, left.startswith("ROOT "))


def closing(text: str, start: int) -> int:
    """The place of the parenthesis that closes the one at `start`."""
    depth = 0
    for found in re.compile(r"[()]").finditer(text, start):
        depth += 1 if found.group() == "(" else -1
        if depth == 0:
            return found.start()
    raise ValueError(f"a parenthesis is not closed: {text[start : start + 80]}")


@functools.lru_cache(maxsize=4096)
def array_types(text: str) -> tuple[ArrayType, ...]:
    """The arrays in a type such as `(bf16[8,128]{1,0:T(8,128)S(1)}, s32[])`."""
    types = []
    for dtype, shape, layout in re.findall(r"(\w+)\[([\d,]*)\](\{[^}]*\})?", text):
        space = re.search(r"S\((\d+)\)", layout)
        sizes = tuple(int(size) for size in shape.split(",") if size)
        types.append(ArrayType(dtype, sizes, int(space.group(1)) if space else 0))
    return tuple(types)


# Instructions to totals ------------------------------------------------------------------------------------------------


def read_program(text: str) -> Program:
    """The totals of an optimised program, as `compiled.as_text()` gives it."""
    computations, entry = parse(text)
    program, pieces = Program(), set[tuple[str, ...]]()

    def walk(name: str, trips: int, fused: bool) -> None:
        computation = computations[name]
        for i in computation.values():
            kind = i.opcode.removesuffix("-start")
            if i.opcode in ("convolution", "dot"):
                program.flops += trips * product_flops(i, computation)
            elif i.opcode == "custom-call" and KERNEL in i.attributes:
                program.kernels += trips
            elif kind in COLLECTIVES and not repeated(i, pieces):
                program.collectives.append(read_collective(i, kind, name, computation, trips))
            if not fused:
                program.hbm_bytes += trips * traffic(i, computation, computations)
            for called, times, is_fusion in calls(i, computation, computations):
                if i.opcode == "while":
                    program.loops[i.name] = times
                walk(called, trips * (times or 1), fused or is_fusion)

    walk(entry, 1, False)
    parameters = [i for i in computations[entry].values() if i.opcode == "parameter"]
    program.parameter_bytes = sum(t.bytes for i in parameters for t in i.types)
    return program


def calls(
    i: Instruction, around: Computation, computations: dict[str, Computation]
) -> Iterator[tuple[str, int | None, bool]]:
    """The computations that an instruction runs: name, how often, and whether inside of one fused kernel."""
    if i.opcode == "while":
        body, condition = i.attribute(r"body=%?([^\s,}]+)"), i.attribute(r"condition=%?([^\s,}]+)")
        assert body is not None and condition is not None
        known = i.attribute(r'known_trip_count":\{"n":"(\d+)"')
        trips = int(known) if known else trips_of(i, around, computations[condition], computations[body])
        yield body, trips, False
    elif i.opcode in ("fusion", "async-start", "call", "conditional"):
        for name in re.findall(r"(?:calls|to_apply|true_computation|false_computation)=(%[^\s,}]+)", i.attributes):
            yield name.lstrip("%"), 1, i.opcode == "fusion"
        for name in re.findall(r"%([^\s,}]+)", i.attribute(r"branch_computations=\{([^}]*)\}") or ""):
            yield name, 1, False


def trips_of(loop: Instruction, around: Computation, condition: Computation, body: Computation) -> int | None:
    """The trips of a loop that counts up to a constant in equal steps; None where it does something else."""
    test, last = root_of(condition), root_of(body)
    if test is None or last is None or test.opcode != "compare" or "direction=LT" not in test.attributes:
        return None
    counter = condition[test.operands[0]].attribute(r"index=(\d+)")
    limit = constant(condition.get(test.operands[1]))
    if counter is None or limit is None or last.opcode != "tuple":
        return None
    advance, start = body[last.operands[int(counter)]], around[loop.operands[0]]
    steps = [constant(body.get(name)) for name in advance.operands] if advance.opcode == "add" else []
    step = next((step for step in steps if step), None)
    first = constant(around.get(start.operands[int(counter)])) if start.opcode == "tuple" else 0
    return None if step is None else math.ceil((limit - (first or 0)) / step)


def root_of(computation: Computation) -> Instruction | None:
    return next((i for i in computation.values() if i.is_root), None)


def constant(i: Instruction | None) -> int | None:
    """The number that an instruction stands for, where it is a constant."""
    found = None if i is None or i.opcode != "constant" else i.attribute(r"^\((-?\d+)\)")
    return None if found is None else int(found)


def product_flops(i: Instruction, computation: Computation) -> float:
    """Two for each multiplication of a matrix product or convolution that is not with padding."""
    left, right = (computation[name].types[0].shape for name in i.operands[:2])
    out = i.types[0].shape
    if i.opcode == "dot":
        contracted = [int(d) for d in (i.attribute(r"lhs_contracting_dims=\{([\d,]*)\}") or "").split(",") if d]
        return 2 * math.prod(out) * math.prod(left[d] for d in contracted)
    labels = i.attribute(r"dim_labels=([^\s,]+)") or ""
    of_left, of_right, of_out = re.split(r"_|->", labels)
    pairs = 1
    for place, window in enumerate(windows(i)):
        n_in, n_out = left[of_left.index(str(place))], out[of_out.index(str(place))]
        pairs *= window.pairs(n_in, n_out)
    channels = right[of_right.index("i")] * right[of_right.index("o")]
    return 2 * out[of_out.index("b")] * channels * pairs


class Window(NamedTuple):
    """How a convolution slides along one dimension."""

    size: int
    stride: int
    pad: int
    base: int
    step: int

    def pairs(self, n_in: int, n_out: int) -> int:
        """How many pairs of a window's place and an element of the input meet."""
        at = np.arange(n_out)[:, None] * self.stride + np.arange(self.size)[None] * self.step - self.pad
        return int(((at >= 0) & (at % self.base == 0) & (at // self.base < n_in)).sum())


def windows(i: Instruction) -> Iterator[Window]:
    """One window for each dimension that a convolution slides along."""
    text = i.attribute(r"window=\{([^}]*)\}") or ""
    parts = dict(part.split("=") for part in text.split() if "=" in part)
    sizes = [int(size) for size in parts.get("size", "").split("x") if size]

    def numbers(name: str, default: int) -> list[int]:
        return [int(n.split("_")[0]) for n in parts[name].split("x")] if name in parts else [default] * len(sizes)

    rows = (sizes, numbers("stride", 1), numbers("pad", 0), numbers("lhs_dilate", 1), numbers("rhs_dilate", 1))
    yield from map(Window._make, zip(*rows, strict=True))


# Memory ----------------------------------------------------------------------------------------------------------------


def traffic(i: Instruction, computation: Computation, computations: dict[str, Computation]) -> float:
    """Bytes of HBM that one operation reads and writes; what it keeps on the chip costs nothing."""
    if i.opcode in NO_TRAFFIC or i.opcode.endswith(("-done", "-update")):
        return 0
    if i.opcode == "custom-call" and KERNEL not in i.attributes:
        return 0  # a note of the compiler to itself
    if i.opcode == "copy-start":
        return sum(t.hbm_bytes for t in i.types[:2])
    if i.opcode in ("slice-start", "dynamic-slice-start"):
        source, result = i.types[0], i.types[1]
        return (result.bytes if source.space == 0 else 0) + result.hbm_bytes
    operands = [computation[name].types[0] for name in i.operands if len(computation[name].types) == 1]
    if i.opcode in ("dynamic-slice", "slice", "gather"):
        return (i.types[0].bytes if operands[0].space == 0 else 0) + i.types[0].hbm_bytes
    if i.opcode == "dynamic-update-slice":
        return operands[1].hbm_bytes + (operands[1].bytes if i.types[0].space == 0 else 0)
    if i.opcode == "fusion":
        called = i.attribute(r"calls=%?([^\s,}]+)")
        if called is not None:
            return fusion_traffic(i, computation, computations[called])
    return sum(t.hbm_bytes for t in (*operands, *i.types))


def fusion_traffic(i: Instruction, computation: Computation, body: Computation) -> float:
    """The same for a fused kernel: of a parameter it only takes a slice of, the slice; of a result it only updates, the update."""
    users: dict[str, list[Instruction]] = {}
    for inner in body.values():
        for name in inner.operands:
            users.setdefault(name, []).append(inner)
    parameters = [inner for inner in body.values() if inner.opcode == "parameter"]
    total, updated = 0.0, set[tuple[str, tuple[int, ...]]]()
    for inner in parameters:
        number = int(inner.attribute(r"^\((\d+)\)") or 0)
        whole = computation[i.operands[number]].types
        if len(whole) != 1 or whole[0].space != 0:
            continue
        ends = list(final_users(inner.name, users))
        if ends and all(user.opcode in ("dynamic-slice", "slice", "gather") for user, _ in ends):
            total += min(sum(user.types[0].bytes for user, _ in ends), whole[0].bytes)
        elif ends and all(user.opcode == "dynamic-update-slice" and place == 0 for user, place in ends):
            for user, _ in ends:
                total += body[user.operands[1]].types[0].bytes
                updated.add((whole[0].dtype, whole[0].shape))
        else:
            total += whole[0].bytes
    return total + sum(t.hbm_bytes for t in i.types if (t.dtype, t.shape) not in updated)


def final_users(name: str, users: dict[str, list[Instruction]]) -> Iterator[tuple[Instruction, int]]:
    """The operations that use a value, seen through changes of shape alone, and as which operand."""
    for user in users.get(name, []):
        if user.opcode in ("bitcast", "tuple", "get-tuple-element"):
            yield from final_users(user.name, users) if user.name in users else ()
        else:
            yield user, user.operands.index(name)


# Collectives -----------------------------------------------------------------------------------------------------------


def repeated(i: Instruction, pieces: set[tuple[str, ...]]) -> bool:
    """Whether this is a further piece of a collective that is spread over several fused kernels."""
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
        kind = "reduce-scatter"  # the TPU compiler's form of one: each device keeps its slice of the sum
    return Collective(kind, payload, groups, trips)
