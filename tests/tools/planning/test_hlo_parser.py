"""Oracle: lines of programs, read by hand."""

import pytest

from flaxformer_lite.tools.planning.hlo_parser import array_types, parse_instruction, replica_groups


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


def test_types_of_tuples():
    types = array_types("(bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, /*index=1*/s32[], pred[3]{0})")
    assert [(t.dtype, t.shape, t.space, t.bytes) for t in types] == [
        ("bf16", (8, 128), 1, 2048), ("s32", (), 0, 4), ("pred", (3,), 0, 3)
    ]  # fmt: skip
