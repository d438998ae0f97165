"""Laws of many devices: every mesh is one device, a pmap is one device with micro-batches, and memory is really divided."""

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jaxtyping import PyTree

from flaxformer_lite.core.base.tree_paths import leaf_path
from flaxformer_lite.core.model import (
    DotProduct,
    DropoutRates,
    EmbeddingProjection,
    Inputs,
    LoRA,
    ModelConfig,
    NoPositions,
    Pooler,
    Residual,
    RMSNorm,
    Rotary,
    Transformer,
)
from flaxformer_lite.core.model.attention import Disentangled
from flaxformer_lite.core.objectives import Batch, CausalLM, Classification
from flaxformer_lite.core.optim.optimizers import SGD, Adafactor, AdamW, Algorithm, Lion, Muon, OptimizerConfig
from flaxformer_lite.core.optim.schedules import Constant
from flaxformer_lite.core.parallel.mesh import MeshConfig, make_mesh
from flaxformer_lite.core.runners import MeshRunner, PmapRunner, Runner, abstract_state
from flaxformer_lite.core.step import TrainTask
from flaxformer_lite.tools.planning.hlo_parser import parse_program
from flaxformer_lite.tools.planning.program import read_program
from flaxformer_lite.workdir.checkpoints import Checkpoints, Retention
from tests.support.small_models import NO_DROPOUT

MESHES = {
    "data 8": MeshConfig(),
    "fsdp 8": MeshConfig(data=1, fsdp=8),
    "tensor 4, data 2": MeshConfig(tensor=4),
    "fsdp 2, tensor 2, data 2": MeshConfig(fsdp=2, tensor=2),
}
RATE = 0.1
MODEL = ModelConfig(
    vocab_size=24,
    d_model=16,
    num_heads=4,
    d_ff=32,
    num_encoder_layers=0,
    num_decoder_layers=2,
    # Key biases have no gradient but rounding noise, which Adam would blow up to full steps: none here.
    attention=DotProduct(bias=False),
    activation="swiglu",
    dropout=DropoutRates(embedding_rate=RATE, attention_rate=RATE, feed_forward_rate=RATE, residual_rate=RATE),
)
ROWS, LENGTH, STEPS = 16, 7, 20
ADAMW = AdamW()


@functools.cache
def task(*, dropout: bool = True, num_micro_batches: int = 1, algorithm: Algorithm = ADAMW) -> TrainTask:
    optimizer = OptimizerConfig(algorithm=algorithm, schedule=Constant(peak_rate=1e-2), weight_decay=0.01)
    return TrainTask(
        model=Transformer(MODEL if dropout else dataclasses.replace(MODEL, dropout=NO_DROPOUT)),
        objective=CausalLM(),
        optimizer=optimizer.build(total_steps=STEPS, d_model=MODEL.d_model),
        seed=0,
        num_micro_batches=num_micro_batches,
        ema_decay=0.9,
    )


def batches() -> list[Batch]:
    """Rows of different lengths, so that a mean of means would differ from the mean over tokens."""
    generator = np.random.default_rng(0)
    made = []
    for _ in range(STEPS):
        tokens = generator.integers(4, MODEL.vocab_size, (ROWS, LENGTH + 1)).astype(np.int32)
        shown = np.arange(LENGTH) < generator.integers(1, LENGTH + 1, (ROWS, 1))
        inputs = Inputs(target_tokens=tokens[:, :-1], target_mask=shown)
        made.append(Batch(inputs, tokens[:, 1:], shown.astype(np.float32)))
    return made


def rows_of(runner: Runner, batch: Batch) -> Batch:
    """The rows of a batch that `shard_batch` takes."""
    return jax.tree.map(lambda x: x[runner.local_rows(ROWS)], batch)


def losses(runner: Runner) -> list[float]:
    state, found = runner.init(), []
    for batch in batches():
        state, measured = runner.train_step(state, runner.shard_batch(rows_of(runner, batch)))
        found.append(float(measured["loss"]))
    return found


def on_mesh(task: TrainTask, config: MeshConfig) -> Runner:
    return MeshRunner(task, make_mesh(config))


@functools.cache
def one_device_losses(dropout: bool, num_micro_batches: int = 1) -> list[float]:
    mesh = make_mesh(devices=jax.devices()[:1])
    chosen = task(dropout=dropout, num_micro_batches=num_micro_batches)
    return losses(MeshRunner(chosen, mesh))


