"""Laws of an array in a file: its slices are the array's, its pages stay out of the process, and a cut file is named."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.data.array_file import ArrayFile
from flaxformer_lite.data.shards import open_shard


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_slices_are_those_of_the_array(tmp_path: Path, dtype: type) -> None:
    """Also beyond the ends, and from several threads."""
    array = np.arange(1000).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    file = ArrayFile(tmp_path / "a.npy")
    assert (len(file), file.dtype) == (1000, dtype)
    for part in (slice(0, 0), slice(3, 9), slice(990, 2000), slice(5, 2), slice(None), slice(-4, None)):
        np.testing.assert_array_equal(file[part], array[part])
    starts = np.random.default_rng(0).integers(0, 900, 400).tolist()
    with ThreadPoolExecutor(4) as threads:
        for start, found in zip(starts, threads.map(lambda start: file[start : start + 70], starts), strict=True):
            np.testing.assert_array_equal(found, array[start : start + 70])


def test_a_file_that_is_cut_while_it_is_used_is_an_error_with_its_name(tmp_path: Path) -> None:
    """A mapped file would end the process."""
    np.save(tmp_path / "a.npy", np.arange(100_000))
    file = ArrayFile(tmp_path / "a.npy")
    with open(tmp_path / "a.npy", "r+b") as cut:
        cut.truncate(4096)
    assert file[:10].tolist() == list(range(10))
    with pytest.raises(ValueError, match=rf"^{tmp_path}/a\.npy: damaged \(it ends too early\); delete its folder"):
        file[90_000:90_010]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux' figures of memory")
def test_tokens_that_were_read_are_no_memory_of_the_process(tmp_path: Path) -> None:
    """Oracle: the kernel's own figure, before and after every page of 32 MB was read."""
    np.save(tmp_path / "ids.npy", np.ones(2**24, np.uint16))
    np.save(tmp_path / "starts.npy", np.arange(0, 2**24 + 1, 2**11))
    shard, before = open_shard(tmp_path, 2**12), mapped_megabytes()
    total = sum(int(shard.ids[start : start + 2**11].sum()) for start in range(0, 2**24, 2**11))
    assert total == 2**24 and mapped_megabytes() < before + 8


def mapped_megabytes() -> float:
    """Returns the resident pages of files."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssFile"].split()[0]) / 1000
