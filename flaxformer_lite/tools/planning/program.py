"""The work of a compiled program: its memory traffic and its collectives.

The compiler's own totals count the body of a loop once, whatever its trips. Here the text of the optimised program is walked from
its entry, and the body of a loop counts once for each trip.
"""

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from flaxformer_lite.tools.planning.hlo_parser import (
    Computation,
    Groups,
    HloInstruction,
    parse_program,
    replica_groups,
    root_of,
)

KERNELS = ("fusion", "convolution", "dot", "while")
"""Operations that compute."""
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "ragged-all-to-all")


class Collective(NamedTuple):
    """One exchange of data between devices."""

    kind: str
    bytes: float
    """Size of the data that one device sends; for an all-gather, receives."""
    groups: Groups
    trips: int
    """Executions in one step."""
    between_slices: bool = False
    """Whether it goes over the network between slices; then it has no groups."""
    hidden: bool = False
    """Whether the device computes something else meanwhile."""


class AttentionCost(NamedTuple):
    """One call of Splash, on one device."""

    pairs: int
    """Pairs of a query and a key in the blocks that it computes, over all rows and heads."""
    widths: tuple[int, ...]
    """For each of its matrix products, the width of the heads."""
    trips: int
    """Executions in one step."""

    def flops(self, matrix_unit: int) -> float:
        """Returns the operations of all executions, heads padded to the width of the matrix units."""
        return self.trips * 2.0 * self.pairs * sum(-(-width // matrix_unit) * matrix_unit for width in self.widths)


@dataclass
class Program:
    """The work of one step on one device, loops multiplied."""

    hbm_bytes: float = 0
    """Bytes that are read from HBM and written to it."""
    collectives: list[Collective] = field(default_factory=list)
    attention: list[AttentionCost] = field(default_factory=list)
    parameter_bytes: float = 0
    """Size of the program's arguments, without the padding of their layouts."""
    loops: dict[str, int | None] = field(default_factory=dict)
    """Trips of each loop; None: unknown, counted once."""


def read_program(text: str) -> Program:
    """Returns the totals of an optimised program, the text of `compiled.as_text()`."""
    computations, entry = parse_program(text)
    pieces = set[tuple[str, ...]]()

    def walk(name: str, trips: int, fused: bool, hidden: bool) -> Program:
        computation = computations[name]
        totals = Program()
        for i in computation.values():
            kind = i.opcode.removesuffix("-start")
            transfer = i.attribute(r'megascale_transfer_type="(\w+)"') if i.opcode == "send" else None
            splash = read_splash(i, computation, trips) if i.opcode == "custom-call" else None
            if kind in COLLECTIVES and not repeated(i, pieces):
                collective = read_collective(i, kind, name, computation, trips)
                totals.collectives.append(collective._replace(hidden=hidden or is_hidden(i, computation)))
            elif transfer:
                sent = computation[i.operands[0]].types[0].bytes
                totals.collectives.append(Collective(transfer.lower().replace("_", "-"), sent, (), trips, True, True))
            elif splash is not None:
                totals.attention.append(splash)
            if not fused:
                totals.hbm_bytes += trips * traffic(i, computation, computations)
            called = []
            for inner, times, is_fusion in calls(i, computation, computations):
                if i.opcode == "while":
                    totals.loops[i.name] = times
                aside = hidden or (i.opcode.endswith("-start") and is_hidden(i, computation))
                called.append(walk(inner, trips * (times or 1), fused or is_fusion, aside))
            if i.opcode == "conditional":  # one branch is run: count the one with more traffic
                called = [max(called, key=lambda branch: branch.hbm_bytes)]
            for inner_part in called:
                totals.hbm_bytes += inner_part.hbm_bytes
                totals.collectives += inner_part.collectives
                totals.attention += inner_part.attention
                totals.loops |= inner_part.loops
        return totals

    program = walk(entry, 1, False, False)
    program.parameter_bytes = sum(i.bytes for i in computations[entry].values() if i.opcode == "parameter")
    return program


# Loops ------------------------------------------------------------------------------------------------------------------


def calls(
    i: HloInstruction, around: Computation, computations: dict[str, Computation]
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


def trips_of(loop: HloInstruction, around: Computation, condition: Computation, body: Computation) -> int | None:
    """Returns the trips of a loop that counts up to a constant in equal steps; None for another loop."""
    test, last = root_of(condition), root_of(body)
    if test.opcode != "compare" or "direction=LT" not in test.attributes:
        return None
    counter = condition[test.operands[0]].attribute(r"index=(\d+)")
    limit = constant_value(test.operands[1], condition)
    start = around[loop.operands[0]]
    if counter is None or limit is None or last.opcode != "tuple" or start.opcode != "tuple":
        return None
    first, advance = constant_value(start.operands[int(counter)], around), uncopied(last.operands[int(counter)], body)
    steps = [constant_value(name, body) for name in advance.operands] if advance.opcode == "add" else []
    step = next((step for step in steps if step), None)
    return None if step is None or first is None else max(0, math.ceil((limit - first) / step))


def uncopied(name: str, computation: Computation) -> HloInstruction:
    """Returns the instruction whose result this is, or is a copy of."""
    i = computation[name]
    return uncopied(i.operands[0], computation) if i.opcode in ("copy", "bitcast") else i


def constant_value(name: str, computation: Computation) -> int | None:
    """Returns the value of an instruction that is a constant or a copy of one; else None."""
    i = uncopied(name, computation)
    digits = i.attribute(r"^\((-?\d+)\)") if i.opcode == "constant" else None
    return None if digits is None else int(digits)


# Collectives -----------------------------------------------------------------------------------------------------------


def repeated(i: HloInstruction, pieces: set[tuple[str, ...]]) -> bool:
    """Returns whether this is a further piece of a collective that was split over several fused kernels."""
    chain = i.attribute(r'chain_id="(\d+)"')
    if chain is None:
        return False
    key = (i.opcode, chain, i.attribute(r"channel_id=(\d+)") or "")
    is_further = key in pieces
    pieces.add(key)
    return is_further


def is_hidden(i: HloInstruction, computation: Computation) -> bool:
    """Returns whether kernels run while a collective does: in the same fused kernels, or between its two halves."""
    if i.attribute(r'chain_id="(\d+)"') is not None:
        return True
    after = list(itertools.dropwhile(lambda other: other is not i, computation.values()))[1:]
    meanwhile = itertools.takewhile(lambda other: i.name not in other.operands, after)
    return i.opcode.endswith("-start") and any(other.opcode in KERNELS for other in meanwhile)


def read_collective(i: HloInstruction, kind: str, name: str, computation: Computation, trips: int) -> Collective:
    groups = replica_groups(i.attributes)
    payload = sum(computation[operand].bytes for operand in i.operands)
    if kind == "all-gather":
        payload *= len(groups[0]) if groups else 1
    if kind == "all-reduce" and name.startswith("all-reduce-scatter"):
        kind = "reduce-scatter"  # as the TPU compiler writes it: each device keeps its slice of the sum
    return Collective(kind, payload, groups, trips)


# Attention --------------------------------------------------------------------------------------------------------------


def read_splash(i: HloInstruction, computation: Computation, trips: int) -> AttentionCost | None:
    """Returns the work of a call of Splash; None for any other operation. Blocks by its own note of their sizes."""
    name = re.match(r"splash_mha_(fwd|dq|dkv)", i.name)
    mask = re.search(r"splash_(causal|every_key|window|around)_?(\d*)[/)]", i.attributes)
    suffix = "" if name is None or name[1] == "fwd" else f"_{name[1]}"
    sizes = [i.attribute(rf"block_{of}{suffix}\W+(\d+)") for of in ("q", "kv")]
    if name is None or mask is None or None in sizes:
        return None
    arrays = [t for operand in i.operands for t in computation[operand].types if t.dtype in ("bf16", "f32")]
    (*rows, queries, width), (*_, keys, _), (*_, value_width) = (t.shape for t in arrays[:3])
    of_queries, of_keys = (int(size or 0) for size in sizes)
    behind = {"causal": queries, "every_key": queries + keys}.get(mask[1], int(mask[2] or 0))
    ahead = behind if mask[1] in ("every_key", "around") else 1
    blocks = 0
    for query in range(0, queries, of_queries):
        for key in range(0, keys, of_keys):
            blocks += key - (query + of_queries - 1) < ahead and query - (key + of_keys - 1) < behind
    widths = {
        "fwd": (width, value_width),  # scores, answers
        "dq": (width, value_width, width),  # scores, gradients of weights and of queries
        "dkv": (width, value_width, value_width, width),  # the same with gradients of values and of keys
    }[name[1]]
    if name[1] == "dkv" and any(len(t.shape) > len(rows) + 2 for t in i.types):
        widths += (width,)  # the fused kernel: gradients of queries too, a part for each block of keys
    return AttentionCost(math.prod(rows) * blocks * of_queries * of_keys, widths, trips)


# Traffic ----------------------------------------------------------------------------------------------------------------

NO_TRAFFIC = {
    "parameter",
    "constant",
    "get-tuple-element",
    "tuple",
    "bitcast",
    "partition-id",
    "replica-id",
    "iota",
    "while",
    "conditional",
    "call",
    "call-start",
    "async-start",
    "after-all",
    "optimization-barrier",
    "add-dependency",
}
"""Operations without traffic of their own; the computations that they run are counted by themselves."""
NOTES = {"AllocateBuffer", "CreateBuffer", "ConcatBitcast", "PrepareAsyncCallStart", "PrepareAsyncCallDone"}
NOTES |= {"AssumeGatherIndicesInBound", "GatherScatterIndicesBitpacked", "LayoutConstraint"}
"""The TPU compiler's own custom calls, without traffic. Others read and write, such as `TopK`."""


def traffic(i: HloInstruction, computation: Computation, computations: dict[str, Computation]) -> float:
    """Returns the bytes of HBM that one operation reads and writes; memory on the chip costs nothing."""
    if i.opcode in NO_TRAFFIC or i.opcode.endswith(("-done", "-update")):
        return 0
    if i.opcode == "custom-call" and i.attribute(r'custom_call_target="([^"]*)"') in NOTES:
        return 0
    if i.opcode == "copy-start":
        return sum(t.hbm_bytes for t in i.types[:2])
    if i.opcode in ("slice-start", "dynamic-slice-start"):
        source, result, *_ = i.types
        return (result.bytes if source.space == 0 else 0) + result.hbm_bytes
    if i.opcode == "fusion":
        return fusion_traffic(i, computation, computations)
    types = enumerate(computation[name].types for name in i.operands)
    operands = [(index, t) for index, t in types if len(t) == 1]
    read = sum(min(part_read(i, index, computation), t.bytes) for index, (t,) in operands if t.space == 0)
    results = i.types
    if i.opcode == "send":
        return read
    if i.opcode.endswith("-start") and i.opcode != "all-reduce-start":
        results = i.types[
            len(operands) : 2 * len(operands)
        ]  # the operands, the results, and the state shared with the other half
    return read + min(part_written(i, computation), sum(t.hbm_bytes for t in results))


def part_read(i: HloInstruction, index: int, computation: Computation) -> float:
    """Returns the bytes that an operation reads of operand `index` if it reads only a part; else infinity."""
    if i.opcode in ("dynamic-slice", "slice", "gather") and index == 0:
        return i.bytes
    if i.opcode == "dynamic-update-slice" and index == 0:
        return 0
    if i.opcode == "scatter" and index < len(i.operands) // 2:  # tables, indices, a table's updates
        return computation[i.operands[index + len(i.operands) // 2 + 1]].bytes
    return math.inf


def part_written(i: HloInstruction, computation: Computation) -> float:
    """Returns the bytes that an operation writes if it updates a part of its operand in place; else infinity."""
    if i.opcode == "dynamic-update-slice":
        return computation[i.operands[1]].bytes
    if i.opcode == "scatter":
        return sum(computation[name].bytes for name in i.operands[len(i.operands) // 2 + 1 :])
    return math.inf


def fusion_traffic(i: HloInstruction, computation: Computation, computations: dict[str, Computation]) -> float:
    """Returns the traffic of a fused kernel: only the slice of an array that it slices, only the update of one that it updates."""
    body = computations[called_by(i)]
    total = 0.0
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


def is_view(i: HloInstruction) -> bool:
    """Returns whether the result is the operand's memory: a bitcast, or a fused kernel that only states this alias."""
    is_alias = i.opcode == "fusion" and "output_to_operand_aliasing={{}: (0, {})}" in i.attributes
    return i.opcode == "bitcast" or (is_alias and len(i.operands) == 1)


def view_source(name: str, body: Computation) -> str:
    """Returns the value that a chain of views starts from; the value itself if it is not a view."""
    return view_source(body[name].operands[0], body) if is_view(body[name]) else name


def called_by(fusion: HloInstruction) -> str:
    """Returns the name of the computation that a fused kernel runs."""
    name = fusion.attribute(r"calls=%?([^\s,}]+)")
    assert name is not None
    return name


def parameters(body: Computation) -> list[str]:
    """Returns the names of a computation's parameters, in order."""
    parameters = [i for i in body.values() if i.opcode == "parameter"]
    return [i.name for i in sorted(parameters, key=lambda i: int(i.attribute(r"^\((\d+)\)") or 0))]
