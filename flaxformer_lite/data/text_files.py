"""Text files as data: parallel files, tab-separated columns, JSON lines; plain or compressed, one file or several."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from flaxformer_lite.bounds import Checked, NonNegativeInt
from flaxformer_lite.data.records import Pair
from flaxformer_lite.data.source import FieldSource, TextSource
from flaxformer_lite.text.files import ReadProgress, file_versions, ignore_progress, line_chunks, matching_files


class LineSource(TextSource):
    """A source whose rows are the lines of files that match a pattern."""

    def _place(self, origin: str, number: int) -> str:
        for file in matching_files(origin):
            count = count_lines(file)
            if number <= count:
                return f"{file}:{number}"
            number -= count
        return f"{origin}:{number}"  # a file became shorter meanwhile


@dataclass(frozen=True, kw_only=True)
class ParallelText(LineSource):
    """Two text files: line n of one belongs to line n of the other."""

    kind: Literal["parallel_text"] = "parallel_text"
    source: str
    """File or URL of source sentences, one a line, UTF-8; or a pattern for several, sorted by name."""
    target: str
    """File or URL of target sentences, one a line, UTF-8; or a pattern for as many as of the source, each with its lines."""

    @property
    def _origins(self) -> tuple[str, str]:
        return self.source, self.target

    def text_names(self, setting: str) -> tuple[str, str]:
        return f"{setting}.source {self.source}", f"{setting}.target {self.target}"

    def target_names(self) -> list[str]:
        return [self.target]

    def versions(self) -> list[str] | None:
        return file_versions(self.source) + file_versions(self.target)

    def _pairs(self, progress: ReadProgress) -> Iterator[Pair]:
        files, others = matching_files(self.source), matching_files(self.target)
        if len(files) != len(others):
            counts = f"{self.source} matches {len(files)} files but {self.target} {len(others)}"
            raise ValueError(f"{counts}: each file of source sentences needs one of target sentences")
        lines = _lines(self.source, progress), _lines(self.target)
        for source, target in itertools.zip_longest(*lines):
            if source is None or target is None or source[:2] != target[:2]:
                break
            yield Pair(source.text, target.text)
        else:
            return
        for file, other in zip(files, others, strict=True):
            of_source, of_target = count_lines(file), count_lines(other)
            if of_source != of_target:
                counts = f"{of_source} lines in {file} but {of_target} in {other}"
                raise ValueError(f"{counts}: parallel files need equally many lines")


@dataclass(frozen=True, kw_only=True)
class TSV(Checked, LineSource, at="tsv"):
    """A text file with columns between tabs; no quotes, no escapes, no header."""

    kind: Literal["tsv"] = "tsv"
    path: str
    """The file or URL, UTF-8; or a pattern for several, sorted by name."""
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

    def versions(self) -> list[str] | None:
        return file_versions(self.path)

    def _pairs(self, progress: ReadProgress) -> Iterator[Pair | ValueError]:
        columns_read = (self.source_column, self.target_column, self.label_column)
        last = max(column for column in columns_read if column is not None)
        files = matching_files(self.path)
        for file, number, line in _lines(self.path, progress):
            columns = line.split("\t") if line.strip() else [""] * (last + 1)
            if len(columns) <= last:
                found = f"{len(columns)} column(s) between tabs, but column {last}, counted from 0, is needed"
                yield ValueError(f"{files[file]}:{number}: {found}")
                continue
            yield Pair(*("" if column is None else columns[column] for column in columns_read))


@dataclass(frozen=True, kw_only=True)
class JSONLines(FieldSource, LineSource):
    """A text file with one JSON object a line."""

    kind: Literal["json_lines"] = "json_lines"
    path: str
    """The file or URL, UTF-8; or a pattern for several, sorted by name."""

    def _pairs(self, progress: ReadProgress) -> Iterator[Pair | ValueError]:
        files = matching_files(self.path)
        for file, number, line in _lines(self.path, progress):
            location = f"{files[file]}:{number}"
            if not line.strip():
                yield Pair("", "")
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield ValueError(f"{location}: not JSON ({error}); each line must be one JSON object")
                continue
            yield self._pair(record, location)


class Line(NamedTuple):
    """A line of text, with the index of its file and its number there, from 1."""

    file: int
    number: int
    text: str


def count_lines(file: str) -> int:
    """Returns the number of lines of one file."""
    return sum(map(len, line_chunks(file)))


def _lines(path: str, progress: ReadProgress = ignore_progress) -> Iterator[Line]:
    """Yields the lines of all files that match `path`. Raises: ValueError if there are none."""
    files = matching_files(path)
    found = False
    for index, file in enumerate(files):
        chunks = line_chunks(file, lambda fraction, before=index: progress((before + fraction) / len(files)))
        for number, text in enumerate(itertools.chain.from_iterable(chunks), 1):
            found = True
            yield Line(index, number, text)
    if not found:
        raise ValueError(f"{path}: the file is empty")
