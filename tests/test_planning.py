"""Oracles: sums over shards and layouts worked out apart from the compiler; hand-worked programs, groups and links; the textbook
count of operations against the products in the compiled program. The compiler is the TPU's own; no TPU is needed.
"""

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from flaxformer_lite import planning
from flaxformer_lite.chips import CHIPS
from flaxformer_lite.collectives import replica_groups
from flaxformer_lite.commands.plan import as_json, in_words, parse_mesh
from flaxformer_lite.config import load_config
from flaxformer_lite.hlo import Collective, Window, read_program
from flaxformer_lite.hlo_text import array_types, parse_instruction
from flaxformer_lite.parallel import MeshConfig, make_mesh
from flaxformer_lite.planning import Plan, describe_slice, exchange_seconds, make_plan

ROOT = Path(__file__).parent.parent
CONFIGS = sorted(path for path in (ROOT / "configs").glob("*.py") if path.stem != "__init__")

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason='no TPU compiler here: pip install "flaxformer-lite[test]" on Linux',
)


# The compiler ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled() -> dict[str, tuple[Plan, str]]:
    """Two plans, each with the text of its program: a decoder over eight chips in two axes, an encoder on one chip."""
    patch, texts = pytest.MonkeyPatch(), []
    patch.setattr(planning, "read_program", lambda text: texts.append(text) or read_program(text))
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


@needs_libtpu
@pytest.mark.parametrize("name", ["char_lm", "tiny_mlm"])
def test_the_shards_are_exactly_what_the_program_takes(compiled: dict[str, tuple[Plan, str]], name: str):
    plan, text = compiled[name]
    assert plan.compiled is not None
    assert plan.compiled.parameter_bytes == sum(plan.shard_bytes.values())
    assert plan.compiled.argument_bytes == padded_bytes(text)


@needs_libtpu
@pytest.mark.parametrize("name", ["char_lm", "tiny_mlm"])
def test_products_in_the_program_are_those_of_the_formula(compiled: dict[str, tuple[Plan, str]], name: str):
    """Loops multiplied; what the cost analysis says, which takes a loop's body once, is far less."""
    plan, _ = compiled[name]
    assert plan.compiled is not None
    layers = load_config(f"configs/{name}.py").model
    assert layers.num_encoder_layers + layers.num_decoder_layers in plan.compiled.loops.values()
    assert plan.compiled.flops * plan.devices == pytest.approx(plan.model_flops, rel=0.05)
    assert plan.compiled.flops_once * plan.devices < 0.8 * plan.model_flops


@needs_libtpu
def test_parameters_are_cut_over_fsdp_and_summed_over_data(compiled: dict[str, tuple[Plan, str]]):
    plan, _ = compiled["char_lm"]
    whole = load_config("configs/char_lm.py")
    one = compiled["tiny_mlm"][0]
    assert one.exchanges == [] and one.interconnect_seconds == 0
    gathered = [e for e in plan.exchanges if e.kind == "all-gather" and e.axes == "fsdp"]
    assert gathered and gathered[0].bytes > plan.shard_bytes["parameters"]
    summed = [e for e in plan.exchanges if e.kind in ("all-reduce", "reduce-scatter") and "data" in e.axes]
    assert sum(e.bytes for e in summed) >= plan.shard_bytes["parameters"] * 0.9
    assert plan.rows == max(b.rows for b in [whole.data.bucket_of(whole.objective.full_row(whole.data.longest))])
    assert plan.fits and plan.bound in ("HBM", "interconnect")


@needs_libtpu
def test_a_plan_in_words_and_as_json(compiled: dict[str, tuple[Plan, str]]):
    plan, _ = compiled["char_lm"]
    text, report = in_words(plan), json.loads(json.dumps(as_json(plan)))
    for word in ("fits", "by formula", "loops counted once", "all-gather", "bound by", "https://"):
        assert word in text
    assert report["bound"] == plan.bound and report["compiled"]["needed_bytes"] == plan.compiled.needed_bytes


