"""Laws of many devices: every mesh is one device, a pmap is one device with micro-batches, and memory is really divided."""

import dataclasses
import functools
import json
import re
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jaxtyping import PyTree

from flaxformer_lite.cli.main import main
from flaxformer_lite.config.train import TrainConfig
from flaxformer_lite.model.attention import DotProduct
from flaxformer_lite.model.config import DecoderSize, LanguageModelHead, ModelConfig, Pooler, check_heads
from flaxformer_lite.model.dropout import DropoutRates
from flaxformer_lite.model.inputs import Inputs
from flaxformer_lite.model.positions import Learned, RelativeBias
from flaxformer_lite.model.transformer import Transformer
from flaxformer_lite.objectives import Batch, CausalLM
from flaxformer_lite.optim.optimizers import SGD, Adafactor, AdamW, Algorithm, Lion, Muon, OptimizerConfig
from flaxformer_lite.optim.schedules import Constant
from flaxformer_lite.parallel.mesh import MeshConfig, check_rows, interleaved_rows, local_rows, make_mesh
from flaxformer_lite.parallel.sharding import leaf_path
from flaxformer_lite.planning.hlo_parser import parse
from flaxformer_lite.planning.program import read_program
from flaxformer_lite.training.runners import MeshRunner, PmapRunner, Runner, abstract_state
from flaxformer_lite.training.step import TrainTask, init_state
from flaxformer_lite.workdir.checkpoints import Checkpoints
from tests.support.experiments import tiny_config, write_config_file

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
NO_DROPOUT = DropoutRates(embedding_rate=0, attention_rate=0, feed_forward_rate=0, residual_rate=0)
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
    state, found = runner.init(batches()[0]), []
    for batch in batches():
        state, measured = runner.train_step(state, runner.shard_batch(rows_of(runner, batch)))
        found.append(float(measured["loss"]))
    return found


def on_mesh(task: TrainTask, config: MeshConfig) -> Runner:
    return MeshRunner(task, make_mesh(config), train_shapes=1, eval_shapes=1)


@functools.cache
def one_device_losses(dropout: bool, num_micro_batches: int = 1) -> list[float]:
    mesh = make_mesh(devices=jax.devices()[:1])
    chosen = task(dropout=dropout, num_micro_batches=num_micro_batches)
    return losses(MeshRunner(chosen, mesh, train_shapes=1, eval_shapes=0))


# Numbers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", MESHES.values(), ids=MESHES.keys())
def test_every_mesh_is_one_device(config: MeshConfig):
    """Law, dropout everywhere: 20 steps have the losses of one device; and they fall, so that there is something to agree on."""
    found = losses(on_mesh(task(), config))
    np.testing.assert_allclose(found, one_device_losses(dropout=True), rtol=2e-5)
    assert found[-1] < found[0] - 0.1


def test_a_pmap_is_one_device_with_micro_batches(monkeypatch: pytest.MonkeyPatch):
    """Law, dropout everywhere: 8 devices have the losses of 8 micro-batches on one; the program is a pmap's, in which all sum
    the gradient of all parameters, and say nothing else to each other."""
    pmap, mapped = jax.pmap, []
    monkeypatch.setattr(jax, "pmap", lambda *given, **options: mapped.append(pmap(*given, **options)) or mapped[-1])
    runner = PmapRunner(task(), make_mesh(), train_shapes=1, eval_shapes=1)
    step = runner.compiled_train_step
    assert any(step is one for one in mapped)
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
def test_without_dropout_all_ways_are_one_device():
    """Law: meshes, pmaps and micro-batches, also together, have the losses of one device."""
    plain, cut = task(dropout=False), task(dropout=False, num_micro_batches=2)
    found = [losses(on_mesh(plain, config)) for config in MESHES.values()]
    found.append(losses(on_mesh(cut, MESHES["fsdp 2, tensor 2, data 2"])))
    found += [losses(PmapRunner(t, make_mesh(), train_shapes=1, eval_shapes=0)) for t in (plain, cut)]
    found.append(one_device_losses(dropout=False, num_micro_batches=8))
    np.testing.assert_allclose(found, [one_device_losses(dropout=False)] * len(found), rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [Adafactor(min_size_to_factor=8), Muon(), Lion(), SGD(momentum=0.9)])
