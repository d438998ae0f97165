"""The text of a compiled program, as instructions."""

import functools
import math
import re
from typing import NamedTuple

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
"""Instructions by name."""


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


def root_of(computation: Computation) -> Instruction:
    """What a computation results in."""
    return next(i for i in computation.values() if i.is_root)
