"""Files that tests write, and the one-line message of a data source that cannot be opened."""

import gzip
from pathlib import Path

import pytest

from flaxformer_lite.core.data import Pair
from flaxformer_lite.files.data.source import DataSource

PAIRS = [Pair("ein Haus", "a house"), Pair("zwei Hüte", "two hats"), Pair("日本", "Japan")]


def file(folder: Path, name: str, content: bytes | str, packed: bool = False) -> str:
    """Writes a file, gzipped if `packed`, and returns its path."""
    content = content.encode() if isinstance(content, str) else content
    (folder / name).write_bytes(gzip.compress(content) if packed else content)
    return str(folder / name)


def message(source: DataSource) -> str:
    """Returns the one line that opening a bad source raises."""
    with pytest.raises(ValueError) as caught:
        list(source.open())
    assert "\n" not in str(caught.value)
    return str(caught.value)
