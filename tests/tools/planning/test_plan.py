"""Oracles: sums over shards and layouts worked out apart from the compiler; a plan worked out by hand. The compiler is the TPU's
own; no TPU is needed.
"""

import dataclasses
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from flaxformer_lite.config.load import load_config
from flaxformer_lite.core.parallel.mesh import MeshConfig
from flaxformer_lite.core.parallel.sharding import MESH_AXES
from flaxformer_lite.tools.planning import plan as plan_module
from flaxformer_lite.tools.planning.plan import Plan, Step, make_plan, plan_as_json, plan_bucket, step_plan_in_words
from flaxformer_lite.tools.planning.program import read_program
from flaxformer_lite.training.throughput import Operations
from tests.support import needs
from tests.support.commands import Command
from tests.support.paths import ROOT

CONFIGS = sorted(path for path in (ROOT / "configs").glob("*.py") if path.stem != "__init__")


# The compiler ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled() -> dict[str, tuple[Plan, str]]:
    """Two plans, each with the text of its program: a decoder over eight chips in two axes, an encoder on one chip."""
    patch, texts = pytest.MonkeyPatch(), []
    patch.setattr(plan_module, "read_program", lambda text: texts.append(text) or read_program(text))
    jax.config.update("jax_optimization_level", "O1")  # compiles in a quarter of the time
    plans = [
        make_plan(
            load_config("configs/char_lm.py", ["--model.scan-unroll", "1"]), "v5e:2x2", MeshConfig(data=2, fsdp=2)
        ),
        make_plan(load_config("configs/tiny_mlm.py", ["--model.scan-unroll", "1"]), "v6e:1x1"),
    ]
    jax.config.update("jax_optimization_level", "UNKNOWN")
    patch.undo()
    return dict(zip(("char_lm", "tiny_mlm"), zip(plans, texts, strict=True), strict=True))


