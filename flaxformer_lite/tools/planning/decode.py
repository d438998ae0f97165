"""The memory and the least time of a search on several devices: its prefill, the growth of its cache, and its steps.

The programs are those of `Search`, compiled by the TPU's own compiler: a prefill by two layers, and by all layers a step with the
cache at its full length. Figures of a step are about linear in the layers: those of a deep model come from one layer and from two.
Without a slice nothing is compiled, and memory is added up.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from flaxformer_lite.config import Config
from flaxformer_lite.core.model import Transformer
from flaxformer_lite.core.model.contexts import map_own
from flaxformer_lite.core.parallel import MeshConfig, make_mesh
from flaxformer_lite.core.parallel.sharding import (
    ACTIVATIONS,
    batch_sharding,
    replicated,
    shard_bytes,
)
from flaxformer_lite.core.placement.batches import ANSWERS_FACTOR, padded_length
from flaxformer_lite.core.placement.placement import Placement
from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.core.search.devices import USABLE, Workload, device_groups, divisors
from flaxformer_lite.core.search.generation import generation_settings
from flaxformer_lite.core.search.rows import Weights
from flaxformer_lite.core.search.search import SearchInputs, SearchSettings, laid_out, stages, step_layouts
from flaxformer_lite.tools.planning.communication import Exchange, exchanges_of, sum_collectives
from flaxformer_lite.tools.planning.plan import compiled_program, mib, read_memory
from flaxformer_lite.tools.planning.program import read_program
from flaxformer_lite.tools.planning.topology import LATENCY_SOURCE, Slice, describe_slice

DEEPEST = 32
"""The most layers of a step that are compiled as they are. From 1 and 2 layers the traffic of NLLB-200-3.3B is 3 % too low (a copy
on each chip) or 11 % too high (8 chips), that of llama_1b 21 % too high, in a third to two thirds of the minute or two."""
REFINEMENTS = 3
"""Plans of more rows: from each the number that fits is known better, as a part of the memory does not grow with rows."""
HOST_CHIPS = 8
"""The most chips of a host. A process answers on those of its own host."""
COMPILABLE = 0.975
"""The share of a chip's memory that the compiler gives to a program: 15.75 GiB of a v5e's 16 and 31.25 of a v6e's 32, as it says of
programs that do not fit."""

# The programs ---------------------------------------------------------------------------------------------------------


class SearchTask(NamedTuple):
    """A search, and the shapes and shardings of its arguments."""

    decoder: Decoder
    mesh: Mesh
    weights: Weights
    inputs: SearchInputs
    settings: SearchSettings


def search_task(config: Config, work: Workload, mesh: Mesh) -> SearchTask:
    """Returns the search of the largest batch on all groups of a mesh."""
    (model,), placement = work.models, Placement(mesh)
    member = Transformer(model, placement.tensor)
    decoder = Decoder(member, work.decode, config.objective.prompt_attention, placement)
    given = ({"params": work.parameters(model, mesh)},)
    copies = jax.eval_shape(
        placement.within(lambda variables: step_layouts(decoder.models, variables, work.decode.num_ids)), given
    )
    weights = Weights(
        given, laid_out(given, placed_shapes(copies, NamedSharding(mesh, PartitionSpec(*ACTIVATIONS["D V"]))))
    )
    inputs, settings = decoder.largest_inputs(work.decode.batch_tokens, [0] * work.longest)
    return SearchTask(decoder, mesh, weights, placed_shapes(inputs, batch_sharding(mesh), placement.groups), settings)


def placed_shapes(tree: object, sharding: NamedSharding, times: int = 1) -> Any:
    """Returns shapes of arrays with a sharding, for `times` times their rows."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((times * x.shape[0], *x.shape[1:]), x.dtype, sharding=sharding), tree
    )


