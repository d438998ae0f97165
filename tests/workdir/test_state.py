"""Laws of the marks of a run folder."""

from pathlib import Path

import pytest

from flaxformer_lite.workdir.state import STATE, mark, marks


def test_marks_are_kept_beside_each_other_and_written_once(tmp_path: Path):
    assert marks(tmp_path) == {}
    mark(tmp_path, trained=True)
    mark(tmp_path, place="/runs/\udcff")  # a path that is not UTF-8
    assert marks(tmp_path) == {"trained": True, "place": "/runs/\udcff"}
    written = (tmp_path / STATE).stat().st_ino
    mark(tmp_path, trained=True)
    assert (tmp_path / STATE).stat().st_ino == written, "nothing new to write"


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_a_file_that_has_no_marks_is_as_none(tmp_path: Path, content: bytes):
    (tmp_path / STATE).write_bytes(content)
    assert marks(tmp_path) == {}
    mark(tmp_path, trained=True)
    assert marks(tmp_path) == {"trained": True}