def padded_bytes(program: str) -> int:
    """Bytes of the program's arguments in their tiles, from the first line of its text."""
    header = re.search(r"entry_computation_layout=\{\((.*?)\)->", program.splitlines()[0])
    assert header is not None
    total, sizes = 0, {"f32": 4, "s32": 4, "u32": 4, "bf16": 2, "pred": 1}
    for dtype, dims, order, tile in re.findall(r"(\w+)\[([\d,]*)\]\{([\d,]*):T\(([\d,]+)\)", header.group(1)):
        shape, tiles = [int(n) for n in dims.split(",") if n], [int(n) for n in tile.split(",")]
        laid = [1] * len(tiles) + [shape[int(d)] for d in reversed(order.split(","))] if shape else [1] * len(tiles)
        laid[-len(tiles) :] = [-(-n // t) * t for n, t in zip(laid[-len(tiles) :], tiles, strict=True)]
        total += math.prod(laid) * sizes[dtype]
    return total


@pytest.mark.slow
@needs.libtpu
@pytest.mark.parametrize("name", ["char_lm", "tiny_mlm"])
def test_the_shards_are_exactly_the_arguments_of_the_program(compiled: dict[str, tuple[Plan, str]], name: str):
    plan, text = compiled[name]
    assert plan.compiled is not None
    assert plan.compiled.program.parameter_bytes == sum(plan.shard_bytes.values())
    assert plan.compiled.argument_bytes == padded_bytes(text)
    layers = load_config(f"configs/{name}.py").model
    assert layers.num_encoder_layers + layers.num_decoder_layers in plan.compiled.program.loops.values()


@pytest.mark.slow
@needs.libtpu
def test_parameters_are_cut_over_fsdp_and_summed_over_data(compiled: dict[str, tuple[Plan, str]]):
    plan, _ = compiled["char_lm"]
    one = compiled["tiny_mlm"][0]
    assert one.exchanges == [] and one.seconds["interconnect"] == 0
    gathered = [e for e in plan.exchanges if e.kind == "all-gather" and e.axes == "fsdp"]
    assert gathered and gathered[0].bytes > plan.shard_bytes["parameters"]
    summed = [e for e in plan.exchanges if e.kind in ("all-reduce", "reduce-scatter") and "data" in e.axes]
    assert sum(e.bytes for e in summed) >= plan.shard_bytes["parameters"] * 0.9
    assert (plan.rows, plan.source_length, plan.target_length) == (12, 0, 64)
    assert plan.fits and plan.bound in ("HBM", "interconnect")


@pytest.mark.slow
@needs.libtpu
def test_a_plan_in_words_and_as_json(compiled: dict[str, tuple[Plan, str]]):
    plan, _ = compiled["char_lm"]
    text, report = step_plan_in_words(plan), json.loads(json.dumps(plan_as_json(plan)))
    for word in ("fits", "by formula", "all-gather", "bound by", "https://"):
        assert word in text
    for name, length in (("char_lm", 64), ("tiny_mlm", 32)):
        reason = f"'splash' was not used, since {length} queries or keys are fewer than 256"
        picked = (f"attention is computed by plain JAX operations: {reason}",)
        assert compiled[name][0].attention == picked and picked[0] in step_plan_in_words(compiled[name][0])
    assert report["bound"] == plan.bound and report["compiled"]["needed_bytes"] == plan.compiled.needed_bytes


@pytest.mark.slow
@needs.libtpu
def test_the_kernels_work_takes_the_place_of_the_formulas():
    """By hand: forward two products, backward three and four; one block of 256 by 256, heads of 32 padded to 256."""
    options = ["--model.scan-unroll", "1", "--data.max-target-length", "256", "--data.bucket-lengths", "256"]
    config = load_config("configs/char_lm.py", options)
    plan, model = make_plan(config, "v6e:1x1"), config.model
    assert "'splash'" in plan.attention[0] and plan.fits
    heads = plan.rows * model.num_decoder_layers * model.num_heads
    assert plan.kernel_flops == (2 + 3 + 4) * 2 * heads * 256**3
    flops = plan.model_flops - plan.attention_flops + plan.kernel_flops
    assert plan.seconds["compute"] == pytest.approx(flops / 918e12)
    assert f"{plan.kernel_flops / 1e12:,.4f}" in step_plan_in_words(plan)


@pytest.mark.slow
@needs.libtpu
def test_a_step_that_does_not_fit_has_the_message_of_the_compiler():
    plan = make_plan(load_config("configs/llama_1b.py", ["--train.num-micro-batches", "1"]), "v5e:1x1")
    assert not plan.fits and plan.compiled is None and plan.refusal is not None and "memory" in plan.refusal
    assert plan.shard_bytes["parameters"] > 4e9 and plan.bound is None
    assert "does not fit" in step_plan_in_words(plan)


SLICES = {
    "bert_base": ("v5p:2x2x1", "data=4"),
    "gpt2_small": ("v5p:2x2x1", "data=4"),
    "llama_1b": ("v5p:2x2x2", "fsdp=4,tensor=2,data=1"),
    "modernbert_base": ("v5p:2x2x1", "data=4"),
    "t5_1_1_base": ("v5p:2x2x1", "fsdp=4,data=1"),
    "t5_1_1_small": ("v5e:2x2", "data=4"),
    "transformer_base_wmt14": ("v5e:2x2", "data=4"),
    "transformer_big_wmt14": ("v5e:2x2", "data=4"),
}
"""Slices for the configs that need more than one v5e chip."""


LONG_ROWS = (
    "--data.max-source-length 8192 --data.bucket-lengths 8192 --data.tokens-per-batch 8192 --data.rows-multiple 1"
)


@needs.libtpu
@pytest.mark.slow
def test_an_encoder_with_windows_trains_on_8192_tokens_on_one_small_chip():
    """The kernel never stores the scores, 12 heads x 8192 x 8192 of each layer: alone they would fill the chip three times."""
    plan = make_plan(load_config("modernbert_base", [*LONG_ROWS.split(), "--train.num-micro-batches", "1"]), "v5e:1x1")
    assert plan.fits and "'splash'" in step_plan_in_words(plan)


def as_options(mesh: str) -> list[str]:
    """Returns the options of a mesh such as `data=1,fsdp=4`."""
    return [f"--train.mesh.{axis}" for axis in mesh.split(",")]


@needs.libtpu
@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [path for path in CONFIGS if path.stem != "dates_before_1900"], ids=lambda path: path.stem
)
def test_every_config_compiles(path: Path):
    """For its smallest sensible slice, which it fits; with layers in a loop, which compiles several times faster.

    dates_before_1900 has the train step of quickstart.
    """
    topology, mesh = SLICES.get(path.stem, ("v5e:1x1", "data=1"))
    settings = [*as_options(mesh), "--model.scan-unroll", "1"]
    command = [sys.executable, "-m", "flaxformer_lite", "plan", f"configs/{path.name}", "--topology", topology]
    environment = os.environ | {"JAX_OPTIMIZATION_LEVEL": "O1"}
    done = subprocess.run(
        [*command, *settings, "--json"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["fits"], plan["refusal"]
    assert plan["compiled"]["program"]["parameter_bytes"] == sum(plan["shard_bytes"].values())


@needs.libtpu
@pytest.mark.slow
def test_two_slices_send_each_other_the_gradients_alone():
    """A device sends its part of them, in float32: divided over `fsdp`, and over `data` within the slice."""
    config = load_config("configs/char_lm.py", ["--model.scan-unroll", "1", "--data.rows-multiple", "8"])
    plan = make_plan(config, "v5e:2x2", MeshConfig(data=4, fsdp=2), num_slices=2)
    assert plan.fits and (plan.chips, plan.devices, plan.mesh["data"]) == (8, 8, 4)
    (sent,) = [e for e in plan.exchanges if e.axes == "between slices"]
    assert sent.kind == "all-reduce" and sent.bytes == pytest.approx(plan.shard_bytes["parameters"] / 2, rel=0.1)
    assert "2 slices of v5e:2x2: 8 chips" in step_plan_in_words(plan)


@needs.libtpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "mesh"),
    [
        ("v4:2x2x1", "data=4"),
        ("v5p:2x2x2", "fsdp=8,data=1"),
        ("tpu7x:2x2x1", "fsdp=8,data=1"),
        ("v5e:16x16", "data=256"),
    ],
)
def test_every_chip_and_a_whole_pod(topology: str, mesh: str):
    options = ["--model.scan-unroll", "1", "--data.rows-multiple", "256", *as_options(mesh)]
    plan = make_plan(load_config("configs/char_lm.py", options), topology)
    assert plan.compiled is not None and plan.fits
    assert plan.compiled.program.parameter_bytes == sum(plan.shard_bytes.values())
    assert plan.devices == (2 if topology.startswith("tpu7x") else 1) * plan.chips
    if plan.mesh["fsdp"] > 1:  # at once or shard by shard; the norms' parameters, which are not cut, are few
        kinds = ("all-gather", "collective-permute")
        gathered = sum(e.bytes for e in plan.exchanges if e.kind in kinds and e.axes == "fsdp")
        assert gathered >= 0.99 * plan.mesh["fsdp"] * plan.shard_bytes["parameters"]


@needs.libtpu
@pytest.mark.slow
def test_a_pmap_sums_the_gradient_once_a_step():
    """By hand, for two micro-batches: the sums are the gradient, as large as the parameters, the loss and the count of tokens."""
    options = ["--train.runner", "pmap", "--train.num-micro-batches", "2", "--data.rows-multiple", "8"]
    plan = make_plan(load_config("configs/char_lm.py", options), "v5e:2x2")
    assert plan.compiled is not None and plan.fits
    assert plan.compiled.program.parameter_bytes == sum(plan.shard_bytes.values())
    assert {(e.kind, e.axes) for e in plan.exchanges} == {("all-reduce", "data")}
    assert sum(e.bytes for e in plan.exchanges) == plan.shard_bytes["parameters"] + 2 * 4


@pytest.mark.parametrize(
    ("name", "rows", "lengths"),
    [
        ("char_lm", 12, (0, 64)),  # 768 positions a batch
        ("tiny_mlm", 32, (32, 0)),
        ("transformer_base_wmt14", 264, (96, 96)),  # 25,000 / 96 in eights: more than 192 × 128 or 96 × 256
        ("t5_1_1_base", 128, (512, 114)),
    ],
)
def test_the_batch_that_needs_most(name: str, rows: int, lengths: tuple[int, int]):
    bucket = plan_bucket(load_config(f"configs/{name}.py"))
    assert (bucket.rows, tuple(bucket.lengths)) == (rows, lengths)


# Errors ----------------------------------------------------------------------------------------------------------------


@needs.libtpu
def test_a_slice_that_training_would_refuse():
    """All numbers of rows are multiples of data.rows_multiple; the rows of this batch alone would divide."""
    config = load_config("configs/char_lm.py", ["--data.rows-multiple", "8", "--train.num-micro-batches", "4"])
    assert plan_bucket(config).rows % 16 == 0
    with pytest.raises(
        ValueError, match=r"rows_multiple is 8, which 4 devices with 4 micro-batches each do not divide"
    ):
        make_plan(config, "v5e:2x2")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("train.steps=0", "train.steps=0 belongs to no option: write --SETTING VALUE"),
        ("--topology v5e:2x2 --train.steps 0", "train.steps is 0: it must be at least 1"),
        ("--topology v5e:2x2 --devices 2", "--topology or --devices: give a slice"),
        ("--fit --memory lots", "--memory is 'lots': it must be a size such as 12GiB or 800MiB"),
        ("--fit --memory 0GiB", "--memory is '0GiB': it must be a size"),
        ("--memory 4GiB", "--memory is for --fit: add --fit, or leave --memory out"),
        ("--fit --devices 2", "--fit plans for this machine or for --topology: leave out --devices"),
        ("--fit --topology v9:1x1", "--topology is 'v9:1x1'"),
    ],
)
def test_a_mistake_is_one_line(options: str, says: str, command: Command):
    assert command.mistake("plan", "quickstart", *options.split()).startswith(f"error: {says}")


