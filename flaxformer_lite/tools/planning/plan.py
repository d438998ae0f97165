"""The memory, operations and time of a step on a TPU slice: the real step, compiled by the TPU's own compiler.

There are four kinds of figures, and each names its source: sums over the shards of one device, operations by formula, figures of
the compiler or counted in its program, and times computed from those and from the published figures of the chip.
"""

import re
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from flaxformer_lite.config import Config
from flaxformer_lite.core.data.batch_plan import Bucket, batch_shapes
from flaxformer_lite.core.data.dataset import zero_batch
from flaxformer_lite.core.model.kernels import report_choices
from flaxformer_lite.core.parallel.mesh import MeshConfig, check_rows, make_mesh
from flaxformer_lite.core.parallel.sharding import batch_sharding, shard_bytes
from flaxformer_lite.core.runners import make_runner
from flaxformer_lite.tools.planning.communication import Exchange, exchanges_of
from flaxformer_lite.tools.planning.program import Program, read_program
from flaxformer_lite.tools.planning.topology import describe_slice
from flaxformer_lite.training import train_task
from flaxformer_lite.training.throughput import Operations, training_flops

# The step --------------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    function: Any
    """Jitted."""
    arguments: tuple[Any, ...]
    parts: dict[str, Any]
    """The arguments, by role."""
    operations: Operations
    """Estimated by formula."""


def plan_bucket(config: Config) -> Bucket:
    """Returns the bucket with the most positions: its batches need the most memory."""
    buckets = batch_shapes(config.objective, config.data)
    return max(buckets, key=lambda bucket: (bucket.rows * sum(bucket.lengths), sum(bucket.lengths)))


def planned_step(config: Config, mesh: Mesh, bucket: Bucket) -> Step:
    """Returns the train step that training would run."""
    runner = make_runner(config.train.runner, train_task(config), mesh)
    by_rows = batch_sharding(runner.mesh)
    state = runner.abstract_state
    batch = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=by_rows), zero_batch(config.objective, bucket)
    )
    parts = {
        "parameters": state.params,
        "optimizer": (state.step, state.opt_state),
        "average": state.ema,
        "batch": batch,
    }
    return Step(runner.compiled_train_step, (state, batch), parts, training_flops(config.model, state.params, batch))


# The plan ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Figures of the compiler for one device's part of the step, in bytes."""

    argument_bytes: int
    """Arguments, with the padding of their layouts."""
    output_bytes: int
    alias_bytes: int
    """Outputs that reuse the memory of arguments."""
    temporary_bytes: int
    code_bytes: int

    @property
    def needed_bytes(self) -> int:
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temporary_bytes + self.code_bytes


@dataclass(frozen=True, kw_only=True)
class Compilation(Memory):
    """The same, and totals of the program."""

    program: Program


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of one step. Bytes are those of one device."""

    topology: str
    num_slices: int
    chips: int
    devices: int
    mesh: dict[str, int]
    batch_shapes: int
    """Number of the shapes of a batch; the shape with the most positions is planned."""
    rows: int
    source_length: int
    target_length: int
    shard_bytes: dict[str, int]
    """The shards of the arguments, summed, by role."""
    hbm_bytes: int
    """Memory of a device, as published."""
    fits: bool
    refusal: str | None
    """The compiler's message if the step does not fit; then nothing below is known."""
    model_flops: float
    """Operations of all devices, estimated by formula, masked queries and keys included."""
    attention_flops: float
    """The part of `model_flops` that is products of queries with keys and values."""
    kernel_flops: float | None
    """Operations of the attention kernels of all devices, counted in the program: calls, recomputed ones too, blocks that are not
    skipped, heads padded to the matrix units. None: not all attention is computed by them."""
    attention: tuple[str, ...]
    """The attention kernels in use, and why."""
    compiled: Compilation | None
    exchanges: list[Exchange]
    seconds: dict[str, float]
    """The least time of computing `model_flops`, with `kernel_flops` for `attention_flops`, of HBM traffic and of the interconnect;
    empty if the step does not fit."""
    sources: tuple[str, ...]

    @property
    def bound(self) -> str | None:
        """The slowest of the three."""
        return max(self.seconds, key=self.seconds.__getitem__) if self.seconds else None

    @property
    def exposed_seconds(self) -> float:
        """The least time of the exchanges during which the device computes nothing else."""
        return sum(exchange.seconds for exchange in self.exchanges if not exchange.hidden)

    @property
    def step_seconds(self) -> float | None:
        """The least time of the step: exchanges that are not hidden come after products and traffic, all others beside them."""
        if not self.seconds:
            return None
        return max(
            max(self.seconds["compute"], self.seconds["HBM"]) + self.exposed_seconds, self.seconds["interconnect"]
        )