@needs_libtpu
def test_what_does_not_fit_is_said_by_the_compiler():
    plan = make_plan(load_config("configs/llama_1b.py", ["--train.micro-batches", "1"]), "v5e:1x1")
    assert not plan.fits and plan.compiled is None and plan.refusal is not None and "memory" in plan.refusal
    assert plan.shard_bytes["parameters"] > 4e9 and plan.bound is None
    assert "does not fit" in in_words(plan)


SLICES = {
    "bert_base": ("v5p:2x2x1", "data=4"),
    "gpt2_small": ("v5p:2x2x1", "data=4"),
    "llama_1b": ("v5p:2x2x2", "fsdp=4,tensor=2,data=1"),
    "t5_1_1_base": ("v5p:2x2x1", "fsdp=4,data=1"),
    "t5_1_1_small": ("v5e:2x2", "data=4"),
    "transformer_base_wmt14": ("v5e:2x2", "data=4"),
    "transformer_big_wmt14": ("v5e:2x2", "data=4"),
}
"""Where one v5e chip is too small."""


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_compiles(path: Path):
    """As it stands, for its smallest sensible slice, which it fits."""
    topology, mesh = SLICES.get(path.stem, ("v5e:1x1", "data=1"))
    command = [sys.executable, "-m", "flaxformer_lite", "plan", f"configs/{path.name}", "--topology", topology]
    environment = os.environ | {"JAX_OPTIMIZATION_LEVEL": "O1"}
    done = subprocess.run(
        [*command, "--mesh", mesh, "--json"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["fits"], plan["refusal"]
    assert plan["compiled"]["parameter_bytes"] == sum(plan["shard_bytes"].values())


@needs_libtpu
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
    config = load_config("configs/char_lm.py", ["--model.scan-unroll", "1", "--data.rows-multiple", "256"])
    plan = make_plan(config, topology, parse_mesh(mesh))
    assert plan.compiled is not None and plan.fits
    assert plan.compiled.parameter_bytes == sum(plan.shard_bytes.values())
    assert plan.devices == (2 if topology.startswith("tpu7x") else 1) * plan.chips
    if plan.mesh["fsdp"] > 1:  # at once or shard by shard; the norms' parameters, which are not cut, are few
        kinds = ("all-gather", "collective-permute")
        gathered = sum(e.bytes for e in plan.exchanges if e.kind in kinds and e.axes == "fsdp")
        assert gathered >= 0.99 * plan.mesh["fsdp"] * plan.shard_bytes["parameters"]


@needs_libtpu
@pytest.mark.slow
def test_a_decode_step_compiles():
    config = load_config("configs/quickstart.py", ["--model.scan-unroll", "1"])
    plan = make_plan(config, "v5e:2x2", MeshConfig(data=4), decode=True)
    assert plan.compiled is not None and plan.fits and "cache" in plan.shard_bytes
    assert plan.compiled.parameter_bytes == sum(plan.shard_bytes.values())
    assert plan.compiled.flops * plan.devices == pytest.approx(plan.model_flops, rel=0.1)


# Errors ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topology", "says"),
    [
        ("v9:2x2", "the chips are v4, v5e"),
        ("v5e", "give a chip and the sides"),
        ("v5e:2x2x2", "have 2 sides"),
        ("v5p:4x4", "have 3 sides"),
        ("v5e:32x32", "a pod of v5e has 256"),
    ],
)
def test_a_slice_that_cannot_be_is_refused(topology: str, says: str):
    with pytest.raises(ValueError, match=says):
        describe_slice(topology)


@needs_libtpu
def test_a_slice_that_the_compiler_refuses():
    with pytest.raises(ValueError, match=r"v5e:3x3.*does not know.*even"):
        describe_slice("v5e:3x3")


@needs_libtpu
def test_a_slice_that_training_would_refuse():
    """By what all numbers of rows are multiples of, though those of the batches planned here would divide."""
    config = load_config("configs/char_lm.py", ["--data.rows-multiple", "8", "--train.micro-batches", "4"])
    assert planning.plan_bucket(config).rows % 16 == 0
    with pytest.raises(
        ValueError, match=r"rows_multiple is 8, which 4 devices with 4 micro-batches each do not divide"
    ):
        make_plan(config, "v5e:2x2")


def test_without_the_compiler_the_way_to_it_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install .flaxformer-lite\[tpu\]"):
        describe_slice("v5e:2x2")


def test_a_mesh_is_read_or_refused():
    assert parse_mesh("fsdp=4,tensor=2") == MeshConfig(data=-1, fsdp=4, tensor=2)
    for wrong in ("fsdp", "model=2", "fsdp=4;tensor=2", ""):
        with pytest.raises(ValueError, match="give sizes of data, fsdp, tensor"):
            parse_mesh(wrong)


# Links -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chip", "shape", "group", "links"),
    [
        ("v5e", (4, 4), [(0, 0), (0, 1)], 1),
        ("v5e", (4, 4), [(0, j) for j in range(4)], 1),  # no ring below 16
        ("v5e", (16, 16), [(0, j) for j in range(16)], 2),
        ("v5e", (16, 16), [(i, j) for i in range(16) for j in range(16)], 4),
        ("v5e", (8, 16), [(i, j) for i in range(8) for j in range(16)], 3),
        ("v5p", (4, 4, 4), [(0, 0, k) for k in range(4)], 2),
        ("v5p", (2, 4, 4), [(0, 0, k) for k in range(4)], 1),  # no whole cube
    ],
)
def test_links_that_a_group_can_use(chip: str, shape: tuple[int, ...], group: list[tuple[int, ...]], links: int):
    figures = CHIPS[chip]
    assert figures.bandwidth(group, shape) == links * figures.link_bandwidth