# A plan by hand --------------------------------------------------------------------------------------------------------

STEP = """HloModule step, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%all-reduce-scatter.1 (p: f32[500,1000]) -> f32[250,1000] {
  %p = f32[500,1000]{1,0:S(1)} parameter(0)
  %zero = s32[] constant(0)
  %whole = f32[500,1000]{1,0} all-reduce(%p), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%add
  ROOT %mine = f32[250,1000]{1,0:S(1)} dynamic-slice(%whole, %zero, %zero), dynamic_slice_sizes={250,1000}
}

%piece.1 (q: f32[500,1000]) -> f32[1000,1000] {
  %q = f32[500,1000]{1,0:S(1)} parameter(0)
  ROOT %part.1 = f32[1000,1000]{1,0:S(1)} all-gather(%q), channel_id=2, replica_groups={{0,2},{1,3}}, CHAIN
}

%piece.2 (r: f32[500,1000]) -> f32[1000,1000] {
  %r = f32[500,1000]{1,0:S(1)} parameter(0)
  ROOT %part.2 = f32[1000,1000]{1,0:S(1)} all-gather(%r), channel_id=2, replica_groups={{0,2},{1,3}}, CHAIN
}

%round (state: (s32[], f32[500,1000])) -> (s32[], f32[500,1000]) {
  %state = (s32[], f32[500,1000]{1,0:S(1)}) parameter(0)
  %i = s32[]{:S(6)} get-tuple-element(%state), index=0
  %v = f32[500,1000]{1,0:S(1)} get-tuple-element(%state), index=1
  %summed = f32[500,1000]{1,0:S(1)} all-reduce(%v), channel_id=3, replica_groups=[2,2]<=[4], to_apply=%add
  %one = s32[]{:S(6)} constant(1)
  %next = s32[]{:S(6)} add(%i, %one)
  ROOT %after = (s32[], f32[500,1000]{1,0:S(1)}) tuple(%next, %summed)
}

%goes_on (state.1: (s32[], f32[500,1000])) -> pred[] {
  %state.1 = (s32[], f32[500,1000]{1,0:S(1)}) parameter(0)
  %i.1 = s32[]{:S(6)} get-tuple-element(%state.1), index=0
  %three = s32[]{:S(6)} constant(3)
  ROOT %less = pred[]{:S(6)} compare(%i.1, %three), direction=LT
}

ENTRY %main (x: f32[500,1000], w: f32[1000,3000]) -> f32[500,3000] {
  %x = f32[500,1000]{1,0} parameter(0)
  %w = f32[1000,3000]{1,0} parameter(1)
  %y = f32[500,3000]{1,0:S(1)} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %c = f32[500,1000]{1,0:S(1)} copy(%x)
  %two = f32[1000,1000]{1,0:S(1)} all-gather(%c), channel_id=4, replica_groups={{0,1},{2,3}}, dimensions={0}
  %four = f32[2000,1000]{1,0:S(1)} all-gather(%c), channel_id=5, replica_groups={{0,1,2,3}}, dimensions={0}
  %reduced = f32[500,1000]{1,0:S(1)} all-reduce(%c), channel_id=6, replica_groups={{0,2},{1,3}}, to_apply=%add
  %quarter = f32[125,1000]{1,0:S(1)} reduce-scatter(%c), channel_id=7, replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=%add
  %half = f32[250,1000]{1,0:S(1)} fusion(%c), kind=kCustom, calls=%all-reduce-scatter.1
  %mixed = f32[500,1000]{1,0:S(1)} all-to-all(%c), channel_id=8, replica_groups={{0,2},{1,3}}, dimensions={0}
  %turned = f32[500,1000]{1,0:S(1)} collective-permute(%c), channel_id=9, source_target_pairs={{0,1},{1,0},{2,3},{3,2}}
  %begun = f32[1000,1000]{1,0:S(1)} fusion(%c), kind=kCustom, calls=%piece.1
  %ended = f32[1000,1000]{1,0:S(1)} fusion(%c), kind=kCustom, calls=%piece.2
  %start = s32[]{:S(6)} constant(0)
  %first = (s32[], f32[500,1000]{1,0:S(1)}) tuple(%start, %c)
  %loop = (s32[], f32[500,1000]{1,0:S(1)}) while(%first), condition=%goes_on, body=%round
  ROOT %out = f32[500,3000]{1,0:S(1)} negate(%y)
}
""".replace("CHAIN", 'dimensions={0}, frontend_attributes={chain_id="0"}')
"""On four devices, `data` 2 and `fsdp` 2. Only the product and the copy touch HBM; the array that is sent has 2 MB."""