def make_plan(config: Config, topology: str, mesh_config: MeshConfig | None = None, *, num_slices: int = 1) -> Plan:
    """Compiles the train step for the slice, or several. Raises: ValueError for a slice or mesh that cannot be planned."""
    slice_ = describe_slice(topology, num_slices)
    mesh = make_mesh(mesh_config or config.train.mesh, slice_.devices)
    bucket = plan_bucket(config)
    check_rows(*config.data.rows_divisor, mesh, config.train.num_micro_batches)
    step = planned_step(config, mesh, bucket)
    per_chip, chip = slice_.devices_per_chip, slice_.chip
    choices: list[str] = []
    with report_choices(choices.append):
        compiled, refusal = compile_step(step)
    exchanges, seconds, kernel_flops = [], {}, None
    if compiled is not None:
        if len(choices) == 1 and compiled.program.attention:
            kernel_flops = len(slice_.devices) * sum(a.flops(chip.matrix_unit) for a in compiled.program.attention)
        flops = step.operations.weights + (step.operations.attention if kernel_flops is None else kernel_flops)
        exchanges = exchanges_of(compiled.program, mesh, slice_)
        seconds = {
            "compute": flops / slice_.chips / chip.flops,
            "HBM": compiled.program.hbm_bytes * per_chip / chip.hbm_bandwidth,
            "interconnect": sum(exchange.seconds for exchange in exchanges),
        }
    return Plan(
        topology=topology,
        num_slices=num_slices,
        chips=slice_.chips,
        devices=len(slice_.devices),
        mesh=dict(mesh.shape),
        batch_shapes=len(batch_shapes(config.objective, config.data)),
        rows=bucket.rows,
        source_length=bucket.lengths.source if config.model.num_encoder_layers else 0,
        target_length=bucket.lengths.target if config.model.num_decoder_layers else 0,
        shard_bytes={name: shard_bytes(tree) for name, tree in step.parts.items()},
        hbm_bytes=chip.hbm_bytes // per_chip,
        fits=compiled is not None and compiled.needed_bytes <= chip.hbm_bytes // per_chip,
        refusal=refusal,
        model_flops=sum(step.operations),
        attention_flops=step.operations.attention,
        kernel_flops=kernel_flops,
        attention=tuple(choices),
        compiled=compiled,
        exchanges=exchanges,
        seconds=seconds,
        sources=chip.sources,
    )


def compile_step(step: Step) -> tuple[Compilation | None, str | None]:
    """Returns the compiler's figures, or its message if the step does not fit."""
    compiled, refusal = compiled_or_refused(step)
    if compiled is None:
        return None, refusal
    return Compilation(**vars(read_memory(compiled)), program=read_program(compiled.as_text())), None


def read_memory(compiled: Any) -> Memory:
    analysis = compiled.memory_analysis()
    return Memory(
        argument_bytes=analysis.argument_size_in_bytes,
        output_bytes=analysis.output_size_in_bytes,
        alias_bytes=analysis.alias_size_in_bytes,
        temporary_bytes=analysis.temp_size_in_bytes,
        code_bytes=analysis.generated_code_size_in_bytes,
    )