def test_every_figure_has_a_source():
    for name, chip in CHIPS.items():
        assert chip.name == name and all("https://" in source for source in chip.source)


# Programs by hand ------------------------------------------------------------------------------------------------------

PROGRAM = """HloModule by_hand, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}

%take (p: f32[5,8,128], i: s32[]) -> f32[8,128] {
  %p = f32[5,8,128]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  %slice = f32[1,8,128]{2,1,0} dynamic-slice(%p, %i, %zero, %zero), dynamic_slice_sizes={1,8,128}
  ROOT %flat = f32[8,128]{1,0} bitcast(%slice)
}

%body (state: (s32[], f32[5,8,128], f32[8,128])) -> (s32[], f32[5,8,128], f32[8,128]) {
  %state = (s32[], f32[5,8,128]{2,1,0}, /*index=2*/f32[8,128]{1,0:T(8,128)S(1)}) parameter(0)
  %i.1 = s32[] get-tuple-element(%state), index=0
  %all = f32[5,8,128]{2,1,0} get-tuple-element(%state), index=1
  %x = f32[8,128]{1,0:T(8,128)S(1)} get-tuple-element(%state), index=2
  %w = f32[8,128]{1,0:T(8,128)S(1)} fusion(%all, %i.1), kind=kLoop, calls=%take
  %square = f32[8,8]{1,0:T(8,128)S(1)} convolution(%x, %w), dim_labels=bf_oi->bf
  %product = f32[8,8]{1,0:T(8,128)S(1)} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  %reduced = f32[8,8]{1,0:T(8,128)S(1)} all-reduce(%product), channel_id=1, replica_groups=[2,4]<=[4,2]T(1,0), to_apply=%sum
  %kernel = f32[8,128]{1,0:T(8,128)S(1)} custom-call(%x), custom_call_target="tpu_custom_call", metadata={
"a_note": "over several lines"
}}, backend_config={}
  %one = s32[] constant(1)
  %i.3 = s32[] add(%i.1, %one)
  ROOT %next = (s32[], f32[5,8,128]{2,1,0}, f32[8,128]{1,0:T(8,128)S(1)}) tuple(%i.3, %all, %x)
}

%goes_on (state: (s32[], f32[5,8,128], f32[8,128])) -> pred[] {
  %state.1 = (s32[], f32[5,8,128]{2,1,0}, f32[8,128]{1,0:T(8,128)S(1)}) parameter(0)
  %i.2 = s32[] get-tuple-element(%state.1), index=0
  %five = s32[] constant(5)
  ROOT %less = pred[] compare(%i.2, %five), direction=LT
}

ENTRY %main (w: f32[5,8,128], y: f32[8,128]) -> f32[8,128] {
  %w.1 = f32[5,8,128]{2,1,0} parameter(0)
  %y = f32[8,128]{1,0} parameter(1)
  %start = s32[] constant(0)
  %again = s32[]{:S(6)} copy(%start)
  %told = s32[] negate(%start)
  %first = (s32[], f32[5,8,128]{2,1,0}, f32[8,128]{1,0:T(8,128)S(1)}) tuple(%start, %w.1, %y)
  %loop = (s32[], f32[5,8,128]{2,1,0}, f32[8,128]{1,0:T(8,128)S(1)}) while(%first), condition=%goes_on, body=%body
  ROOT %out = f32[8,128]{1,0} add(%y, %y)
}
"""


