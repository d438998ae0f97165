"""What a step would need on a TPU slice that need not be there: the real step, compiled by the TPU's own compiler.

Three kinds of figures, and each says which it is: sums over the shards that a device would hold, what the compiler says or its
program shows, and times from those and from the published figures of the chip.
"""

import math
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.data.batch_plan import Bucket
from flaxformer_lite.data.config import batch_shapes
from flaxformer_lite.data.dataset import zero_batch
from flaxformer_lite.model.cache import LayerCache
from flaxformer_lite.model.kernels import report_choices
from flaxformer_lite.parallel.mesh import MeshConfig, check_rows, make_mesh
from flaxformer_lite.parallel.sharding import ROW_AXES, batch_sharding, replicated, within_mesh
from flaxformer_lite.planning.exchanges import Exchange, add_up
from flaxformer_lite.planning.flops import Operations, decoding_flops, training_flops
from flaxformer_lite.planning.program import Program, read_program
from flaxformer_lite.planning.topology import describe_slice
from flaxformer_lite.training.runners import MeshRunner, abstract_state
from flaxformer_lite.training.step import TrainTask

# The step --------------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A step to compile."""

    function: Any
    """Jitted."""
    arguments: tuple[Any, ...]
    parts: dict[str, Any]
    """The arguments, by what they are."""
    operations: Operations
    """By formula."""


def plan_bucket(config: Config) -> Bucket:
    """The shape of the batches that need most: of all buckets the one with the most positions."""
    buckets = batch_shapes(config.objective, config.data)
    return max(buckets, key=lambda bucket: (bucket.rows * sum(bucket.lengths), sum(bucket.lengths)))


def train_step(config: Config, mesh: Mesh, bucket: Bucket) -> Step:
    """The step that training would do."""
    runner = MeshRunner(TrainTask.of(config), mesh, train_shapes=1, eval_shapes=0)
    by_rows, state = batch_sharding(mesh), runner.abstract_state
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


def decode_step(config: Config, mesh: Mesh, bucket: Bucket) -> Step:
    """One token more for every row, with a cache that has room for the bucket's length.

    Raises: ValueError where the model has no decoder.
    """
    if config.model.num_decoder_layers == 0:
        raise ValueError("--decode is for models with a decoder, and model.num_decoder_layers is 0: leave it out")
    task = TrainTask.of(config)
    params = abstract_state(task, mesh).params
    rows, (source, room) = bucket.rows, bucket.lengths
    model = task.model

    def start(params: PyTree) -> LayerCache:
        bound, memory = model.bind({"params": params}), None
        if config.model.num_encoder_layers:
            memory = jnp.zeros((rows, source, config.model.d_model), jnp.dtype(config.model.dtype))
        return bound.start_cache(memory, room, rows)

    def sharded(x: Any) -> Any:
        heads = "tensor" if x.shape[3] % mesh.shape["tensor"] == 0 else None
        sharding = NamedSharding(mesh, PartitionSpec(None, ROW_AXES, None, heads, None))
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    def step(params: PyTree, tokens: Any, index: Any, cache: LayerCache) -> Any:
        with within_mesh(mesh):
            return model.bind({"params": params}).decode_step(tokens, index, cache)

    cache = jax.tree.map(sharded, jax.eval_shape(start, params))
    tokens = jax.ShapeDtypeStruct((rows, 1), jnp.int32, sharding=batch_sharding(mesh))
    index = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated(mesh))
    out = (batch_sharding(mesh), jax.tree.map(lambda x: x.sharding, cache))
    # An encoder's parameters are not used by this step, but they are there.
    function = jax.jit(step, donate_argnums=3, keep_unused=True, out_shardings=out)
    parts = {"parameters": params, "cache": cache, "batch": (tokens, index)}
    return Step(function, (params, tokens, index, cache), parts, decoding_flops(config.model, params, bucket))


