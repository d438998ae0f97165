"""The bytes that one operation of a compiled program reads from HBM and writes to it."""

import math

from flaxformer_lite.tools.planning.hlo_parser import Computation, Instruction, root_of

NO_TRAFFIC = {
    *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "partition-id", "replica-id", "iota"),
    *("while", "conditional", "call", "call-start", "async-start", "after-all"),
    *("optimization-barrier", "add-dependency"),
}
"""Operations without traffic of their own; the computations that they run are counted by themselves."""
NOTES = {"AllocateBuffer", "CreateBuffer", "ConcatBitcast", "PrepareAsyncCallStart", "PrepareAsyncCallDone"}
NOTES |= {"AssumeGatherIndicesInBound", "GatherScatterIndicesBitpacked", "LayoutConstraint"}
"""The TPU compiler's own custom calls, without traffic. Others read and write, such as `TopK`."""


def traffic(i: Instruction, computation: Computation, computations: dict[str, Computation]) -> float:
    """Returns the bytes of HBM that one operation reads and writes; memory on the chip costs nothing."""
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
    operands = [(index, t) for index, name in enumerate(i.operands) if len(t := computation[name].types) == 1]
    read = sum(min(part_read(i, index, computation), t.bytes) for index, (t,) in operands if t.space == 0)
    results = i.types
    if i.opcode.endswith("-start") and i.opcode != "all-reduce-start":
        results = i.types[
            len(operands) : 2 * len(operands)
        ]  # the operands, the results, and the state shared with the other half
    return read + min(part_written(i, computation), sum(t.hbm_bytes for t in results))


def part_read(i: Instruction, index: int, computation: Computation) -> float:
    """Returns the bytes that an operation reads of operand `index` if it reads only a part; else infinity."""
    if i.opcode in ("dynamic-slice", "slice", "gather") and index == 0:
        return sum(t.bytes for t in i.types)
    if i.opcode == "dynamic-update-slice" and index == 0:
        return 0
    if i.opcode == "scatter" and index < len(i.operands) // 2:  # tables, indices, a table's updates
        return sum(t.bytes for t in computation[i.operands[index + len(i.operands) // 2 + 1]].types)
    return math.inf


def part_written(i: Instruction, computation: Computation) -> float:
    """Returns the bytes that an operation writes if it updates a part of its operand in place; else infinity."""
    if i.opcode == "dynamic-update-slice":
        return sum(t.bytes for t in computation[i.operands[1]].types)
    if i.opcode == "scatter":
        return sum(t.bytes for name in i.operands[len(i.operands) // 2 + 1 :] for t in computation[name].types)
    return math.inf


def fusion_traffic(i: Instruction, computation: Computation, computations: dict[str, Computation]) -> float:
    """Returns the traffic of a fused kernel: only the slice of an array that it slices, only the update of one that it updates."""
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
    """Returns the bytes that a fused computation reads of an argument, summed over its uses; infinity if one use reads all."""
    total = 0.0
    for user in body.values():
        for index, operand in enumerate(user.operands):
            if operand != name or user.opcode == "tuple":
                continue
            if is_view(user):
                total += read_bytes(user.name, body, computations)
            elif user.opcode == "fusion":
                inner = computations[called_by(user)]
                total += read_bytes(parameters(inner)[index], inner, computations)
                if view_source(root_of(inner).name, inner) == parameters(inner)[index]:
                    total += read_bytes(user.name, body, computations)
            else:
                total += part_read(user, index, body)
    return total


def written_bytes(name: str, body: Computation, computations: dict[str, Computation]) -> float:
    """Returns the bytes that a fused computation writes of one of its results; infinity if it writes all of it."""
    i = body[name]
    if i.opcode == "bitcast":
        return written_bytes(i.operands[0], body, computations)
    if i.opcode == "fusion" and len(i.types) == 1:
        inner = computations[called_by(i)]
        return written_bytes(root_of(inner).name, inner, computations)
    return part_written(i, body)


def is_view(i: Instruction) -> bool:
    """Returns whether the result is the operand's memory: a bitcast, or a fused kernel that only states this alias."""
    is_alias = i.opcode == "fusion" and "output_to_operand_aliasing={{}: (0, {})}" in i.attributes
    return i.opcode == "bitcast" or (is_alias and len(i.operands) == 1)


def view_source(name: str, body: Computation) -> str:
    """Returns the value that a chain of views starts from; the value itself if it is not a view."""
    return view_source(body[name].operands[0], body) if is_view(body[name]) else name


def called_by(fusion: Instruction) -> str:
    """Returns the name of the computation that a fused kernel runs."""
    name = fusion.attribute(r"calls=%?([^\s,}]+)")
    assert name is not None
    return name


def parameters(body: Computation) -> list[str]:
    """Returns the names of a computation's parameters, in order."""
    found = [i for i in body.values() if i.opcode == "parameter"]
    return [i.name for i in sorted(found, key=lambda i: int(i.attribute(r"^\((\d+)\)") or 0))]