def test_a_loop_counts_as_often_as_it_goes_round():
    """Of the weights a round reads its slice; what stays on the chip (S(1)) is no traffic."""
    program = read_program(PROGRAM)
    one_product, slice_bytes, array = 2 * 8 * 8 * 128, 4 * 8 * 128, 4 * 8 * 128
    assert program.loops == {"loop": 5} and program.flops == 5 * 2 * one_product and program.kernels == 5
    (reduced,) = program.collectives
    assert (reduced.kind, reduced.bytes, reduced.trips) == ("all-reduce", 4 * 64, 5)
    assert reduced.groups == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert program.hbm_bytes == pytest.approx(5 * (slice_bytes + 4) + 3 * array, abs=128)
    assert program.parameter_bytes == 4 * (5 * 8 * 128 + 8 * 128)


NESTED = """HloModule nested, is_scheduled=true

%row (all: f32[9,8,128], i: s32[]) -> f32[8,128] {
  %all = f32[9,8,128]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  %slice = f32[1,8,128]{2,1,0} dynamic-slice(%all, %i, %zero, %zero), dynamic_slice_sizes={1,8,128}
  ROOT %flat = f32[8,128]{1,0} bitcast(%slice)
}

%same (p: f32[9,8,128]) -> f32[9,8,128] {
  %p = f32[9,8,128]{2,1,0} parameter(0)
  ROOT %copy = f32[9,8,128]{2,1,0} copy(%p)
}

%put (all.1: f32[9,8,128], kept: f32[9,8,128], i.1: s32[], x: f32[8,128]) -> (f32[9,8,128], f32[8,128]) {
  %kept = f32[9,8,128]{2,1,0} parameter(1)
  %all.1 = f32[9,8,128]{2,1,0} parameter(0)
  %i.1 = s32[] parameter(2)
  %x = f32[8,128]{1,0} parameter(3)
  %zero.1 = s32[] constant(0)
  %mine = f32[8,128]{1,0} fusion(%all.1, %i.1), kind=kLoop, calls=%row
  %sum = f32[8,128]{1,0} add(%mine, %x)
  %new = f32[1,8,128]{2,1,0} bitcast(%sum)
  %place = f32[9,8,128]{2,1,0} fusion(%kept), kind=kLoop, output_to_operand_aliasing={{}: (0, {})}, calls=%same
  %updated = f32[9,8,128]{2,1,0} dynamic-update-slice(%place, %new, %i.1, %zero.1, %zero.1)
  ROOT %both = (f32[9,8,128]{2,1,0}, f32[8,128]{1,0}) tuple(%updated, %sum)
}

ENTRY %main (all.2: f32[9,8,128], kept.2: f32[9,8,128], i.2: s32[], x.2: f32[8,128]) -> (f32[9,8,128], f32[8,128]) {
  %all.2 = f32[9,8,128]{2,1,0} parameter(0)
  %kept.2 = f32[9,8,128]{2,1,0} parameter(1)
  %i.2 = s32[]{:S(6)} parameter(2)
  %x.2 = f32[8,128]{1,0} parameter(3)
  ROOT %out = (f32[9,8,128]{2,1,0}, f32[8,128]{1,0}) fusion(%all.2, %kept.2, %i.2, %x.2), kind=kOutput, calls=%put
}
"""


