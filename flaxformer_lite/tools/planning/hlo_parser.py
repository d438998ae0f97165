"""Parses the text of a compiled program: instructions, their types, and the device groups of collectives."""

import functools
import math
import re
from typing import NamedTuple

import numpy as np

SMALL_TYPES = {"token": 0, "s4": 0.5, "u4": 0.5, "pred": 1, "s8": 1, "u8": 1, "f8e4m3fn": 1, "f8e5m2": 1}
BYTES_OF_TYPE = (
    SMALL_TYPES | dict.fromkeys(("s16", "u16", "bf16", "f16"), 2) | dict.fromkeys(("s64", "u64", "f64", "c64"), 8)
)
"""Bytes of one element, by type; other types have 4."""


class ArrayType(NamedTuple):
    """The type of an array. HBM is memory space 0, the other spaces are on the chip."""

    dtype: str
    shape: tuple[int, ...]
    space: int

    @property
    def bytes(self) -> float:
        return BYTES_OF_TYPE.get(self.dtype, 4) * math.prod(self.shape)

    @property
    def hbm_bytes(self) -> float:
        return self.bytes if self.space == 0 else 0


class HloInstruction(NamedTuple):
    name: str
    types: tuple[ArrayType, ...]
    """The types of its result; several for a tuple."""
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    is_root: bool

    @property
    def bytes(self) -> float:
        return sum(t.bytes for t in self.types)

    def attribute(self, pattern: str) -> str | None:
        match = re.search(pattern, self.attributes)
        return match and match[1]


Computation = dict[str, HloInstruction]
"""Instructions by name."""


def parse_program(text: str) -> tuple[dict[str, Computation], str]:
    """Returns the computations by name, and the name of the entry."""
    computations: dict[str, Computation] = {}
    entry, current = "", None
    for line in text.splitlines():
        if line.startswith((" ", "\t")):
            if current is not None and " = " in line:
                instruction = parse_instruction(line)
                current[instruction.name] = instruction
        elif re.fullmatch(r'\}(, execution_thread="\w+")?', line.rstrip()):
            current = None
        elif current:  # an attribute may span several lines
            name, instruction = current.popitem()
            current[name] = instruction._replace(attributes=instruction.attributes + line)
        elif line.rstrip().endswith("{"):
            header = re.match(r"(ENTRY )?%?([^\s(]+) \(", line)
            if header:
                current = computations.setdefault(header[2], {})
                entry = header[2] if header[1] else entry
    return computations, entry


def parse_instruction(line: str) -> HloInstruction:
    """Parses one line, `name = type opcode(operands), attributes`."""
    left, right = line.strip().split(" = ", 1)
    end = closing(right, 0) + 1 if right.startswith("(") else right.index(" ")
    start = right.index("(", end)
    stop = closing(right, start)
    operands = tuple(re.findall(r"%([^\s,()]+)", right[start:stop]))
    name = left.removeprefix("ROOT ").lstrip("%")
    opcode = right[end:start].strip()
    attributes = right[start:]
    return HloInstruction(name, array_types(right[:end]), opcode, operands, attributes, left.startswith("ROOT "))


def closing(text: str, start: int) -> int:
    """Returns the index of the parenthesis that closes the one at `start`."""
    depth = 0
    for bracket in re.compile(r"[()]").finditer(text, start):
        depth += 1 if bracket.group() == "(" else -1
        if depth == 0:
            return bracket.start()
    raise ValueError(f"the program has a parenthesis that is not closed: {text[start : start + 80]}")


@functools.lru_cache(maxsize=4096)
def array_types(text: str) -> tuple[ArrayType, ...]:
    """Returns the arrays in a type such as `(bf16[8,128]{1,0:T(8,128)S(1)}, s32[])`."""
    types = []
    for dtype, shape, layout in re.findall(r"(\w+)\[([\d,]*)\](\{[^}]*\})?", text):
        space = re.search(r"S\((\d+)\)", layout)
        types.append(ArrayType(dtype, numbers_in(shape), int(space[1]) if space else 0))
    return tuple(types)


def root_of(computation: Computation) -> HloInstruction:
    """Returns the instruction that is the result of a computation."""
    return next(i for i in computation.values() if i.is_root)


# Device groups ----------------------------------------------------------------------------------------------------------

Groups = tuple[tuple[int, ...], ...]
"""Groups of devices that exchange data with each other, by their numbers in the mesh."""


def replica_groups(attributes: str) -> Groups:
    """Returns the device groups of a collective, in any of the notations; empty: one group of all devices."""
    listed = re.search(r"(?:source_target_pairs|replica_groups)=\{(\{.*?\})\}", attributes)
    if listed:
        return tuple(map(numbers_in, re.findall(r"\{([^{}]*)\}", listed[1])))
    iota = re.search(r"replica_groups=\[([\d,]+)\](<=\[[\d,]+\](?:T\([\d,]+\))?)", attributes)
    if iota:
        return as_groups(iota_devices(iota[2]).reshape(numbers_in(iota[1])))
    of_mesh = re.search(
        r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((.*?\]?(?:T\([\d,]+\))?)\))? \{([^}]*)\}", attributes
    )
    if of_mesh:
        return mesh_groups(*of_mesh.groups())
    return ()


def mesh_groups(axes: str, order: str | None, grouped: str) -> Groups:
    """Returns groups along axes of a mesh, from `'a'=2,'b'=4` and `'a','b':(2)2`.

    The latter means all of axis a, and the part of axis b that has size 2 after a factor of 2.
    """
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
    devices = np.arange(total)
    if order:
        devices = iota_devices(order if "<=" in order else "<=" + order)
    others = [axis for axis in range(len(shape)) if axis not in chosen]
    width = math.prod(shape[axis] for axis in chosen)
    return as_groups(devices.reshape(shape).transpose(others + chosen).reshape(-1, width))


def iota_devices(text: str) -> np.ndarray:
    """Returns the numbers 0, 1, 2, … of an array after its axes were permuted: `<=[2,4]T(1,0)`."""
    match = re.search(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    assert match is not None
    shape = numbers_in(match[1])
    numbers = np.arange(math.prod(shape)).reshape(shape)
    return (numbers.transpose(numbers_in(match[2])) if match[2] else numbers).reshape(-1)


def numbers_in(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


def as_groups(array: np.ndarray) -> Groups:
    return tuple(map(tuple, array.tolist()))