def planned_by_hand(topology: str, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Returns the plan of a step that compiles to that program, on chips in the order of their coordinates."""
    memory = {"argument_size_in_bytes": 5, "output_size_in_bytes": 3, "alias_size_in_bytes": 2}
    memory |= {"temp_size_in_bytes": 7, "generated_code_size_in_bytes": 11}
    compiled = SimpleNamespace(as_text=lambda: STEP, memory_analysis=lambda: SimpleNamespace(**memory))
    function = SimpleNamespace(lower=lambda: SimpleNamespace(compile=lambda: compiled))
    step = Step(function, (), {}, Operations(weights=12e9, attention=8e9))
    monkeypatch.setattr(plan_module, "planned_step", lambda *_: step)

    def in_order(config: MeshConfig, devices: Sequence[jax.Device]) -> Mesh:
        placed = sorted(devices, key=lambda device: device.coords)
        return Mesh(np.array(placed).reshape(config.shape(len(devices))), MESH_AXES)

    monkeypatch.setattr(plan_module, "make_mesh", in_order)
    config = load_config("configs/char_lm.py", ["--data.rows-multiple", "8"])
    return make_plan(config, topology, MeshConfig(fsdp=2))


@needs.libtpu
def test_a_plan_worked_out_by_hand(monkeypatch: pytest.MonkeyPatch):
    """v5e: 197 TFLOP/s, 819 GB/s of HBM, 50 GB/s a link; an axis of the mesh has one link, both together two."""
    plan = planned_by_hand("v5e:2x2", monkeypatch)
    assert plan.compiled is not None and plan.compiled.needed_bytes == 5 + (3 - 2) + 7 + 11
    assert plan.compiled.program.hbm_bytes == 2e6 + 12e6 + 2e6 and plan.model_flops == 20e9
    assert plan.seconds == pytest.approx({"compute": 5e9 / 197e12, "HBM": 16e6 / 819e9, "interconnect": 395e-6})
    found = {(e.kind, e.axes): (e.count, e.bytes, round(e.seconds * 1e6, 6)) for e in plan.exchanges}
    assert found == {
        ("all-gather", "fsdp"): (1, 4e6, 40),  # half of 4 MB over one link
        ("all-gather", "data"): (1, 4e6, 40),  # in two pieces, which are one, among kernels: hidden
        ("all-gather", "data+fsdp"): (1, 8e6, 60),  # three quarters of 8 MB over two links
        ("all-reduce", "data"): (1, 2e6, 40),  # half of 2 MB, twice
        ("all-reduce", "fsdp"): (3, 6e6, 120),  # the loop's, three times
        ("reduce-scatter", "data+fsdp"): (1, 2e6, 15),  # three quarters of 2 MB over two links
        ("reduce-scatter", "fsdp"): (1, 2e6, 20),  # written as an all-reduce of which each keeps its slice
        ("all-to-all", "data"): (1, 2e6, 20),
        ("collective-permute", "fsdp"): (1, 2e6, 40),
    }
    assert plan.bound == "interconnect" and [e.axes for e in plan.exchanges if e.hidden] == ["data"]
    assert plan.exposed_seconds == pytest.approx(355e-6) and plan.step_seconds == pytest.approx(395e-6)
    slower = dataclasses.replace(plan, seconds=plan.seconds | {"HBM": 100e-6})
    assert slower.step_seconds == pytest.approx(100e-6 + 355e-6)
    assert re.search(r"compute +0\.025\n", words := step_plan_in_words(plan)) and re.search(r"HBM +0\.020\n", words)


@needs.libtpu
def test_of_a_chip_that_is_two_devices_each_has_half(monkeypatch: pytest.MonkeyPatch):
    """tpu7x: 2307 TFLOP/s, 7380 GB/s and 192 GiB a chip."""
    plan = planned_by_hand("tpu7x:2x2x1", monkeypatch)
    assert (plan.chips, plan.devices, plan.hbm_bytes) == (4, 8, 96 * 2**30)
    assert plan.seconds["compute"] == pytest.approx(20e9 / 4 / 2307e12)
    assert plan.seconds["HBM"] == pytest.approx(16e6 * 2 / 7380e9)