def test_kernels_within_a_kernel_read_and_write_their_slices():
    """By hand: read a slice and x, written an update and the sum; of the two stacks of nine nothing else."""
    array = 4 * 8 * 128
    assert read_program(NESTED).hbm_bytes == 4 * array
    read_whole = NESTED.replace(
        "ROOT %both", "%whole = f32[8,128]{1,0} reduce(%all.1, %zero.1), dimensions={0}, to_apply=%same\n  ROOT %both"
    )
    assert read_program(read_whole).hbm_bytes == (9 + 3) * array
    written_whole = NESTED.replace("dynamic-update-slice(%place, %new, %i.1, %zero.1, %zero.1)", "add(%place, %place)")
    assert read_program(written_whole).hbm_bytes == (2 * 9 + 3) * array


PARTS = """HloModule parts, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%multiplied (p: f32[256,256]) -> f32[256,256] {
  %p = f32[256,256]{1,0} parameter(0)
  ROOT %product = f32[256,256]{1,0} dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%negated (n: f32[256,256]) -> f32[256,256] {
  %n = f32[256,256]{1,0} parameter(0)
  ROOT %minus = f32[256,256]{1,0} negate(%n)
}

%kernel_0 (k: f32[256,256]) -> f32[256,256] {
  %k = f32[256,256]{1,0} parameter(0)
  ROOT %attended = f32[256,256]{1,0} custom-call(%k), custom_call_target="tpu_custom_call"
}

%scattered (s: f32[256,256]) -> f32[64,256] {
  %s = f32[256,256]{1,0} parameter(0)
  ROOT %rs = f32[64,256]{1,0} reduce-scatter(%s), replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=%add
}

%called_computation (c: f32[256,256], t: token[]) -> f32[1024,256] {
  %c = f32[256,256]{1,0} parameter(0)
  %t = token[] parameter(1)
  ROOT %ag = f32[1024,256]{1,0} all-gather(%c), channel_id=4, replica_groups={{0,1,2,3}}, dimensions={0}
}

%added (table: f32[4096,256], rows: s32[256], new: f32[256,256]) -> f32[4096,256] {
  %table = f32[4096,256]{1,0} parameter(0)
  %rows = s32[256]{0:S(1)} parameter(1)
  %new = f32[256,256]{1,0} parameter(2)
  ROOT %scatter = f32[4096,256]{1,0} scatter(%table, %rows, %new), update_window_dims={1}, to_apply=%add
}

%view (v: f32[256,256]) -> f32[256,256] {
  %v = f32[256,256]{1,0} parameter(0)
  ROOT %seen = f32[256,256]{1,0} bitcast(%v)
}

%squared (q: f32[256,256]) -> f32[256,256] {
  %q = f32[256,256]{1,0} parameter(0)
  %left = f32[256,256]{1,0} fusion(%q), kind=kLoop, calls=%view
  ROOT %square = f32[256,256]{1,0} dot(%left, %left), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%random (r: u32[4]) -> (u32[4], u32[256,256]) {
  %r = u32[4]{0:S(1)} parameter(0)
  ROOT %bits = (u32[4]{0:S(1)}, u32[256,256]{1,0}) rng-bit-generator(%r), algorithm=rng_default
}

ENTRY %main (x: f32[256,256], which: s32[], all: f32[4096,256], at: s32[256], key: u32[4]) -> f32[] {
  %x = f32[256,256]{1,0} parameter(0)
  %which = s32[]{:S(6)} parameter(1)
  %all = f32[4096,256]{1,0} parameter(2)
  %at = s32[256]{0:S(1)} parameter(3)
  %key = u32[4]{0:S(1)} parameter(4)
  BODY
}
"""
X, QUARTER, FOUR = "f32[256,256]{1,0}", "f32[64,256]{1,0}", "f32[1024,256]{1,0}"
EACH = "replica_groups={{0,1,2,3}}, dimensions={0}"