def compiled_or_refused(step: Step) -> tuple[Any, str | None]:
    """Returns the compiled step, or None and the compiler's message if it does not fit."""
    try:
        return step.function.lower(*step.arguments).compile(), None
    except jax.errors.JaxRuntimeError as error:
        match = re.search(r"Ran out of memory[^\n]*", str(error))
        if match is None:
            raise
        return None, match[0]


# A plan for a terminal, and as JSON -----------------------------------------------------------------------------------


def plan_as_json(plan: Plan) -> dict[str, object]:
    report = asdict(plan)
    if plan.compiled is not None:
        report["compiled"]["needed_bytes"] = plan.compiled.needed_bytes
    return report | {"bound": plan.bound, "step_seconds": plan.step_seconds}


def step_plan_in_words(plan: Plan) -> str:
    """Returns the plan for a terminal, every figure with its origin."""
    mesh = ", ".join(f"{axis} {size}" for axis, size in plan.mesh.items())
    lengths = " + ".join(str(n) for n in (plan.source_length, plan.target_length) if n)
    slices = f"{plan.num_slices} slices of " if plan.num_slices > 1 else ""
    lines = [
        f"train step on {slices}{plan.topology}: {plan.chips} chips, {plan.devices} devices; mesh {mesh}",
        f"{plan.rows} rows of {lengths}"
        + (f", of {plan.batch_shapes} batch shapes the one with the most positions" if plan.batch_shapes > 1 else ""),
        *plan.attention,
        "",
        "memory of a device" + " " * 27 + "MiB",
        *(f"  {name:<39} {mib(size)}" for name, size in plan.shard_bytes.items() if size),
        f"  {'these shards, summed':<39} {mib(sum(plan.shard_bytes.values()))}",
    ]
    compiled = plan.compiled
    if compiled is None:
        return "\n".join([*lines, f"  does not fit. The compiler: {plan.refusal}"])
    lines += [
        f"  {'the same with padding, by the compiler':<39} {mib(compiled.argument_bytes)}",
        f"  {'temporaries, by the compiler':<39} {mib(compiled.temporary_bytes)}",
        f"  {'outputs that reuse no argument':<39} {mib(compiled.output_bytes - compiled.alias_bytes)}",
        f"  {'program':<39} {mib(compiled.code_bytes)}",
        f"  {'needed, of ' + format(plan.hbm_bytes // 2**20, ',') + ' MiB':<39} {mib(compiled.needed_bytes)}",
        f"  {'fits' if plan.fits else 'does not fit'}",
        "",
        "operations of all devices" + " " * 20 + "TFLOP",
        f"  {'model, by formula':<39} {tera(plan.model_flops)}",
        f"  {'  of which queries with keys and values':<39} {tera(plan.attention_flops)}",
    ]
    if plan.kernel_flops is not None:
        lines.append(f"  {'these by the kernels, in the program':<39} {tera(plan.kernel_flops)}")
    if None in compiled.program.loops.values():
        lines.append("  the trip count of some loops is unknown: each counts as one pass")
    lines += ["", "data exchanged by a device, in the compiled program"]
    lines += [
        f"  {e.kind:<18} {e.axes:<16} {e.count:>6} times {mib(e.bytes)} MiB {e.seconds * 1e3:>10,.3f} ms"
        + ("  hidden" if e.hidden else "")
        for e in plan.exchanges
    ] or ["  nothing"]
    lines += ["", "least time, by published figures" + " " * 28 + "ms"]
    lines += [f"  {name:<51} {seconds * 1e3:>10,.3f}" for name, seconds in plan.seconds.items()]
    assert plan.step_seconds is not None
    lines += [
        f"bound by {plan.bound}; {plan.step_seconds * 1e3:,.3f} ms per step, of which {plan.exposed_seconds * 1e3:,.3f} are "
        "exchanges that nothing hides",
        f"figures of the chip: {', '.join(plan.sources)}",
    ]
    return "\n".join(lines)


def mib(size: float) -> str:
    return f"{size / 2**20:>10,.1f}"


def tera(flops: float) -> str:
    return f"{flops / 1e12:>10,.4f}"