def test_every_optimizer_on_a_mesh_is_one_device(algorithm: Algorithm):
    """Law, dropout on: with each optimizer's state cut as the parameters are."""
    chosen = task(algorithm=algorithm)
    one = MeshRunner(chosen, make_mesh(devices=jax.devices()[:1]), train_shapes=1, eval_shapes=0)
    many = on_mesh(chosen, MESHES["fsdp 2, tensor 2, data 2"])
    np.testing.assert_allclose(losses(many), losses(one), rtol=1e-4)


def test_evaluation_is_the_same_everywhere():
    """Law: sums and counts over all rows, of one device, of a mesh and of a pmap."""
    found = []
    params = jax.jit(functools.partial(init_state, task()))(batches()[0]).params
    for runner in (
        MeshRunner(task(), make_mesh(devices=jax.devices()[:1]), train_shapes=0, eval_shapes=1),
        on_mesh(task(), MESHES["fsdp 2, tensor 2, data 2"]),
        PmapRunner(task(), make_mesh(), train_shapes=0, eval_shapes=1),
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
    for computation in parse(text)[0].values():
        for gather in computation.values():
            if gather.opcode in ("all-gather", "all-gather-done"):
                readers = [i for i in computation.values() if gather.name in i.operands]
                sources = [i.attribute(r'op_name="([^"]*)"') or i.name for i in readers]
                found += [(array.shape, sources) for array in gather.types]
    return found


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


@pytest.mark.parametrize("mesh", ["fsdp 8", "fsdp 2, tensor 2, data 2"])
def test_nothing_but_one_layer_is_gathered_at_a_time(mesh: str):
    """From the compiled program: all-gathers serve the model's products, forward and backward; no stack of layers is ever whole,
    and nothing of the optimizer is."""
    found = gathered(program(mesh).as_text())
    assert found
    for shape, sources in found:
        assert sources and all("jvp(" in source for source in sources), (shape, sources)
        assert len(shape) == 2 or shape[0] < MODEL.num_decoder_layers, (shape, sources)


# The table ---------------------------------------------------------------------------------------------------------------


BIG = ModelConfig(
    vocab_size=48,
    d_model=16,
    num_heads=4,
    d_ff=32,
    num_encoder_layers=2,
    num_decoder_layers=3,
    num_token_types=2,
    share_source_target=False,
    share_target_output=False,
    positions=Learned(max_positions=19),
    activation="geglu",
    head=LanguageModelHead(bias=True, transform="gelu"),
    pooler=Pooler(num_classes=3),
)


def shards(
    model: ModelConfig, algorithm: Algorithm, config: MeshConfig
) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """By path the whole and the local shape of everything in the state."""
    optimizer = OptimizerConfig(algorithm=algorithm, schedule=Constant(peak_rate=1e-2)).build(total_steps=9, d_model=16)
    state = abstract_state(
        TrainTask(Transformer(model), CausalLM(), optimizer, seed=0, ema_decay=0.9), make_mesh(config)
    )
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {leaf_path(keys): (x.shape, x.sharding.shard_shape(x.shape)) for keys, x in leaves}


def test_what_the_table_says_of_every_kind_of_parameter():
    """Oracle: by hand, over fsdp 2 and tensor 4."""
    found = {path: local for path, (_, local) in shards(BIG, AdamW(), MeshConfig(fsdp=2, tensor=4)).items()}
    expected = {
        "source_embedding/embedding": (12, 8),
        "target_embedding/embedding": (12, 8),
        "token_type_embedding/embedding": (2, 8),
        "encoder/positions/embedding": (19, 8),
        "encoder/layers/attention/query/kernel": (2, 8, 4),
        "encoder/layers/attention/query/bias": (2, 4),
        "decoder/layers/cross_attention/value/kernel": (3, 8, 4),
        "decoder/layers/cross_attention/out/kernel": (3, 4, 8),
        "decoder/layers/cross_attention/out/bias": (3, 16),
        "decoder/layers/feed_forward/up/kernel": (3, 8, 8),
        "decoder/layers/feed_forward/gate/kernel": (3, 8, 8),
        "decoder/layers/feed_forward/gate/bias": (3, 8),
        "decoder/layers/feed_forward/down/kernel": (3, 8, 8),
        "decoder/layers/feed_forward/down/bias": (3, 16),
        "decoder/layers/attention_pre_norm/scale": (3, 16),
        "head/transform/kernel": (8, 16),
        "head/kernel": (8, 12),
        "head/bias": (12,),
        "pooler/dense/kernel": (8, 16),
        "pooler/classes/kernel": (16, 3),
    }
    assert {path: found[f"params/{path}"] for path in expected} == expected
    assert {path: found[f"ema/{path}"] for path in expected} == expected
    for moment in ("mu", "nu"):
        assert {path: found[f"opt_state/1/{moment}/{path}"] for path in expected} == expected
    bias = shards(dataclasses.replace(BIG, positions=RelativeBias()), AdamW(), MeshConfig(fsdp=2, tensor=4))
    assert bias["params/encoder/position_bias/embedding"][1] == (32, 4)


@pytest.mark.parametrize("algorithm", [AdamW(), Adafactor(min_size_to_factor=4), Lion(), Muon(), SGD(momentum=0.9)])
def test_what_an_optimizer_keeps_lies_as_its_parameter_does(algorithm: Algorithm):
    """Law: every leaf that is as large as a parameter is cut as that one is; Adafactor's rows and columns in what is left of it."""
    found = shards(BIG, algorithm, MeshConfig(data=1, fsdp=2, tensor=4))
    parameters = {path.removeprefix("params/"): cut for path, cut in found.items() if path.startswith("params/")}
    kept = {path: cut for path, cut in found.items() if path.startswith("opt_state/")}
    same = 0
    for path, (whole, local) in kept.items():
        owner = next((name for name in parameters if name in path), None)
        if owner is not None and parameters[owner][0] == whole:
            assert local == parameters[owner][1], path
            same += 1
    assert same >= 5
    if isinstance(algorithm, Adafactor):
        name = "opt_state/1/decoder/layers/feed_forward/up/kernel"
        assert kept[f"{name}/0/v_row"] == ((3, 16), (3, 8)) and kept[f"{name}/0/v_col"] == ((3, 32), (3, 8))


def test_an_axis_that_does_not_divide_is_refused_by_name():
    odd = dataclasses.replace(MODEL, d_ff=30)
    with pytest.raises(
        ValueError,
        match=r"decoder/layers/feed_forward/down/kernel has shape \(2, 30, 16\), and train\.mesh\.tensor 4 does not divide its 30: "
        r"choose a divisor of 30 for train\.mesh\.tensor, or make model\.d_ff a multiple of 4",
    ):
        shards(odd, AdamW(), MeshConfig(tensor=4))
    assert shards(odd, AdamW(), MeshConfig(tensor=2))


def test_sizes_of_a_mesh():
    """Oracle: by hand."""
    assert MeshConfig(fsdp=2).shape(8) == (4, 2, 1)
    assert MeshConfig(data=2, fsdp=-1, tensor=2).shape(8) == (2, 2, 2)
    assert make_mesh().shape == {"data": 8, "fsdp": 1, "tensor": 1}
    with pytest.raises(ValueError, match=r"train\.mesh\.fsdp 3, train\.mesh\.tensor 1 do not make up 8 devices"):
        MeshConfig(fsdp=3).shape(8)
    with pytest.raises(ValueError, match=r"do not make up 8 devices"):
        MeshConfig(data=1, fsdp=2, tensor=2).shape(8)
    with pytest.raises(ValueError, match=r"train\.mesh\.data and train\.mesh\.fsdp are -1"):
        MeshConfig(fsdp=-1)
    with pytest.raises(ValueError, match=r"train\.mesh\.tensor is 0: it must be at least 1, or -1"):
        MeshConfig(tensor=0)
    with pytest.raises(ValueError, match=r"train\.runner 'pmap' copies the whole model"):
        TrainConfig(runner="pmap", mesh=MeshConfig(fsdp=2))


def test_rows_divide_over_what_divides_rows():
    check_rows(4, make_mesh(MeshConfig(tensor=2)))
    with pytest.raises(ValueError, match=r"rows_multiple is 4, which 8 devices do not divide: make it a multiple of 8"):
        check_rows(4, make_mesh())
    with pytest.raises(
        ValueError, match=r"which 4 devices with 2 micro-batches each do not divide: make it a multiple of 8"
    ):
        check_rows(4, make_mesh(MeshConfig(tensor=2)), num_micro_batches=2)


def test_heads_are_not_cut_apart():
    """4 heads of width 4 are a matrix of 16 columns, which 8 devices divide; where heads share keys, the keys' heads count."""
    eight = MeshConfig(tensor=8)
    with pytest.raises(ValueError, match=r"train\.mesh\.tensor is 8, which does not divide the 4 heads"):
        abstract_state(task(), make_mesh(eight))
    check_heads(MODEL, make_mesh(MeshConfig(tensor=4)))
    grouped = dataclasses.replace(MODEL, attention=DotProduct(bias=False, num_kv_heads=2))
    with pytest.raises(ValueError, match=r"does not divide the 2 key/value heads"):
        check_heads(grouped, make_mesh(MeshConfig(tensor=4)))
    with pytest.raises(ValueError, match=r"does not divide the 4 heads"):
        check_heads(dataclasses.replace(MODEL, num_heads=8, decoder=DecoderSize(num_heads=4)), make_mesh(eight))


def test_which_rows_a_device_of_a_pmap_has():
    """Oracle: by hand. 2 devices with 2 micro-batches: rows 0, 4 and 1, 5 on the first, 2, 6 and 3, 7 on the second."""
    line = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))
    assert interleaved_rows(line, 2, 8).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    assert local_rows(make_mesh(MeshConfig(tensor=4)), 6).tolist() == list(range(6))