@pytest.mark.parametrize(
    ("body", "arrays"),
    [
        (f"%y = {X} negate(%x)", 2),
        (f"%y = {FOUR} all-gather(%x), {EACH}", 5),
        (f"%y = ({X}, {FOUR}) all-gather-start(%x), {EACH}\n  %z = {FOUR} all-gather-done(%y)", 5),
        (
            f"%y = ({X}, {X}, u32[]{{:S(2)}}, u32[]{{:S(2)}}) collective-permute-start(%x), source_target_pairs={{{{0,1}}}}\n"
            f"  %z = {X} collective-permute-done(%y)",
            2,
        ),
        (f"%y = {X} all-reduce-start(%x), {EACH}, to_apply=%add\n  %z = {X} all-reduce-done(%y)", 2),
        (f"%y = {QUARTER} reduce-scatter(%x), {EACH}, to_apply=%add", 1.25),
        (
            f"%y = (({X}), {QUARTER}, u32[]) async-start(%x), calls=%scattered\n"
            f"  %z = {QUARTER} async-done(%y), calls=%scattered",
            1.25,
        ),
        (
            f"%y = (({X}, token[]), {FOUR}) call-start(%x, %key), to_apply=%called_computation\n"
            f"  %z = {FOUR} call-done(%y)",
            5,
        ),
        ("%y = f32[4096,256]{1,0} scatter(%all, %at, %x), update_window_dims={1}, to_apply=%add", 3),
        ("%y = f32[4096,256]{1,0} fusion(%all, %at, %x), kind=kCustom, calls=%added", 3),
        (f'%y = ({QUARTER}, s32[64,256]{{1,0}}) custom-call(%x), custom_call_target="TopK"', 1.5),
        (f'%y = {FOUR} custom-call(), custom_call_target="AllocateBuffer"', 0),
        (f"%y = {X} fusion(%x), kind=kOutput, calls=%squared", 2),
        ("%y = (u32[4]{0:S(1)}, u32[256,256]{1,0}) fusion(%key), kind=kCustom, calls=%random", 1),
    ],
)
def test_what_one_operation_reads_and_writes(body: str, arrays: float):
    """In arrays of 256 × 256, by hand: a scatter reads its updates, and the rows of the table that it changes and writes."""
    assert read_program(PARTS.replace("BODY", body)).hbm_bytes == arrays * 4 * 256**2


@pytest.mark.parametrize(
    ("branches", "flops", "kernels", "arrays"),
    [
        ("%negated, %negated", 0, 0, 2),
        ("%multiplied, %multiplied", 2 * 256**3, 0, 3),
        ("%negated, %multiplied", 2 * 256**3, 0, 3),
        ("%multiplied, %negated", 2 * 256**3, 0, 3),
        ("%kernel_0, %kernel_0", 0, 1, 2),
    ],
)
def test_of_a_conditional_the_dearer_branch_counts(branches: str, flops: int, kernels: int, arrays: int):
    body = f"%c = {X} conditional(%which, %x, %x), branch_computations={{{branches}}}"
    program = read_program(PARTS.replace("BODY", body))
    assert (program.flops, program.kernels, program.hbm_bytes) == (flops, kernels, arrays * 4 * 256**2)


def test_a_collective_that_another_core_does_counts():
    """As on tpu7x, where SparseCores gather parameters."""
    started = f"%y = (({X}, token[]), {FOUR}) call-start(%x, %key), to_apply=%called_computation"
    (gathered,) = read_program(PARTS.replace("BODY", started)).collectives
    assert gathered == Collective("all-gather", 4 * 4 * 256**2, ((0, 1, 2, 3),), 1)


