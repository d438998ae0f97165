"""Laws of records as arrays: they are the records, in any shards, and their fingerprint is that of a plain loop."""

import hashlib

import numpy as np
import pytest

from flaxformer_lite.core.data.records import TokenPair
from flaxformer_lite.core.data.token_arrays import Column, TokenArrays
from flaxformer_lite.core.text.pairs import Extent

RECORDS = [([4, 5], [6], "a"), ([], [7, 8, 9], ""), ([65_535], [], "é"), ([10], [11], "b")]


def arrays(cuts: list[int], dtype: type = np.int32) -> TokenArrays:
    """The records in shards that begin at the cuts."""
    shards = []
    for start, stop in zip([0, *cuts], [*cuts, len(RECORDS)], strict=True):
        (shard,) = TokenArrays.of(
            [TokenPair(np.array(s), np.array(t), label) for s, t, label in RECORDS[start:stop]]
        ).shards
        shards.append(shard._replace(ids=shard.ids.astype(dtype)))
    return TokenArrays(shards)


@pytest.mark.parametrize("dtype", [np.int32, np.uint16])
@pytest.mark.parametrize("cuts", [[], [1], [1, 2, 3]])
def test_records_are_read_back_from_any_shards(cuts: list[int], dtype: type):
    found = arrays(cuts, dtype)
    assert [(s.tolist(), t.tolist(), label) for s, t, label, *_ in found] == RECORDS
    assert all(side.dtype == np.int32 for record in found for side in record[:2])
    assert found.sizes.tolist() == [[2, 1], [0, 3], [1, 0], [1, 1]] and list(found.labels) == ["a", "", "é", "b"]
    assert found[-1].label == "b" and [record.label for record in found[1:3]] == ["", "é"]
    assert found.view(1, 1).tolist() == [7, 8, 9]
    assert TokenArrays.of(found) is found
    with pytest.raises(IndexError, match="item 4 of 4"):
        found[4]


def test_the_fingerprint_is_that_of_runs_before_there_were_arrays():
    """Oracle: lengths as 64-bit, tokens as 32-bit numbers, labels by lines; of files of 16-bit numbers the same."""
    sides = [np.array(side, np.int32) for record in RECORDS for side in record[:2]]
    lengths = np.array([len(side) for side in sides], np.int64).tobytes()
    tokens = b"".join(side.tobytes() for side in sides)
    expected = hashlib.sha256(lengths + tokens + "a\n\né\nb\n".encode()).hexdigest()
    found = {arrays(cuts, dtype).fingerprint() for cuts in ([], [2], [1, 3]) for dtype in (np.int32, np.uint16)}
    assert found == {expected}
    bare = TokenArrays.of([TokenPair(sides[0], sides[1])])
    assert bare.fingerprint() == hashlib.sha256(lengths[:16] + tokens[:12]).hexdigest()


EXTENTS: list[Extent] = [Extent.WHOLE, Extent.CUT, Extent.REFUSED, Extent.WHOLE, Extent.PARTLY]
ARRAYS: list[dict[str, list[float]]] = [
    {"a": [3, 1], "b": [0.5]},
    {},
    {"a": []},
    {"a": [2, 2, 9, 4]},
    {"b": [1.5, -2.5]},
]
"""Arrays of any length, of which some records have none."""


def with_arrays(cuts: list[int]) -> TokenArrays:
    types = {"a": np.uint16, "b": np.float32}
    records = [
        TokenPair(NO_TOKENS, NO_TOKENS, "", extent, {name: np.array(x, types[name]) for name, x in arrays.items()})
        for extent, arrays in zip(EXTENTS, ARRAYS, strict=True)
    ]
    borders = zip([0, *cuts], [*cuts, len(records)], strict=True)
    return TokenArrays([shard for start, stop in borders for shard in TokenArrays.of(records[start:stop]).shards])


NO_TOKENS = np.zeros(0, np.int32)


@pytest.mark.parametrize("cuts", [[], [1], [2, 3], [1, 2, 3, 4]])
def test_arrays_of_any_length_and_extents_are_read_back_from_any_shards(cuts: list[int]):
    """Oracle: the lists themselves; a record without an array has an empty one."""
    found = with_arrays(cuts)
    assert [record.extent for record in found] == EXTENTS == found.extents.tolist()
    assert all(isinstance(record.extent, Extent) for record in found)
    for name, dtype in (("a", np.uint16), ("b", np.float32)):
        wanted = [arrays.get(name, []) for arrays in ARRAYS]
        assert [record.array(name).tolist() for record in found] == wanted
        assert {record.array(name).dtype for record in found if len(record.array(name))} == {np.dtype(dtype)}
        assert found.each(name, Column.sizes).tolist() == [*map(len, wanted)]
    numbers = [arrays.get("a", []) for arrays in ARRAYS]
    assert found.each("a", Column.largest).tolist() == [max(some, default=0) for some in numbers]
    for number in (0, 1, 3):
        sums = found.each("a", lambda column, number=number: column.sums_behind(number))
        assert sums.tolist() == [sum(some[number:]) for some in numbers]
    assert found.each("c", Column.largest).tolist() == [0] * 5 and found[0].array("c").tolist() == []


def test_the_fingerprint_tells_arrays_and_extents_apart():
    """Law: equal in any shards; another name, number, place or extent is another fingerprint."""
    whole = with_arrays([])
    assert {with_arrays(cuts).fingerprint() for cuts in ([1], [2, 3])} == {whole.fingerprint()}
    records = list(whole)
    for number, change in (
        (0, {"extent": Extent.CUT}),
        (0, {"arrays": {"c": np.array([3, 1], np.uint16), "b": np.array([0.5], np.float32)}}),
        (0, {"arrays": {"a": np.array([3, 2], np.uint16), "b": np.array([0.5], np.float32)}}),
        (1, {"arrays": {"a": np.array([2], np.uint16)}}),
    ):
        changed = [*records]
        changed[number] = records[number]._replace(**change)
        assert TokenArrays.of(changed).fingerprint() != whole.fingerprint()
    moved = [records[1]._replace(extent=Extent.WHOLE), records[0]._replace(extent=Extent.CUT), *records[2:]]
    assert TokenArrays.of(moved).fingerprint() != whole.fingerprint()
