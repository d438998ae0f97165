"""Laws of records as arrays: they are the records, in any shards, and their fingerprint is that of a plain loop."""

import hashlib

import numpy as np
import pytest

from flaxformer_lite.core.data.records import TokenPair
from flaxformer_lite.core.data.token_arrays import TokenArrays

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
    assert [(s.tolist(), t.tolist(), label) for s, t, label, _ in found] == RECORDS
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