def started(task: SearchTask) -> tuple[SearchInputs, Any]:
    """Returns the result of a prefill: rows are divided over the groups, and heads of the cache over the devices of a group."""
    start = functools.partial(task.decoder.search.start, settings=task.settings)
    inputs, state = jax.eval_shape(start, task.weights.given, task.inputs)
    by_rows, whole = batch_sharding(task.mesh), replicated(task.mesh)
    inputs, rest = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=by_rows if x.ndim else whole), (inputs, state)
    )
    return inputs, rest._replace(
        cache=placed_shapes(state.cache, NamedSharding(task.mesh, PartitionSpec(*ACTIVATIONS["B K S H"])))
    )


def at_length(task: SearchTask, inputs: SearchInputs, state: Any) -> list[Any]:
    """Returns the state whose cache has its full length, after that of the length before, if it grows."""
    search, most = task.decoder.search, task.settings.max_new_tokens

    def grown(capacity: int) -> PyTree:
        def slots(x: Any) -> Any:
            return jax.ShapeDtypeStruct((*x.shape[:-2], capacity, x.shape[-1]), x.dtype, sharding=x.sharding)

        return state._replace(cache=map_own(slots, state.cache))

    return [grown(search.capacity(inputs, task.settings, steps)) for steps in stages(most)[-2:]]


SearchFigures = dict[Any, Any]
"""Figures of a search on one device by name, and those of an `Exchange` by its kind, its axes, and whether it is hidden. `prefill`,
`growth` and `step`: the bytes that these need beside the weights."""
PARTS = {"prefill": "prefill", "growth": "growth of the cache", "step": "step"}
"""The programs of a search, in words."""


class Refused(Exception):
    """The compiler's message on a program that does not fit."""


def compile_beside(lowered: object, held: object) -> tuple[Any, float]:
    """Returns a compiled program, and the bytes that it needs beside the weights. Raises: Refused.

    held: all that is in memory when it starts, but for weights.
    """
    compiled, refusal = compiled_program(lowered)
    if compiled is None:
        raise Refused(refusal)
    arguments = read_program(compiled.as_text()).parameter_bytes
    return compiled, read_memory(compiled).needed_bytes - arguments + shard_bytes(held)


def prefill_bytes(task: SearchTask) -> float:
    """Returns the bytes that the compiler needs for a prefill, beside the weights and its result; more layers need no more."""
    lowered = task.decoder.search.start.lower(task.weights.given, task.inputs, settings=task.settings)
    return compile_beside(lowered, task.inputs)[1] - shard_bytes(started(task))


def step_figures(task: SearchTask, slice_: Slice) -> SearchFigures:
    """Returns the compiler's figures of the growth of the cache and of a step. Raises: Refused."""
    search, settings, (inputs, state), figures = task.decoder.search, task.settings, started(task), SearchFigures()
    *shorter, full = at_length(task, inputs, state)
    for short in shorter:
        capacity = search.capacity(inputs, settings, settings.max_new_tokens)
        _, figures["growth"] = compile_beside(search.grow.lower(short.cache, capacity=capacity), (inputs, short))
    most = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated(task.mesh))
    lowered = search.advance.lower(task.weights.laid_out, inputs, full, most, most, config=settings.config)
    compiled, figures["step"] = compile_beside(lowered, (inputs, full))
    step = read_program(compiled.as_text(), of_loop=True)
    figures |= {"cache": shard_bytes(full.cache), "HBM": step.hbm_bytes, "compute": compiled.cost_analysis()["flops"]}
    return figures | sum_collectives(step, task.mesh, slice_)