# Checkpoints -----------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_read_onto_any_mesh(tmp_path: Path):
    """Law: what lay over fsdp 8 comes back bit for bit over other meshes and on one device, cut as is usual there."""
    generator = np.random.default_rng(0)
    shapes = abstract_state(task(), make_mesh(MESHES["fsdp 8"]))
    values = jax.tree.map(lambda x: generator.normal(size=x.shape).astype(x.dtype), shapes)
    saved = jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), values, shapes)
    with Checkpoints(tmp_path, keep_latest=1, keep_best=0, best_metric=None, best_mode="min") as checkpoints:
        checkpoints.save(1, saved, {})
        targets = [abstract_state(task(), make_mesh(config)) for config in MESHES.values()]
        for target in [*targets, abstract_state(task(), make_mesh(devices=jax.devices()[:1]))]:
            _, state, _ = checkpoints.restore(target)
            jax.tree.map(np.testing.assert_array_equal, state, values)
            assert all(
                x.sharding == y.sharding for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(target), strict=True)
            )


# What inspect prints -----------------------------------------------------------------------------------------------------


BIG_ENOUGH = dataclasses.replace(
    tiny_config().model, vocab_size=152, d_model=16, num_heads=4, d_ff=32, num_encoder_layers=1, num_decoder_layers=1
)


