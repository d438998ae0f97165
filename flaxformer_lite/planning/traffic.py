"""What one operation of a compiled program reads from HBM and writes to it."""

import math

from flaxformer_lite.planning.hlo_parser import Computation, Instruction, root_of

NO_TRAFFIC = {
    "parameter",
    "constant",
    "get-tuple-element",
    "tuple",
    "bitcast",
    "while",
    "conditional",
    "call",
    "call-start",
    "async-start",
    "after-all",
}
NO_TRAFFIC |= {"partition-id", "replica-id", "iota", "optimization-barrier", "add-dependency"}
"""Operations that move nothing themselves; what they run is counted where it is written."""
NOTES = {"AllocateBuffer", "CreateBuffer", "ConcatBitcast", "PrepareAsyncCallStart", "PrepareAsyncCallDone"}
NOTES |= {"AssumeGatherIndicesInBound", "GatherScatterIndicesBitpacked", "LayoutConstraint"}
"""Custom calls that the TPU's compiler makes for itself, and that move nothing; others read and write, as `TopK` does."""


def traffic(i: Instruction, computation: Computation, computations: dict[str, Computation]) -> float:
    """Bytes of HBM that one operation reads and writes; what it keeps on the chip costs nothing."""
    if i.opcode in NO_TRAFFIC or i.opcode.endswith(("-done", "-update")):
        return 0
    if i.opcode == "custom-call" and i.attribute(r'custom_call_target="([^"]*)"') in NOTES:
        return 0
    if i.opcode == "copy-start":
        return sum(t.hbm_bytes for t in i.types[:2])
    if i.opcode in ("slice-start", "dynamic-slice-start"):
        source, result = i.types[0], i.types[1]
        return (result.bytes if source.space == 0 else 0) + result.hbm_bytes
    if i.opcode == "fusion":
        return fusion_traffic(i, computation, computations)
    operands = [(place, t) for place, name in enumerate(i.operands) if len(t := computation[name].types) == 1]
    read = sum(min(part_read(i, place, computation), t.bytes) for place, (t,) in operands if t.space == 0)
    results = i.types
    if i.opcode.endswith("-start") and i.opcode != "all-reduce-start":
        results = i.types[len(operands) : 2 * len(operands)]  # the operands, the results, and what the two halves share
    return read + min(part_written(i, computation), sum(t.hbm_bytes for t in results))


def part_read(i: Instruction, place: int, computation: Computation) -> float:
    """What an operation reads of one of its operands where that is less than all; else infinite."""
    if i.opcode in ("dynamic-slice", "slice", "gather") and place == 0:
        return sum(t.bytes for t in i.types)
    if i.opcode == "dynamic-update-slice" and place == 0:
        return 0
    if i.opcode == "scatter" and place < len(i.operands) // 2:  # tables, indices, a table's updates
        return sum(t.bytes for t in computation[i.operands[place + len(i.operands) // 2 + 1]].types)
    return math.inf


def part_written(i: Instruction, computation: Computation) -> float:
    """What an operation writes where that is only a part of its result, which lies where its operand did; else infinite."""
    if i.opcode == "dynamic-update-slice":
        return sum(t.bytes for t in computation[i.operands[1]].types)
    if i.opcode == "scatter":
        return sum(t.bytes for name in i.operands[len(i.operands) // 2 + 1 :] for t in computation[name].types)
    return math.inf


def fusion_traffic(i: Instruction, computation: Computation, computations: dict[str, Computation]) -> float:
    """The same for a fused kernel: of an array that it only takes a slice of, the slice; of one that it updates, the update."""
    body, total = computations[called_by(i)], 0.0
    for name, operand in zip(parameters(body), i.operands, strict=True):
        whole = computation[operand].types
        if len(whole) == 1 and whole[0].space == 0:
            total += min(read_bytes(name, body, computations), whole[0].bytes)
    root = root_of(body)
    results = root.operands if root.opcode == "tuple" else [root.name] * len(i.types)
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
            elif user.opcode == "fusion":
                inner = computations[called_by(user)]
                total += read_bytes(parameters(inner)[place], inner, computations)
                if seen_through(root_of(inner).name, inner) == parameters(inner)[place]:
                    total += read_bytes(user.name, body, computations)
            else:
                total += part_read(user, place, body)
    return total


def written_bytes(name: str, body: Computation, computations: dict[str, Computation]) -> float:
    """What a fused computation writes of one of its results; infinite where that is all of it."""
    i = body[name]
    if i.opcode == "bitcast":
        return written_bytes(i.operands[0], body, computations)
    if i.opcode == "fusion" and len(i.types) == 1:
        inner = computations[called_by(i)]
        return written_bytes(root_of(inner).name, inner, computations)
    return part_written(i, body)


def seen_through(name: str, body: Computation) -> str:
    """What a value is another view of: itself, unless it is a bitcast."""
    i = body[name]
    return seen_through(i.operands[0], body) if i.opcode == "bitcast" else name


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