# Numbers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", MESHES)
def test_every_mesh_is_one_device(name: str):
    """Law, dropout everywhere: 20 steps have the losses of one device; and they fall, so that there is something to agree on."""
    found = losses(on_mesh(task(), MESHES[name]))
    np.testing.assert_allclose(found, one_device_losses(dropout=True), rtol=2e-5)
    assert found[-1] < found[0] - 0.1


NARROW = EmbeddingProjection(width=8)
ENCODER = {"num_encoder_layers": 2, "num_decoder_layers": 0, "head": None, "pooler": Pooler(num_classes=3)}
PARTS: dict[str, dict[str, Any]] = {
    "branches": {"residual": Residual(branches="parallel"), "positions": Rotary(fraction=0.5)},
    "shared layers, narrow tokens": {
        "share_layers": True,
        "embedding_projection": dataclasses.replace(NARROW, of="tokens"),
        "attention": DotProduct(bias=False, qk_norm=RMSNorm(), qk_norm_width="all_heads"),
    },
    "disentangled, narrow sum": {
        **ENCODER,
        "embedding_projection": NARROW,
        "positions": NoPositions(),
        "attention": Disentangled(max_distance=8, num_buckets=8),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_the_parts_of_other_families_are_one_device(name: str):
    """With adapters everywhere, each divided as the kernel beside it."""
    model = dataclasses.replace(MODEL, **PARTS[name], dropout=NO_DROPOUT, lora=LoRA(rank=4, targets=("*",)))
    objective: Any = CausalLM() if model.num_decoder_layers else Classification(classes=("a", "b", "c"))
    chosen = dataclasses.replace(task(), model=Transformer(model), objective=objective, ema_decay=None)

    def found(runner: Runner) -> list[float]:
        state, measured = runner.init(), []
        for batch in batches()[:3]:
            if model.num_encoder_layers:
                inputs = Inputs(source_tokens=batch.inputs.target_tokens, source_mask=batch.inputs.target_mask)
                batch = Batch(inputs, batch.targets[:, :1] % 3, np.ones((ROWS, 1), np.float32))
            state, terms = runner.train_step(state, runner.shard_batch(rows_of(runner, batch)))
            measured.append(float(terms["loss"]))
        return measured

    one = found(MeshRunner(chosen, make_mesh(devices=jax.devices()[:1])))
    np.testing.assert_allclose(found(on_mesh(chosen, MESHES["fsdp 2, tensor 2, data 2"])), one, rtol=2e-5)
    assert one[-1] != one[0]


@pytest.mark.slow
def test_a_pmap_is_one_device_with_micro_batches():
    """Law, dropout everywhere: 8 devices have the losses of 8 micro-batches on one; in the program all sum the gradient of all
    parameters, and say nothing else to each other."""
    runner = PmapRunner(task(), make_mesh())
    np.testing.assert_allclose(losses(runner), one_device_losses(dropout=True, num_micro_batches=8), rtol=2e-5)
    batch = runner.shard_batch(rows_of(runner, batches()[0]))
    program = runner.compiled_train_step.lower(runner.abstract_state, batch).compile()
    text = program.as_text()
    assert "num_partitions=8" in text
    sums = read_program(text).collectives
    assert {(one.kind, one.groups) for one in sums} == {("all-reduce", (tuple(range(8)),))}
    assert sum(one.bytes for one in sums) >= size_of(runner.abstract_state.params)
    assert program.memory_analysis().alias_size_in_bytes == size_of(runner.abstract_state)


@pytest.mark.slow
def test_without_dropout_micro_batches_of_many_devices_are_one_device():
    """Law: micro-batches on a mesh and in a pmap have the losses of one device, since the noise of dropout is not of theirs."""
    cut = task(dropout=False, num_micro_batches=2)
    found = [losses(on_mesh(cut, MESHES["fsdp 2, tensor 2, data 2"])), losses(PmapRunner(cut, make_mesh()))]
    np.testing.assert_allclose(found, [one_device_losses(dropout=False)] * len(found), rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [Adafactor(min_size_to_factor=8), Muon(), Lion(), SGD(momentum=0.9)])
def test_every_optimizer_on_a_mesh_is_one_device(algorithm: Algorithm):
    """Law, dropout on: with each optimizer's state cut as the parameters are."""
    chosen = task(algorithm=algorithm)
    one = MeshRunner(chosen, make_mesh(devices=jax.devices()[:1]))
    many = on_mesh(chosen, MESHES["fsdp 2, tensor 2, data 2"])
    np.testing.assert_allclose(losses(many), losses(one), rtol=1e-4)


@pytest.mark.slow
def test_evaluation_is_the_same_everywhere():
    """Law: sums and counts over all rows, of one device, of a mesh and of a pmap."""
    found = []
    params = jax.jit(task().initialize)().params
    for runner in (
        MeshRunner(task(), make_mesh(devices=jax.devices()[:1])),
        on_mesh(task(), MESHES["fsdp 2, tensor 2, data 2"]),
        PmapRunner(task(), make_mesh()),
    ):
        placed = jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), params, runner.abstract_state.params)
        terms = runner.eval_step(placed, runner.shard_batch(rows_of(runner, batches()[0])))
        found.append([float(x) for term in (terms["loss"], terms["accuracy"]) for x in term])
    np.testing.assert_allclose(found[1:], [found[0]] * 2, rtol=1e-5)