@pytest.mark.parametrize(
    ("old", "new", "trips"),
    [
        ("%one = s32[] constant(1)", "%one = s32[] constant(2)", 3),  # 0, 2, 4
        ("%start = s32[] constant(0)", "%start = s32[] constant(2)", 3),
        ("direction=LT", "direction=NE", None),
        ("add(%i.1, %one)", "multiply(%i.1, %one)", None),
        ("tuple(%start, %w.1", "tuple(%told, %w.1", None),
        ("tuple(%start, %w.1", "tuple(%again, %w.1", 5),
        (
            "%first = (s32[]",
            "%first = (s32[], f32[5,8,128]{2,1,0}, f32[8,128]{1,0}) parameter(2)\n  %unused = (s32[]",
            None,
        ),
    ],
)
def test_trips_from_start_step_and_limit(old: str, new: str, trips: int | None):
    """A loop of unknown length counts once and is named."""
    program = read_program(PROGRAM.replace(old, new))
    assert program.loops == {"loop": trips} and program.kernels == (trips or 1)


@pytest.mark.parametrize(
    ("written", "groups"),
    [
        ("replica_groups={{0,2},{1,3}}", ((0, 2), (1, 3))),
        ("replica_groups=[2,2]<=[4]", ((0, 1), (2, 3))),
        ("replica_groups=[2,2]<=[2,2]T(1,0)", ((0, 2), (1, 3))),
        ("replica_groups=mesh['a'=2,'b'=2] {'a'}", ((0, 2), (1, 3))),
        ("replica_groups=mesh['a'=2,'b'=4] {'b':(2)2}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("replica_groups=mesh['a'=2,'b'=4] {'b':(1)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}", ((0, 2), (1, 3))),
        ("source_target_pairs={{0,1},{1,0}}", ((0, 1), (1, 0))),
    ],
)
def test_groups_in_every_way_of_writing(written: str, groups: tuple[tuple[int, ...], ...]):
    line = f"  %x = f32[8]{{0}} all-reduce(%y), channel_id=1, {written}, use_global_device_ids=true, to_apply=%sum"
    assert replica_groups(parse_instruction(line).attributes) == groups


def test_a_windows_pairs_are_those_of_a_slow_count():
    generator = np.random.default_rng(7)
    for _ in range(50):
        size, stride, pad, base, step, n_in, n_out = (int(n) for n in generator.integers(1, 6, 7))
        slow = 0
        for out in range(n_out):
            for k in range(size):
                place = out * stride + k * step - pad
                slow += place >= 0 and place % base == 0 and place // base < n_in
        assert Window(size, stride, pad, base, step).pairs(n_in, n_out) == slow


def test_types_of_tuples():
    types = array_types("(bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, /*index=1*/s32[], pred[3]{0})")
    assert [(t.dtype, t.shape, t.space, t.bytes) for t in types] == [
        ("bf16", (8, 128), 1, 2048), ("s32", (), 0, 4), ("pred", (3,), 0, 3)
    ]  # fmt: skip


@needs_libtpu
def test_the_least_time_of_an_exchange():
    """By hand: v5e has 50 GB/s a link, and a square of 2 × 2 chips one along each side."""
    square = describe_slice("v5e:2x2")
    mesh = make_mesh(MeshConfig(data=1, fsdp=4), square.devices)
    everyone = ((0, 1, 2, 3),)

    def seconds(kind: str, groups: tuple[tuple[int, ...], ...]) -> float:
        return exchange_seconds(Collective(kind, 1e9, groups, 1), groups, mesh, square)

    assert seconds("all-gather", everyone) == pytest.approx(0.75 / 100)
    assert seconds("all-reduce", everyone) == pytest.approx(1.5 / 100)
    assert seconds("collective-permute", ((0, 1), (1, 2), (2, 3), (3, 0))) == pytest.approx(1 / 100)
    assert seconds("collective-permute", ((0, 0), (1, 1))) == 0
