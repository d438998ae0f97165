"""Oracles: programs written and counted by hand, and a slow count of what a convolution multiplies."""

import numpy as np
import pytest

from flaxformer_lite.tools.planning.program import Collective, Window, read_program
from tests.support.hlo_parts import FOUR, PARTS, X

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


def test_the_body_of_a_loop_counts_once_for_each_trip():
    """A trip reads only its slice of the weights; memory on the chip (S(1)) is no traffic."""
    program = read_program(PROGRAM)
    one_product, slice_bytes, array = 2 * 8 * 8 * 128, 4 * 8 * 128, 4 * 8 * 128
    assert program.loops == {"loop": 5} and program.flops == 5 * 2 * one_product and program.kernels == 5
    (reduced,) = program.collectives
    assert (reduced.kind, reduced.bytes, reduced.trips) == ("all-reduce", 4 * 64, 5)
    assert reduced.groups == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert program.hbm_bytes == pytest.approx(5 * (slice_bytes + 4) + 3 * array, abs=128)
    assert program.parameter_bytes == 4 * (5 * 8 * 128 + 8 * 128)


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
