"""Text files as data: parallel files, columns (TSV, CSV), JSON lines; plain or compressed, one file or several."""

import csv
import itertools
import json
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar, Literal, NamedTuple

from flaxformer_lite.base.bounds import Checked
from flaxformer_lite.data.records import Pair
from flaxformer_lite.data.source import FieldSource, TextSource, warn_once
from flaxformer_lite.text.files import (
    LONGEST_LINE,
    ReadProgress,
    file_versions,
    ignore_progress,
    line_chunks,
    matching_files,
)


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
class ParallelText(Checked, LineSource, at="parallel_text"):
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


class Row(NamedTuple):
    """The cells of a row, with its place for messages."""

    place: str
    cells: list[str]
    columns: Sequence[int | None]
    """The numbers of the columns of source, target and label; None for one that is not read."""
    width: int
    """The number of cells that the row must have; 0: any."""


@dataclass(frozen=True, kw_only=True)
class ColumnSource(Checked, LineSource, at="data"):
    """Text files with columns. A column is a number, counted from 0, or its name in the header."""

    path: str
    """The file or URL, UTF-8; or a pattern for several, sorted by name."""
    header: bool = False
    """Whether the first line of each file has the names of its columns. False: it is a row like the others."""
    source_column: int | str | None = 0
    """Column of the source sentences, a number from 0 or a name in the header; None: each row is a document."""
    target_column: int | str = 1
    """Column of the target sentences, or of the documents."""
    label_column: int | str | None = None
    """Column of the labels; None: no labels."""

    even: ClassVar[bool]
    """Whether each row needs as many columns as the first, also without a header."""

    def __post_init__(self) -> None:
        super().__post_init__()
        used: dict[int | str, str] = {}
        for name, column in self._chosen.items():
            setting = f"{self.kind}.{name}"
            if isinstance(column, int) and column < 0:
                raise ValueError(f"{setting} is {column}: it must be at least 0, or a name in the header")
            if isinstance(column, str) and not self.header:
                raise ValueError(
                    f"{setting} is {column!r}, but {self.kind}.header is False, so columns have no names: set it to True"
                )
            if column in used:
                raise ValueError(f"{used[column]} and {setting} are both {column!r}: choose two columns")
            if column is not None:
                used[column] = setting

    @property
    def _chosen(self) -> dict[str, int | str | None]:
        """The columns of source, target and label, by their settings."""
        return {name: getattr(self, name) for name in ("source_column", "target_column", "label_column")}

    @property
    def _origins(self) -> tuple[str | None, str]:
        return None if self.source_column is None else self.path, self.path

    def target_names(self) -> list[str]:
        return [str(self.target_column)]

    def versions(self) -> list[str] | None:
        return file_versions(self.path)

    def _place(self, origin: str, number: int) -> str:
        return next(itertools.islice(self._rows(), number - 1, None)).place

    @property
    @abstractmethod
    def _between(self) -> str:
        """The name of what stands between two columns."""

    @abstractmethod
    def _split(self, lines: Iterator[str], file: str) -> Iterator[tuple[int, list[str]]]:
        """Yields the cells of each row, with the number of its first line, counted from 1; no cells for a blank line."""

    def stream(self, setting: str | None = None, progress: ReadProgress = ignore_progress) -> Iterator[Pair]:
        if not self.header:
            first = list(itertools.islice(self._rows(), MOST_COMPARED))
            texts = [[row.cells[i] for i in row.columns[:2] if i is not None and i < len(row.cells)] for row in first]
            if first and looks_like_a_header(texts):
                warn_once(
                    f"{first[0].place}: this row looks like a header ({', '.join(map(repr, first[0].cells))}), and is read like "
                    f"the others: set {setting or self.kind}.header to True if it is one"
                )
        yield from super().stream(setting, progress)

    def _pairs(self, progress: ReadProgress) -> Iterator[Pair | ValueError]:
        return map(self._pair, self._rows(progress))

    def _rows(self, progress: ReadProgress = ignore_progress) -> Iterator[Row]:
        """Yields the rows of all files. Raises: ValueError if no file has a line, or a header lacks a column."""
        files, found = matching_files(self.path), False
        names: list[str] = []
        for index, file in enumerate(files):
            chunks = line_chunks(file, lambda fraction, before=index: progress((before + fraction) / len(files)))
            rows = self._split(itertools.chain.from_iterable(chunks), file)
            if self.header:
                if (first := next(rows, None)) is None:
                    continue
                found, own = True, [name.strip() for name in first[1]]
                names = names or own
                if sorted(own) != sorted(names):
                    raise ValueError(
                        f"{file}:1: the header is {', '.join(own)}, but that of {files[0]} {', '.join(names)}: give the files of a "
                        "pattern the same columns"
                    )
                names = own
            columns, width = [self._number(column, names, file) for column in self._chosen.values()], len(names)
            for number, cells in rows:
                found, width = True, width or len(cells) * self.even
                yield Row(f"{file}:{number}", cells, columns, width)
        if not found:
            raise ValueError(f"{self.path}: the file is empty")

    def _number(self, column: int | str | None, names: list[str], file: str) -> int | None:
        """Returns the number of a column. Raises: ValueError if the header does not have its name, or has it twice."""
        if not isinstance(column, str):
            return column
        if names.count(column) != 1:
            raise ValueError(
                f"{file}:1: the header has {names.count(column) or 'no'} columns {column!r}: it is {', '.join(names)}"
            )
        return names.index(column)

    def _pair(self, row: Row) -> Pair | ValueError:
        """Returns the texts of a row, empty ones for a blank line, or the error with its place."""
        cells, last = row.cells, max(column for column in row.columns if column is not None)
        if not "".join(cells).strip():
            return Pair("", "")
        found = f"{row.place}: {len(cells)} column(s) between {self._between}"
        if len(cells) <= last:
            return ValueError(f"{found}, but column {last}, counted from 0, is needed")
        if row.width and len(cells) != row.width:
            return ValueError(f"{found}, but the first row has {row.width}")
        return Pair(*("" if column is None else cells[column] for column in row.columns))


