"""Oracle: bytes counted by hand, of one operation after another."""

import pytest

from flaxformer_lite.tools.planning.program import read_program
from tests.support.hlo_parts import EACH, FOUR, PARTS, QUARTER, X

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
