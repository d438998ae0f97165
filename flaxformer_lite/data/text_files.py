"""Text files as data: parallel files, tab-separated columns, JSON lines; plain or gzipped."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from flaxformer_lite.bounds import Checked, NonNegativeInt
from flaxformer_lite.data.records import Pair
from flaxformer_lite.data.source import FieldSource, TextSource
from flaxformer_lite.text.files import read_lines


@dataclass(frozen=True, kw_only=True)
class ParallelText(TextSource):
    """Two text files: line n of one belongs to line n of the other."""

    kind: Literal["parallel_text"] = "parallel_text"
    source: str
    """File or URL of source sentences, one a line, UTF-8."""
    target: str
    """File or URL of target sentences, one a line, UTF-8."""

    @property
    def _origins(self) -> tuple[str, str]:
        return self.source, self.target

    def _pairs(self) -> Iterator[Pair]:
        sources, targets = _nonempty_lines(self.source), _nonempty_lines(self.target)
        if len(sources) != len(targets):
            counts = f"{len(sources)} lines in {self.source} but {len(targets)} in {self.target}"
            raise ValueError(f"{counts}: parallel files need equally many lines")
        return map(Pair, sources, targets)


@dataclass(frozen=True, kw_only=True)
class TSV(Checked, TextSource, at="tsv"):
    """A text file with columns between tabs; no quotes, no escapes, no header."""

    kind: Literal["tsv"] = "tsv"
    path: str
    """The file or URL, UTF-8."""
    source_column: NonNegativeInt | None = 0
    """Column of the source sentences, counted from 0; None: each row is a document."""
    target_column: NonNegativeInt = 1
    """Column of the target sentences, or of the documents, counted from 0."""
    label_column: NonNegativeInt | None = None
    """Column of the labels, counted from 0; None: no labels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        used: dict[int, str] = {}
        for name in ("source_column", "target_column", "label_column"):
            column = getattr(self, name)
            if column is None:
                continue
            if column in used:
                raise ValueError(f"tsv.{used[column]} and tsv.{name} are both {column}: choose two columns")
            used[column] = name

    @property
    def _origins(self) -> tuple[str | None, str]:
        return None if self.source_column is None else self.path, self.path

    def _pairs(self) -> Iterator[Pair]:
        columns_read = (self.source_column, self.target_column, self.label_column)
        last = max(column for column in columns_read if column is not None)
        for number, line in enumerate(_nonempty_lines(self.path), 1):
            columns = line.split("\t") if line.strip() else [""] * (last + 1)
            if len(columns) <= last:
                found = f"{len(columns)} column(s) between tabs, but column {last}, counted from 0, is needed"
                raise ValueError(f"{self.path}:{number}: {found}")
            yield Pair(*("" if column is None else columns[column] for column in columns_read))


@dataclass(frozen=True, kw_only=True)
class JSONLines(FieldSource):
    """A text file with one JSON object a line."""

    kind: Literal["json_lines"] = "json_lines"
    path: str
    """The file or URL, UTF-8."""

    def _pairs(self) -> Iterator[Pair]:
        for number, line in enumerate(_nonempty_lines(self.path), 1):
            location = f"{self.path}:{number}"
            if not line.strip():
                yield Pair("", "")
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{location}: not JSON ({error}); each line must be one JSON object") from None
            yield self._pair(record, location)


def _nonempty_lines(path: str) -> list[str]:
    """Returns the lines of a file. Raises: ValueError if there are none."""
    lines = read_lines(path)
    if not lines:
        raise ValueError(f"{path}: the file is empty")
    return lines