@dataclass(frozen=True, kw_only=True)
class TSV(ColumnSource, at="tsv"):
    """A text file with columns between tabs; no quotes, no escapes."""

    kind: Literal["tsv"] = "tsv"

    even = False

    @property
    def _between(self) -> str:
        return "tabs"

    def _split(self, lines: Iterator[str], file: str) -> Iterator[tuple[int, list[str]]]:
        return ((number, line.split("\t")) for number, line in enumerate(lines, 1))


@dataclass(frozen=True, kw_only=True)
class CSV(ColumnSource, at="csv"):
    """A text file with columns between commas. A text with a comma, a quote or a line break stands in double quotes.

    Inside them a quote is written twice. Every row has as many columns as the first. Reference: RFC 4180.
    """

    kind: Literal["csv"] = "csv"
    delimiter: str = ","
    """The character between two columns; many spreadsheets write ";"."""

    even = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise ValueError(f"csv.delimiter is {self.delimiter!r}: it must be one character, and not a quote")

    @property
    def _between(self) -> str:
        return repr(self.delimiter)

    def _split(self, lines: Iterator[str], file: str) -> Iterator[tuple[int, list[str]]]:
        csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))  # 131,072 characters by default
        reader = csv.reader((line + "\n" for line in lines), delimiter=self.delimiter, strict=True)
        while True:
            number = reader.line_num + 1
            try:
                yield number, next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise ValueError(
                    f"{file}:{number}: not CSV ({error}); a text with a quote, {self._between} or a line break must stand in "
                    "double quotes, and each quote inside twice"
                ) from None


MOST_COMPARED = 101
"""Rows at the start of a file by which a header is known."""
HEADER_WORDS = frozenset(
    re.findall(
        r"\w+",
        "source src target tgt text texts sentence sentences document content body title question answer context input output "
        "prompt response completion instruction premise hypothesis query passage translation transcript review comment label "
        "labels class category sentiment score language lang original reference id index english german french spanish italian "
        "portuguese dutch russian chinese japanese korean arabic hindi turkish polish czech en de fr es it pt nl ru zh ja ko ar "
        "hi tr pl cs sv fi da uk ro hu el he vi th",
    )
)


def looks_like_a_header(rows: Sequence[Sequence[str]]) -> bool:
    """Returns whether the texts of the first row are names of columns: by their words, or by their length among the others'."""
    names = [re.split(r"[\W\d_]+", text.strip().lower()) for text in rows[0]]
    if rows[0] and all(any(words) and HEADER_WORDS.issuperset(filter(None, words)) for words in names):
        return True
    others = [row for row in rows[1:] if len(row) == len(rows[0])]
    return len(others) > 2 and all(
        re.fullmatch(r"\w[\w.-]*\w", text) and 2 * len(text) <= median(len(row[i]) for row in others)
        for i, text in enumerate(rows[0])
    )


@dataclass(frozen=True, kw_only=True)
class JSONLines(Checked, FieldSource, LineSource, at="json_lines"):
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
