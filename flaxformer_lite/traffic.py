"""What one operation of a compiled program reads from HBM and writes to it."""

import math

from flaxformer_lite.hlo_text import KERNEL, Computation, Instruction, root_of

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
        return fusion_traffic(i, computation, computations)
    return sum(t.hbm_bytes for t in (*operands, *i.types))


def fusion_traffic(i: Instruction, computation: Computation, computations: dict[str, Computation]) -> float:
    """The same for a fused kernel: of an array that it only takes a slice of, the slice; of one that it updates, the update."""
    body, total = computations[called_by(i)], 0.0
    for name, operand in zip(parameters(body), i.operands, strict=True):
        whole = computation[operand].types
        if len(whole) == 1 and whole[0].space == 0:
            total += min(read_bytes(name, body, computations), whole[0].bytes)
    root = root_of(body)
    results = root.operands if root.opcode == "tuple" else (root.name,)
    for written, name in zip(i.types, results, strict=True):
        if written.space == 0:
            total += min(written_bytes(name, body, computations), written.bytes)
    return total


def read_bytes(name: str, body: Computation, computations: dict[str, Computation]) -> float:
    """What a fused computation reads of a value from outside, each use by itself; infinite where one use reads all."""
    total = 0.0
    for user in body.values():
        for place, operand in enumerate(user.operands):
            if operand != name or user.opcode == "tuple":
                continue
            if user.opcode == "bitcast" or is_same_memory(user):
                total += read_bytes(user.name, body, computations)
            elif user.opcode in ("dynamic-slice", "slice", "gather") and place == 0:
                total += sum(t.bytes for t in user.types)
            elif user.opcode == "fusion":
                inner = computations[called_by(user)]
                total += read_bytes(parameters(inner)[place], inner, computations)
            elif user.opcode != "dynamic-update-slice" or place != 0:
                return math.inf
    return total


def written_bytes(name: str, body: Computation, computations: dict[str, Computation]) -> float:
    """What a fused computation writes of one of its results."""
    i = body[name]
    if i.opcode == "bitcast":
        return written_bytes(i.operands[0], body, computations)
    if i.opcode == "dynamic-update-slice":
        return sum(t.bytes for t in body[i.operands[1]].types)
    if i.opcode == "fusion" and len(i.types) == 1:
        inner = computations[called_by(i)]
        return written_bytes(root_of(inner).name, inner, computations)
    return sum(t.bytes for t in i.types)


def called_by(fusion: Instruction) -> str:
    """The name of the computation that a fused kernel runs."""
    name = fusion.attribute(r"calls=%?([^\s,}]+)")
    assert name is not None
    return name


def parameters(body: Computation) -> list[str]:
    """The names of a computation's parameters, in the order in which they are given."""
    found = [i for i in body.values() if i.opcode == "parameter"]
    return [i.name for i in sorted(found, key=lambda i: int(i.attribute(r"^\((\d+)\)") or 0))]


def is_same_memory(i: Instruction) -> bool:
    """Whether a fused kernel within another is there only to say that its result lies where its operand does."""
    return i.opcode == "fusion" and "output_to_operand_aliasing={{}: (0, {})}" in i.attributes and len(i.operands) == 1
