"""Oracles: programs written by hand, and their bytes, trips and collectives counted by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask, splash_attention_mask_info

from flaxformer_lite.core.model.kernels import AttentionCall, SplashBlocks, splash
from flaxformer_lite.core.model.masks import MaskStructure
from flaxformer_lite.core.parallel.mesh import MeshConfig, make_mesh
from flaxformer_lite.core.parallel.sharding import batch_sharding, within_mesh
from flaxformer_lite.tools.planning.program import AttentionCost, Collective, read_program
from flaxformer_lite.tools.planning.topology import describe_slice
from tests.support import needs
from tests.support.hlo_parts import EACH, FOUR, PARTS, QUARTER, X

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


def test_the_body_of_a_loop_counts_once_for_each_trip():
    """A trip reads only its slice of the weights; memory on the chip (S(1)) is no traffic."""
    program = read_program(PROGRAM)
    slice_bytes = array = 4 * 8 * 128
    assert program.loops == {"loop": 5}
    (reduced,) = program.collectives
    assert (reduced.kind, reduced.bytes, reduced.trips) == ("all-reduce", 4 * 64, 5)
    assert reduced.groups == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert program.hbm_bytes == pytest.approx(5 * (slice_bytes + 4) + 3 * array, abs=128)
    assert program.parameter_bytes == 4 * (5 * 8 * 128 + 8 * 128)


@pytest.mark.parametrize(
    ("branches", "arrays"), [("%negated, %negated", 2), ("%negated, %multiplied", 3), ("%multiplied, %negated", 3)]
)
def test_of_a_conditional_the_dearer_branch_counts(branches: str, arrays: int):
    body = f"%c = {X} conditional(%which, %x, %x), branch_computations={{{branches}}}"
    assert read_program(PARTS.replace("BODY", body)).hbm_bytes == arrays * 4 * 256**2


def test_a_collective_that_another_core_does_counts():
    """As on tpu7x, where SparseCores gather parameters."""
    started = f"%y = (({X}, token[]), {FOUR}) call-start(%x, %key), to_apply=%called_computation"
    (gathered,) = read_program(PARTS.replace("BODY", started)).collectives
    assert gathered == Collective("all-gather", 4 * 4 * 256**2, ((0, 1, 2, 3),), 1)


STARTED = f"%s = ({X}, {FOUR}) all-gather-start(%x), {EACH}\n  "
DONE = f"%y = {FOUR} all-gather-done(%s)"
KERNEL, NOTE = f"%k = {X} fusion(%x), kind=kLoop, calls=%negated\n  ", f"%k = {X} bitcast(%x)\n  "
CHAIN = f'%y = {FOUR} all-gather(%x), {EACH}, frontend_attributes={{chain_id="3"}}'
ASIDE = f"%s = (({X}, token[]), {FOUR}) call-start(%x, %key), to_apply=%called_computation\n  "


@pytest.mark.parametrize(
    ("body", "hidden"),
    [
        (STARTED + KERNEL + DONE, True),
        (STARTED + NOTE + DONE, False),
        (KERNEL + STARTED + DONE + "\n  " + KERNEL.replace("%k", "%l"), False),
        (f"%y = {FOUR} all-gather(%x), {EACH}\n  " + KERNEL, False),
        (CHAIN, True),
        (ASIDE + KERNEL + f"%y = {FOUR} call-done(%s)", True),
        (ASIDE + f"%y = {FOUR} call-done(%s)", False),
    ],
)
def test_a_collective_is_hidden_if_a_kernel_runs_meanwhile(body: str, hidden: bool):
    """Between its two halves, or in the same chain of fused kernels; in order of the schedule."""
    (gathered,) = read_program(PARTS.replace("BODY", body)).collectives
    assert gathered.hidden is hidden


def test_what_goes_to_other_slices_counts_as_it_is_sent():
    """As the compiler writes it: the host sends, and the program of a slice has no groups of other slices."""
    says = '{_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}'
    sent = f"%y = ({X}, u32[], token[]) send(%x, %key), is_host_transfer=true, frontend_attributes={says}"
    assert read_program(PARTS.replace("BODY", sent)).collectives == [
        Collective("all-reduce", 4 * 256**2, (), 1, between_slices=True, hidden=True)
    ]


@pytest.mark.parametrize(
    ("old", "new", "trips"),
    [
        ("%one = s32[] constant(1)", "%one = s32[] constant(2)", 3),  # 0, 2, 4
        ("%start = s32[] constant(0)", "%start = s32[] constant(2)", 3),
        ("direction=LT", "direction=NE", None),
        ("add(%i.1, %one)", "multiply(%i.1, %one)", None),
        ("tuple(%start, %w.1", "tuple(%told, %w.1", None),
        ("tuple(%start, %w.1", "tuple(%again, %w.1", 5),
        ("%i.3 = s32[] add(%i.1, %one)", "%i.4 = s32[] add(%i.1, %one)\n  %i.3 = s32[] copy(%i.4)", 5),
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
    assert program.loops == {"loop": trips} and program.collectives[0].trips == (trips or 1)


# Attention -------------------------------------------------------------------------------------------------------------


def splash_call(kind: str, name: str, lengths: tuple[int, int], blocks: tuple[int, int]) -> str:
    """A call as the compiler writes it, over several lines: 2 rows, 6 heads of 24 on 3, values of 40."""
    (T, S), (of_queries, of_keys), suffix = lengths, blocks, "" if name == "fwd" else f"_{name}"
    arrays = [f"%q = bf16[2,6,{T},24] bitcast(%x)", f"%k = bf16[2,3,{S},24] bitcast(%x)"]
    arrays += [f"%v = bf16[2,3,{S},40] bitcast(%x)", "%next = s8[1,2,2] bitcast(%x)"]
    sizes = rf"\"block_q{suffix}\": {of_queries}, \"block_kv{suffix}\": {of_keys}, \"block_kv_compute\": 8"
    note = f'"xprof_metadata":"{{{sizes}}}"\n}}}}'
    op = f'metadata={{op_name="jit(f)/attention.attend/splash_{kind}/shard_map/pallas_call"}}'
    call = f"%splash_mha_{name}_residuals.1 = bf16[2,6,{T},40] custom-call(%next, %q, %k, %v)"
    return "\n  ".join([*arrays, f"{call}, frontend_attributes={{kernel_metadata={{"]) + f"\n{note}, {op}"


@pytest.mark.parametrize("lengths", [(1024, 1024), (768, 768), (256, 640)])
@pytest.mark.parametrize("blocks", [(128, 128), (256, 128), (128, 256)])
@pytest.mark.parametrize(
    "kind", ["causal", "every_key", "window_1", "window_130", "window_300", "around_1", "around_130"]
)
def test_the_blocks_that_splash_computes(kind: str, lengths: tuple[int, int], blocks: tuple[int, int]):
    """Oracle: the blocks that JAX's own kernel does not skip."""
    if any(length % block for length, block in zip(lengths, blocks, strict=True)):
        pytest.skip("the kernel has whole blocks")
    masks, window = splash_attention_mask, int(kind.rpartition("_")[2]) if kind[-1].isdigit() else 0
    mask = {"causal": masks.CausalMask, "every_key": masks.FullMask}.get(
        kind, lambda shape: masks.LocalMask(shape, (window - 1, window - 1 if "around" in kind else 0), 0)
    )(lengths)
    info, _ = splash_attention_mask_info.process_mask(
        masks.MultiHeadMask([mask]), blocks, head_shards=1, q_seq_shards=1
    )
    everything = np.ones((lengths[0] // blocks[0], lengths[1] // blocks[1]))
    computed = np.count_nonzero(everything if info.block_mask is None else info.block_mask)
    (found,) = read_program(PARTS.replace("BODY", splash_call(kind, "fwd", lengths, blocks))).attention
    assert found.pairs == 2 * 6 * computed * blocks[0] * blocks[1]


@pytest.mark.parametrize(("name", "lanes"), [("fwd", 2), ("dq", 3), ("dkv", 4)])
def test_the_products_of_a_call_of_splash(name: str, lanes: int):
    """By hand: all heads of 24 and 40 are padded to 128, or to 256; one block in 4 is skipped."""
    (call,) = read_program(PARTS.replace("BODY", splash_call("causal", name, (256, 256), (128, 128)))).attention
    assert call.pairs == 2 * 6 * 3 * 128 * 128 and call.trips == 1
    assert [call.flops(unit) for unit in (128, 256)] == [2 * call.pairs * lanes * unit for unit in (128, 256)]
    assert sorted(call.widths) == {"fwd": [24, 40], "dq": [24, 24, 40], "dkv": [24, 24, 40, 40]}[name]


@needs.libtpu
@pytest.mark.parametrize(
    ("window", "blocks", "pairs", "products"),
    [
        (None, SplashBlocks(), 3 * 384**2, (2, 3, 4)),  # of two blocks by two one is skipped
        pytest.param(100, SplashBlocks(), 3 * 384**2, (2, 3, 4), marks=pytest.mark.slow),
        (None, SplashBlocks(queries=128, keys=256, fused_backward=True), (1 + 1 + 2 + 2 + 3 + 3) * 128 * 256, (2, 5)),
    ],
)
def test_the_calls_of_splash_in_a_program_of_the_tpus_compiler(
    window: int | None, blocks: SplashBlocks, pairs: int, products: tuple[int, ...]
):
    """By hand: 768 queries, forward, then backward by queries and by keys, or by both; each device has one row and two heads."""
    slice_ = describe_slice("v6e:2x2")
    mesh = make_mesh(MeshConfig(data=2, tensor=2), slice_.devices)
    q, k, v = (jax.ShapeDtypeStruct((2, 768, n, 64), jnp.bfloat16, sharding=batch_sharding(mesh)) for n in (4, 2, 2))
    call = AttentionCall(q, k, v, 0.1, structure=MaskStructure(causal=True, window=window), blocks=blocks)

    def answer(q, k, v):
        with within_mesh(mesh):
            return splash(call._replace(query=q, key=k, value=v)).astype(jnp.float32).sum()

    text = jax.jit(jax.value_and_grad(answer, argnums=(0, 1, 2))).lower(q, k, v).compile().as_text()
    found = sorted(read_program(text).attention, key=lambda call: len(call.widths))
    assert found == [AttentionCost(2 * pairs, (64,) * n, 1) for n in products]


# Traffic: bytes of one operation after another -------------------------------------------------------------------------

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
        (
            f"%y = ({X}, u32[], token[]) send(%x, %key), is_host_transfer=true\n  %z = token[] send-done(%y)\n"
            f"  %r = ({X}, u32[]{{:S(2)}}, token[]) recv(%key), is_host_transfer=true\n  %s = ({X}, token[]) recv-done(%r)",
            2,
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