# Memory and communication ----------------------------------------------------------------------------------------------


def size_of(tree: PyTree) -> int:
    """Bytes on each device."""
    return sum(np.prod(x.sharding.shard_shape(x.shape), dtype=int) * x.dtype.itemsize for x in jax.tree.leaves(tree))


@functools.cache
def program(mesh: str) -> jax.stages.Compiled:
    runner = on_mesh(task(), MESHES[mesh])
    return runner.compiled_train_step.lower(runner.abstract_state, runner.shard_batch(batches()[0])).compile()


def gathered(text: str) -> list[tuple[tuple[int, ...], list[str]]]:
    """Shape of everything that the program gathers, and where in the source each operation comes from that reads it."""
    found = []
    for computation in parse_program(text)[0].values():
        for gather in computation.values():
            if gather.opcode in ("all-gather", "all-gather-done"):
                readers = [i for i in computation.values() if gather.name in i.operands]
                sources = [i.attribute(r'op_name="([^"]*)"') or i.name for i in readers]
                found += [(array.shape, sources) for array in gather.types]
    return found


@pytest.mark.slow
def test_fsdp_divides_parameters_and_optimizer_state():
    """From the compiled program: its arguments are 1/8 of the state (norms, biases: all) and the batch; the state is donated."""
    whole = abstract_state(task(), make_mesh(devices=jax.devices()[:1]))
    state = abstract_state(task(), make_mesh(MESHES["fsdp 8"]))
    small = sum(x.nbytes for x in jax.tree.leaves(small_ones(whole)))
    assert size_of(state) == small + (size_of(whole) - small) // 8
    assert small < 0.2 * size_of(whole)
    memory = program("fsdp 8").memory_analysis()
    batch = sum(x.nbytes for x in jax.tree.leaves(batches()[0])) // 8
    assert memory.argument_size_in_bytes == size_of(state) + batch
    assert memory.alias_size_in_bytes == size_of(state)


def small_ones(state: PyTree) -> PyTree:
    """Norms, biases, and counters."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return [
        jax.numpy.zeros(x.shape, x.dtype)
        for keys, x in leaves
        if re.search("scale$|bias$", leaf_path(keys)) or x.ndim == 0
    ]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["fsdp 8", "fsdp 2, tensor 2, data 2"])
def test_nothing_but_one_layer_is_gathered_at_a_time(mesh: str):
    """From the compiled program: all-gathers serve the model's products, forward and backward; no stack of layers is ever whole,
    and nothing of the optimizer is."""
    found = gathered(program(mesh).as_text())
    assert found
    for shape, sources in found:
        assert sources and all("jvp(" in source for source in sources), (shape, sources)
        assert len(shape) == 2 or shape[0] < MODEL.num_decoder_layers, (shape, sources)


# Checkpoints -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MESHES, "one device"])
def test_a_checkpoint_is_read_onto_any_mesh(tmp_path: Path, name: str):
    """Law: what lay over fsdp 8 comes back bit for bit over other meshes and on one device, cut as is usual there."""
    mesh = make_mesh(MESHES[name]) if name in MESHES else make_mesh(devices=jax.devices()[:1])
    target = abstract_state(task(), mesh)
    generator = np.random.default_rng(0)
    shapes = abstract_state(task(), make_mesh(MESHES["fsdp 8"]))
    values = jax.tree.map(lambda x: generator.normal(size=x.shape).astype(x.dtype), shapes)
    saved = jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), values, shapes)
    with Checkpoints(tmp_path, Retention(1, 0, None, "min")) as checkpoints:
        checkpoints.save(1, saved, {})
        _, state, _ = checkpoints.restore(target)
    jax.tree.map(np.testing.assert_array_equal, state, values)
    assert all(x.sharding == y.sharding for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(target), strict=True))