# What comes back -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """What the compiler says of one device's part of the step, and what its program shows."""

    argument_bytes: int
    """With the padding of its layouts."""
    output_bytes: int
    alias_bytes: int
    """Of the outputs those that take the place of arguments."""
    temporary_bytes: int
    code_bytes: int
    flops_once: float
    """By its cost analysis, which counts what is in a loop once."""
    flops: float
    """Of the matrix products in its program, loops multiplied; kernels are not in it."""
    kernels: int
    """Calls of kernels, such as attention's, whose products are not told."""
    hbm_bytes: float
    """Read and written, by its program, loops multiplied."""
    loops: dict[str, int | None]
    """Trips of each loop; None: unknown, counted once."""
    parameter_bytes: float
    """Of the arrays that its program takes, without padding."""

    @property
    def needed_bytes(self) -> int:
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temporary_bytes + self.code_bytes


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Bytes are those of one device."""

    topology: str
    chips: int
    devices: int
    mesh: dict[str, int]
    step: str
    rows: int
    source_length: int
    target_length: int
    shard_bytes: dict[str, int]
    """Arguments by what they are: their shards, summed."""
    hbm_bytes: int
    """What a device has, as published."""
    fits: bool
    refusal: str | None
    """The compiler's word where the step does not fit; nothing below is known then."""
    model_flops: float
    """By formula, of all devices, masked queries and keys included."""
    attention_flops: float
    """Of these the queries' with keys and values."""
    attention: tuple[str, ...]
    """What computes attention, and why."""
    compiled: Compilation | None
    kernel_flops: float
    """What the program's kernels do, which it does not tell, by formula, of all devices: attention's, where there are kernels."""
    exchanges: list[Exchange]
    compute_seconds: float | None
    """Of the products in the program, and of `kernel_flops`."""
    kernel_seconds: float | None
    """What of these is of `kernel_flops`, and so by formula."""
    memory_seconds: float | None
    interconnect_seconds: float | None
    sources: tuple[str, ...]

    @property
    def seconds(self) -> dict[str, float]:
        """At least that long for each of three things."""
        times = (self.compute_seconds, self.memory_seconds, self.interconnect_seconds)
        return {name: t for name, t in zip(("compute", "HBM", "interconnect"), times, strict=True) if t is not None}

    @property
    def bound(self) -> str | None:
        """What takes longest."""
        return max(self.seconds, key=self.seconds.__getitem__) if self.seconds else None


def make_plan(config: Config, topology: str, mesh_config: MeshConfig | None = None, *, decode: bool = False) -> Plan:
    """Compiles the step for the slice. Raises: ValueError for what cannot be."""
    if config.train.runner == "pmap" and not decode:
        raise ValueError(
            "train.runner is 'pmap', whose program plan does not know: set train.runner to 'mesh' to plan that of a mesh, which "
            "over data alone keeps as much on each device"
        )
    slice_ = describe_slice(topology)
    mesh = make_mesh(mesh_config or config.train.mesh, slice_.devices)
    bucket = plan_bucket(config)
    check_rows(config.data.rows_multiple, mesh, 1 if decode else config.train.num_micro_batches)
    step = (decode_step if decode else train_step)(config, mesh, bucket)
    per_chip, chip = slice_.devices_per_chip, slice_.chip
    choices: list[str] = []
    with report_choices(choices.append):
        compiled, program, refusal = compile_step(step)
    exchanges = [] if program is None else add_up(program, mesh, slice_)
    kernel_flops = step.operations.attention if program is not None and program.kernels else 0.0
    kernel_seconds = kernel_flops / slice_.chips / chip.flops
    return Plan(
        topology=topology,
        chips=slice_.chips,
        devices=len(slice_.devices),
        mesh=dict(mesh.shape),
        step="decode" if decode else "train",
        rows=bucket.rows,
        source_length=bucket.lengths.source if config.model.num_encoder_layers else 0,
        target_length=bucket.lengths.target if config.model.num_decoder_layers else 0,
        shard_bytes={name: shard_bytes(tree) for name, tree in step.parts.items()},
        hbm_bytes=chip.hbm_bytes // per_chip,
        fits=compiled is not None and compiled.needed_bytes <= chip.hbm_bytes // per_chip,
        refusal=refusal,
        model_flops=sum(step.operations),
        attention_flops=step.operations.attention,
        attention=tuple(choices),
        compiled=compiled,
        kernel_flops=kernel_flops,
        exchanges=exchanges,
        compute_seconds=None if program is None else program.flops * per_chip / chip.flops + kernel_seconds,
        kernel_seconds=None if program is None else kernel_seconds,
        memory_seconds=None if program is None else program.hbm_bytes * per_chip / chip.hbm_bandwidth,
        interconnect_seconds=None if program is None else sum(exchange.seconds for exchange in exchanges),
        sources=chip.source,
    )


def shard_bytes(tree: Any) -> int:
    """Bytes of the shards that one device holds."""
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in leaves)


def compile_step(step: Step) -> tuple[Compilation | None, Program | None, str | None]:
    """What the compiler says, and its program; or why the step does not fit."""
    lowered = step.function.lower(*step.arguments)
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        found = re.search(r"Ran out of memory[^\n]*", str(error))
        if found is None:
            raise
        return None, None, found.group()
    memory, cost, program = compiled.memory_analysis(), compiled.cost_analysis(), read_program(compiled.as_text())
    compilation = Compilation(
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        alias_bytes=memory.alias_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        code_bytes=memory.generated_code_size_in_bytes,
        flops_once=cost["flops"],
        flops=program.flops,
        kernels=program.kernels,
        hbm_bytes=program.hbm_bytes,
        loops=program.loops,
        parameter_bytes=program.parameter_bytes,
    )
    return compilation, program, None