def test_inspect_shows_how_a_config_is_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """Oracle: by hand. 32 x 16 numbers of 4 bytes over fsdp 2 and tensor 2 are 512 bytes on each of any number of devices."""
    config = write_config_file(tmp_path / "tiny.json", dataclasses.replace(tiny_config(), model=BIG_ENOUGH))
    command = ["flaxformer-lite", "inspect", str(config), "--sharding", "--devices", "64", "--mesh", "fsdp=2,tensor=2"]
    monkeypatch.setattr(sys, "argv", command)
    main()
    printed = capsys.readouterr().out
    (row,) = re.findall(r"^params/decoder/layers/feed_forward/down/kernel .*", printed, re.MULTILINE)
    assert row.split()[1:] == ["(1,", "32,", "16)", "-,", "tensor,", "fsdp", "(1,", "16,", "8)", "512"]
    assert "mesh: data 16, fsdp 2, tensor 2" in printed and "activations B T D" in printed
    monkeypatch.setattr(sys, "argv", [*command, "--json"])
    main()
    report = json.loads(capsys.readouterr().out)
    parameters = [array for array in report["arrays"] if array["path"].startswith("params/")]
    assert report["bytes"]["parameters"][0] == sum(array["bytes_on_device"] for array in parameters)
    monkeypatch.setattr(sys, "argv", [*command[:4], "--mesh", "data=16,fsdp=2,tensor=2"])
    main()
    assert capsys.readouterr().out == printed, "as many devices as the mesh says"
    monkeypatch.setattr(sys, "argv", [*command[:-1], "tensor=3,data=1"])
    with pytest.raises(SystemExit):
        main()
    assert "do not make up 64 devices" in capsys.readouterr().err