def added_figures(task: SearchTask) -> SearchFigures:
    """Returns the bytes that can be added up without a compiler; a step has room for 3 times its logits, as in `device_groups`."""
    decoder, beams = task.decoder, task.settings.config.beam_size
    *shorter, full = at_length(task, *started(task))
    logits = len(task.inputs.tokens) * beams * decoder.models[0].config.output_size * np.dtype(np.float32).itemsize
    figures = {"cache": shard_bytes(full.cache), "step": shard_bytes(full) + 3 * logits // task.mesh.size}
    return figures | ({"growth": shard_bytes((*shorter, full))} if shorter else {})


def figures_of(config: Config, work: Workload, mesh: Mesh, slice_: Slice | None, deepest: int) -> SearchFigures:
    """Returns the figures of a search, by a compiler if there is a slice. Raises: Refused."""
    task, layers = search_task(config, work, mesh), config.model.num_decoder_layers
    if slice_ is None:
        return added_figures(task)
    one, two = (search_task(config, of_depth(work, number), mesh) for number in (1, 2))
    prefill = {"prefill": prefill_bytes(two) + shard_bytes(started(task))}
    if layers <= deepest or two.decoder.models == task.decoder.models:
        return prefill | step_figures(task, slice_)
    first, second = step_figures(one, slice_), step_figures(two, slice_)
    more = {name: second.get(name, 0) - first.get(name, 0) for name in first | second}
    return prefill | {name: first.get(name, 0) + (layers - 1) * each for name, each in more.items()} | {"shallow": True}


def of_depth(work: Workload, layers: int) -> Workload:
    """Returns the same search by a model of `layers` layers, if all are alike and it has more."""
    (model,) = work.models
    window = model.sliding_window
    if (window is not None and window.layers is not None) or layers >= model.num_decoder_layers:
        return work
    encoder = min(layers, model.num_encoder_layers)
    return replace(work, models=(replace(model, num_encoder_layers=encoder, num_decoder_layers=layers),))


# The plan ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DecodePlan:
    """The plan of a search. Bytes are those of one device."""

    origin: str
    """The source of the figures of a step."""
    devices: int
    tensor: int
    """Devices of a group. The others answer rows of their own."""
    rows: int
    """Rows of a group."""
    beams: int
    source_length: int
    answer_length: int
    parameter_bytes: int
    head_bytes: int
    """The copy of the head's kernel that steps read."""
    cache_bytes: float
    """Keys and values at their full length, without padding."""
    needed: dict[str, float]
    """The bytes of the prefill, of the growth of the cache and of a step, with all weights; empty if the compiler refuses one."""
    limit_bytes: int
    """The memory that a search may have."""
    fits: bool
    refusal: str | None
    """The compiler's message, if it refuses a program; then no figure of a step is known."""
    largest_rows: int
    """Rows of a group that fit: no fewer, as memory beside weights grows at most in proportion to them."""
    batch_tokens: int
    """The setting of decode that gives these rows."""
    traffic_bytes: float
    """Bytes that a step reads from HBM and writes to it."""
    exchanges: list[Exchange]
    """Exchanges of a step."""
    seconds: dict[str, float]
    """The least time of a step's operations, HBM traffic and exchanges, and their latency; empty if nothing was compiled."""
    step_seconds: float | None
    """The least time of a step: exchanges come after the longer one of operations and traffic."""
    tokens_per_second: float | None
    """The most tokens of answers on all devices."""
    sources: tuple[str, ...]


def decode_plan(
    config: Config,
    topology: str | None = None,
    *,
    num_devices: int = 1,
    memory: int | None = None,
    mesh: MeshConfig | None = None,
    rows: int | None = None,
    source_length: int | None = None,
    weights_dtype: str = "float32",
    deepest: int = DEEPEST,
) -> DecodePlan:
    """Returns the plan of the largest batch of a search, on the groups of devices that `device_groups` chooses.

    topology: a slice of one host; None: `num_devices` of any kind with `memory` bytes each, for which nothing is compiled.
    rows: of a group; None: as many as `decode.batch_tokens` gives.
    source_length: tokens of a source or prompt; None: the most of the data; a prompt leaves room for its answer.

    Raises: ValueError for a slice, mesh or size that cannot be planned, or where no mesh has the memory.
    """
    slice_ = None if topology is None else host_slice(topology)
    devices = [jax.devices()[0]] * num_devices if slice_ is None else slice_.devices
    most = math.inf if slice_ is None else COMPILABLE * slice_.chip.hbm_bytes // slice_.devices_per_chip
    memory = int(min(most, memory or math.inf))
    work = workload(config, source_length, rows, weights_dtype)
    placement = device_groups(work, mesh, devices, memory)
    on = placement.mesh or make_mesh(MeshConfig(), devices)
    task, figures, refusal = search_task(config, work, on), SearchFigures(), None
    try:
        figures = figures_of(config, work, on, slice_, deepest)
    except Refused as error:
        refusal = str(error)
    weights = [shard_bytes(task.weights.given), shard_bytes([each.get("step") for each in task.weights.laid_out])]
    needed = {name: sum(weights) + float(figures[name]) for name in PARTS if name in figures}
    peak, limit = max(needed.values(), default=math.inf), int(USABLE * memory) if slice_ is None else memory
    rows, layers = len(task.inputs.tokens) // placement.groups, config.model.num_decoder_layers
    largest = max(0, int(rows * (limit - sum(weights)) / (peak - sum(weights))))
    largest -= largest % 8 if largest > 8 else 0
    exchanges = exchanges_of({key: x for key, x in figures.items() if isinstance(key, tuple)})
    seconds, step = dict[str, float](), None
    if slice_ is not None and refusal is None:
        chip, share, alone = slice_.chip, slice_.devices_per_chip, [e for e in exchanges if not e.hidden]
        seconds = {
            "compute": figures["compute"] * share / chip.flops,
            "HBM": figures["HBM"] * share / chip.hbm_bandwidth,
            "interconnect": sum(e.seconds for e in alone),
            "latency": sum(e.latency_seconds for e in alone),
        }
        step = max(seconds["compute"], seconds["HBM"]) + seconds["interconnect"] + seconds["latency"]
    compiled = "1 and 2" if "shallow" in figures else layers
    return DecodePlan(
        origin="arithmetic, not compiled"
        if slice_ is None
        else f"a step is compiled with {compiled} of {layers} layers",
        devices=len(devices),
        tensor=placement.tensor,
        rows=rows,
        beams=work.decode.beam_size,
        source_length=task.inputs.tokens.shape[1],
        answer_length=task.settings.max_new_tokens,
        parameter_bytes=weights[0],
        head_bytes=weights[1],
        cache_bytes=float(figures.get("cache", 0)),
        needed=needed,
        limit_bytes=limit,
        fits=peak <= limit,
        refusal=refusal,
        largest_rows=largest,
        batch_tokens=largest * row_tokens(work),
        traffic_bytes=float(figures.get("HBM", 0)),
        exchanges=exchanges,
        seconds=seconds,
        step_seconds=step,
        tokens_per_second=None if step is None else placement.groups * rows / step,
        sources=() if slice_ is None else (*slice_.chip.sources, LATENCY_SOURCE),
    )


def host_slice(topology: str) -> Slice:
    """Returns a slice of one host. Raises: ValueError for an impossible slice, or one of several hosts."""
    slice_ = describe_slice(topology)
    if slice_.chips > HOST_CHIPS:
        raise ValueError(
            f"--topology is {topology!r}, but a process answers on the chips of its own host, at most {HOST_CHIPS}: plan those, "
            f"such as {slice_.chip.name}:{'x'.join('2' * slice_.chip.dimensions)}"
        )
    return slice_


def workload(config: Config, source_length: int | None, rows: int | None, weights_dtype: str) -> Workload:
    """Returns the models and settings of a search, as `load` has them, for `rows` rows.

    Raises: ValueError for a size that is not positive.
    """
    for option, number in (("--rows", rows), ("--source-length", source_length)):
        if number is not None and number < 1:
            raise ValueError(f"{option} is {number}: it must be at least 1")
    decode, longest = config.decode, config.objective.longest_row(config.data.longest)
    length = longest.source
    if config.model.num_encoder_layers == 0:
        decode = generation_settings(decode, {})
        length = max(1, longest.target - (decode.max_new_tokens or 0))
    work = Workload((config.model.for_use,), decode, source_length or length, weights_dtype)
    return work if rows is None else replace(work, decode=replace(decode, batch_tokens=rows * row_tokens(work)))


def row_tokens(work: Workload) -> int:
    """Returns the tokens of decode.batch_tokens that a row takes, as `plan_batches` counts them."""
    length, positions = padded_length(work.longest), work.models[0].positions.max_positions
    answer = min(work.decode.max_length(length), positions or math.inf) * work.decode.beam_size
    return max(length, -(-int(answer) // ANSWERS_FACTOR))


def plans_of(config: Config, *, fit: bool, mesh: MeshConfig | None, **chosen: Any) -> list[DecodePlan]:
    """Returns one plan, or all of a search by `fit_decode`, which has no mesh; the others are arguments of `decode_plan`."""
    return [*fit_decode(config, **chosen)] if fit else [decode_plan(config, mesh=mesh, **chosen)]


def fit_decode(
    config: Config, topology: str | None = None, num_devices: int = 1, **chosen: Any
) -> Iterator[DecodePlan]:
    """Yields plans of ever more devices in a group until one fits, and then of more rows, as far as they fit.

    The arguments are those of `decode_plan`, without `mesh`.
    """
    devices = num_devices if topology is None else len(host_slice(topology).devices)
    work = workload(config, chosen.get("source_length"), chosen.get("rows"), chosen.get("weights_dtype", "float32"))
    for tensor in (n for n in divisors(devices) if n == 1 or not work.divided_by(n)):
        chosen |= {"topology": topology, "num_devices": num_devices, "mesh": MeshConfig(tensor=tensor)}
        yield (plan := decode_plan(config, **chosen))
        if plan.fits:
            break
    for _ in range(REFINEMENTS):
        if plan.largest_rows in (0, plan.rows):
            break
        yield (plan := decode_plan(config, **chosen | {"rows": plan.largest_rows}))


# For a terminal, and as JSON -------------------------------------------------------------------------------------------


def plan_in_words(plan: DecodePlan) -> str:
    """Returns the plan for a terminal, every figure with its origin."""
    memory = {
        "parameters": plan.parameter_bytes,
        "copy of the head for the steps": plan.head_bytes,
        "cache at its full length": plan.cache_bytes,
        **{f"needed for the {PARTS[name]}": size for name, size in plan.needed.items()},
        "it fits into" if plan.fits else "it does not fit into": plan.limit_bytes,
    }
    lines = [
        f"search on {plan.devices} devices: mesh data {plan.devices // plan.tensor}, tensor {plan.tensor}",
        f"{plan.rows} rows a group, each of {plan.source_length} + {plan.answer_length} tokens; beams: {plan.beams}",
        plan.origin,
        "",
        "memory of a device" + " " * 27 + "MiB",
        *(f"  {name:<39} {mib(size)}" for name, size in memory.items() if size),
    ]
    if plan.refusal is not None:
        lines.append(f"The compiler: {plan.refusal}")
    elif plan.largest_rows:
        beams = f" × {plan.beams} beams" if plan.beams > 1 else ""
        most = f"{plan.largest_rows:,} rows{beams} × {plan.answer_length} tokens"
        lines.append(f"at least {most} fit: decode.batch_tokens {plan.batch_tokens}")
    if not plan.fits:
        lines.append(
            "choose a larger --mesh.tensor, --weights-dtype bfloat16, fewer --rows, or shorter sources and answers"
        )
    if plan.step_seconds is None or plan.tokens_per_second is None:
        return "\n".join(lines)
    lines += ["", "data exchanged by a device in a step, in the compiled program"]
    lines += [
        f"  {e.kind:<18} {e.axes:<8} {e.count:>6} times {mib(e.bytes)} MiB {e.seconds * 1e3:>10,.3f} ms, and "
        f"{e.latency_seconds * 1e3:,.3f} of latency" + ("  hidden" if e.hidden else "")
        for e in plan.exchanges
    ] or ["  nothing"]
    lines += ["", "least time of a step, by published figures" + " " * 17 + "ms"]
    lines += [f"  {name:<51} {seconds * 1e3:>10,.3f}" for name, seconds in plan.seconds.items()]
    lines += [
        f"{plan.step_seconds * 1e3:,.3f} ms per step, with {mib(plan.traffic_bytes).strip()} MiB through HBM; "
        f"{plan.step_seconds * plan.answer_length:,.2f} s for the longest answer",
        f"at most {plan.tokens_per_second:,.0f} tokens a second on all devices",
        f"figures of the chip: {', '.join(plan.sources)}",
    ]
    return "\n".join(lines)
