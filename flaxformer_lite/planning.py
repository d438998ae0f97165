"""What a step would need on a TPU slice that need not be there: the real step, compiled by the TPU's own compiler.

Three kinds of figures, and each says which it is: sums over the shards that a device would hold, what the compiler says or its
program shows, and times from those and from the published figures of the chip.
"""

import importlib.util
import math
import os
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from flaxformer_lite.blocks import LayerCache
from flaxformer_lite.chips import CHIPS, Chip
from flaxformer_lite.config import Config
from flaxformer_lite.data.pipeline import blank_batch
from flaxformer_lite.data.plan import Bucket
from flaxformer_lite.hlo import Collective, Program, read_program
from flaxformer_lite.operations import Operations, decoding_flops, training_flops
from flaxformer_lite.parallel import MeshConfig, check_rows, make_mesh
from flaxformer_lite.sharding import ROWS, batch_sharding, replicated, within_mesh
from flaxformer_lite.training import Compiled, Task

# The slice -------------------------------------------------------------------------------------------------------------


class Slice(NamedTuple):
    """Some chips of one kind."""

    name: str
    chip: Chip
    shape: tuple[int, ...]
    devices: list[jax.Device]

    @property
    def chips(self) -> int:
        return math.prod(self.shape)

    @property
    def devices_per_chip(self) -> int:
        return len(self.devices) // self.chips


def describe_slice(name: str) -> Slice:
    """The slice that a name such as v5e:4x4 means. Raises: ValueError where there is no such slice, or no compiler for it."""
    kind, _, sizes = name.partition(":")
    if kind not in CHIPS or not re.fullmatch(r"\d+(x\d+)*", sizes):
        raise ValueError(
            f"--topology is {name!r}: give a chip and the sides of the slice, such as v5e:4x4 or v5p:4x4x4; the chips are "
            f"{', '.join(CHIPS)}"
        )
    chip, shape = CHIPS[kind], tuple(int(size) for size in sizes.split("x"))
    example = "x".join(["4"] * chip.dimensions)
    if len(shape) != chip.dimensions:
        raise ValueError(
            f"--topology is {name!r}, but slices of {kind} have {chip.dimensions} sides: give as many, such as {kind}:{example}"
        )
    if math.prod(shape) > chip.pod:
        raise ValueError(f"--topology is {name!r}, but a pod of {kind} has {chip.pod} chips: give fewer")
    if importlib.util.find_spec("libtpu") is None:
        raise ValueError('compiling for TPUs needs libtpu, on Linux: pip install "flaxformer-lite[tpu]"')
    settings: dict[str, Any] = {"chip_config_name": chip.config_name}
    if math.prod(shape) == 1:
        settings["chips_per_host_bounds"] = (1, 1, 1)
    # So that libtpu neither looks for TPUs nor minds other processes that use it; it reads this when it is loaded.
    os.environ |= {
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
    } | {"TPU_ACCELERATOR_TYPE": os.environ.get("TPU_ACCELERATOR_TYPE", "v5litepod-4")}
    try:
        devices = topologies.get_topology_desc(name, platform="tpu", **settings).devices
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(
            f"--topology is {name!r}, which the compiler does not know ({error}): give sides that are 1 in all, or even, such as "
            f"{kind}:{example}"
        ) from None
    return Slice(name, chip, shape, devices)


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
    full = config.objective.full_row(config.data.longest)
    buckets = config.data.buckets if full is None else [config.data.bucket_of(full)]
    return max(buckets, key=lambda bucket: (bucket.rows * sum(bucket.lengths), sum(bucket.lengths)))


def train_step(config: Config, mesh: Mesh, bucket: Bucket) -> Step:
    """The step that training would do."""
    compiled = Compiled.of(Task.of(config), mesh, train_shapes=1, eval_shapes=0)
    by_rows, state = batch_sharding(mesh), compiled.abstract_state
    batch = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=by_rows), blank_batch(config.objective, bucket)
    )
    parts = {
        "parameters": state.params,
        "optimizer": (state.step, state.opt_state),
        "average": state.ema,
        "batch": batch,
    }
    return Step(compiled.train, (state, batch), parts, training_flops(config.model, state.params, batch))


def decode_step(config: Config, mesh: Mesh, bucket: Bucket) -> Step:
    """One token more for every row, with a cache that has room for the bucket's length.

    Raises: ValueError where the model has no decoder.
    """
    if config.model.num_decoder_layers == 0:
        raise ValueError("--decode is for models with a decoder, and model.num_decoder_layers is 0: leave it out")
    task = Task.of(config)
    compiled = Compiled.of(task, mesh, train_shapes=1, eval_shapes=0)
    params = compiled.abstract_state.params
    rows, (source, room) = bucket.rows, bucket.lengths
    model = task.model

    def start(params: PyTree) -> LayerCache:
        bound, memory = model.bind({"params": params}), None
        if config.model.num_encoder_layers:
            memory = jnp.zeros((rows, source, config.model.d_model), jnp.dtype(config.model.dtype))
        return bound.start_cache(memory, room, rows)

    def sharded(x: Any) -> Any:
        heads = "tensor" if x.shape[3] % mesh.shape["tensor"] == 0 else None
        sharding = NamedSharding(mesh, PartitionSpec(None, ROWS, None, heads, None))
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
class Exchange:
    """All collectives of one kind over the same axes, in one step, of one device."""

    kind: str
    axes: str
    count: int
    bytes: float
    """Of the arrays: what one device puts in, or for an all-gather what it gets. From the compiled program."""
    seconds: float
    """At least, by the links' published bandwidth."""


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
    bytes_once: float
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
    compiled: Compilation | None
    exchanges: list[Exchange]
    compute_seconds: float | None
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
    slice_ = describe_slice(topology)
    mesh = make_mesh(mesh_config or config.train.mesh, slice_.devices)
    bucket = plan_bucket(config)
    check_rows(config.data.rows_multiple, mesh, 1 if decode else config.train.micro_batches)
    step = (decode_step if decode else train_step)(config, mesh, bucket)
    per_chip, chip = slice_.devices_per_chip, slice_.chip
    compiled, program, refusal = compile_step(step)
    exchanges = [] if program is None else add_up(program, mesh, slice_)
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
        compiled=compiled,
        exchanges=exchanges,
        compute_seconds=None if program is None else program.flops * per_chip / chip.flops,
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
        bytes_once=cost["bytes accessed"],
        flops=program.flops,
        kernels=program.kernels,
        hbm_bytes=program.hbm_bytes,
        loops=program.loops,
        parameter_bytes=program.parameter_bytes,
    )
    return compilation, program, None


def add_up(program: Program, mesh: Mesh, slice_: Slice) -> list[Exchange]:
    """The program's collectives by kind and axes, those that take longest first."""
    sums: dict[tuple[str, str], tuple[int, float, float]] = {}
    for collective in program.collectives:
        groups = collective.groups or (tuple(range(mesh.size)),)
        key = (collective.kind, axes_of(groups, mesh))
        seconds = exchange_seconds(collective, groups, mesh, slice_)
        count, total, time = sums.get(key, (0, 0.0, 0.0))
        trips = collective.trips
        sums[key] = (count + trips, total + trips * collective.bytes, time + trips * seconds)
    exchanges = [
        Exchange(kind=kind, axes=axes, count=count, bytes=total, seconds=seconds)
        for (kind, axes), (count, total, seconds) in sums.items()
    ]
    return sorted(exchanges, key=lambda exchange: -exchange.seconds)


def axes_of(groups: tuple[tuple[int, ...], ...], mesh: Mesh) -> str:
    """The axes of the mesh along which the devices of a group differ."""
    places = np.array([np.unravel_index(group, mesh.devices.shape) for group in groups if len(group) > 1])
    if not len(places):
        return "none"
    differ = (places != places[:, :, :1]).any(axis=(0, 2))
    return "+".join(axis for axis, differs in zip(mesh.axis_names, differ, strict=True) if differs) or "none"


def exchange_seconds(collective: Collective, groups: tuple[tuple[int, ...], ...], mesh: Mesh, slice_: Slice) -> float:
    """The least time that the links allow: each device sends its share of what the others lack.

    Permutations come in pairs that go opposite ways at once, so that they are given all links along their axes.
    """
    sent, slowest = 0.0, math.inf
    if collective.kind == "collective-permute":
        moving = tuple(group for group in groups if group[0] != group[1])
        groups = (neighbours(axes_of(moving, mesh), mesh),) if moving else ()
    for group in groups:
        n = len(group)
        if n == 1:
            continue
        share = 1.0 if collective.kind == "collective-permute" else (n - 1) / n
        sent = collective.bytes * share * (2 if collective.kind == "all-reduce" else 1)
        chips = {tuple(mesh.devices.flat[i].coords) for i in group}
        bandwidth = slice_.chip.bandwidth((chip[: len(slice_.shape)] for chip in chips), slice_.shape)
        slowest = min(slowest, bandwidth / slice_.devices_per_chip)
    return sent / slowest


def neighbours(axes: str, mesh: Mesh) -> tuple[int, ...]:
    """The devices that differ from the first along these axes only."""
    numbers = np.arange(mesh.size).reshape(mesh.devices.shape)
    chosen = numbers[tuple(slice(None) if axis in axes.split("+") else 0 for axis in mesh.axis_names)]
    return tuple(int(n) for n in chosen.ravel())
