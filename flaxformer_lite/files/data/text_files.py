"""Text files as data: parallel files, columns (TSV, CSV), JSON lines, plain text; plain or compressed, one file or several."""

import itertools
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flaxformer_lite.base.console import warn_once
from flaxformer_lite.core.base.bounds import Checked
from flaxformer_lite.core.data import Pair
from flaxformer_lite.files.data.source import LocatedPair, LocatedSource, RecordSource, TextSource
from flaxformer_lite.files.records import Documents, Pairs, RecordKinds, Words
from flaxformer_lite.files.records.base import BLANK, Field, FileRow
from flaxformer_lite.files.text.files import ReadProgress, file_versions, ignore_progress, line_chunks, matching_files
from flaxformer_lite.files.text.json_objects import json_value
from flaxformer_lite.files.text.tables import (
    MOST_COMPARED,
    FileTable,
    Format,
    better_delimiter,
    columns_in,
    container,
    is_blank,
    looks_like_a_header,
    looks_quoted,
    require_lines,
)

CONLLU = re.compile(r"\d+([-.]\d+)?(\t[^\t]*){9}")
"""A line of CoNLL-U."""
FIRST_AND_LAST = Words(words=0, labels=-1)
"""The first and the last column."""
FORM, UPOS = 1, 3
"""The columns of CoNLL-U that have a word, and its part of speech."""


def read_files(path: str, progress: ReadProgress = ignore_progress) -> Iterator[tuple[str, Iterator[str]]]:
    """Yields every file that matches `path`, with its lines. Raises: ValueError if no file has a line."""
    files = matching_files(path)
    empty = True
    for index, file in enumerate(files):
        chunks = line_chunks(file, lambda fraction, before=index: progress((before + fraction) / len(files)))
        first = next(chunks, [])
        empty = empty and not first
        yield file, itertools.chain(first, itertools.chain.from_iterable(chunks))
    if empty:
        raise ValueError(f"{path}: the file is empty")


@dataclass(frozen=True, kw_only=True)
class ParallelText(Checked, TextSource, at="parallel_text"):
    """Two text files: line n of one belongs to line n of the other."""

    kind: Literal["parallel_text"] = "parallel_text"
    source: str
    """File or URL of source sentences, one a line, UTF-8; or a pattern for several, sorted by name."""
    target: str
    """File or URL of target sentences, one a line, UTF-8; or a pattern for as many as of the source, each with its lines."""

    @property
    def _origin(self) -> str:
        return self.source

    def text_names(self, setting: str) -> tuple[str, str]:
        return f"{setting}.source {self.source}", f"{setting}.target {self.target}"

    def target_names(self) -> list[str]:
        return [self.target]

    def versions(self) -> list[str] | None:
        return file_versions(self.source) + file_versions(self.target)

    def _rows(self, progress: ReadProgress) -> Iterator[LocatedPair]:
        for path in (self.source, self.target):
            require_lines(
                path, "a source of kind tsv, csv, json_lines, conll or parquet reads it; rename it if it has lines"
            )
        files, others = len(matching_files(self.source)), len(matching_files(self.target))
        if files != others:
            counts = f"{self.source} matches {files} files but {self.target} {others}"
            raise ValueError(f"{counts}: each file of source sentences needs one of target sentences")
        for (file, sources), (other, targets) in zip(
            read_files(self.source, progress), read_files(self.target), strict=False
        ):
            for number, (source, target) in enumerate(itertools.zip_longest(sources, targets), 1):
                if source is None or target is None:
                    more = number + sum(1 for _ in itertools.chain(sources, targets))
                    of_source, of_target = (number - 1, more) if source is None else (more, number - 1)
                    raise ValueError(
                        f"{of_source} lines in {file} but {of_target} in {other}: parallel files need equally many lines"
                    )
                yield LocatedPair(Pair(source, target), (file, other), number)


@dataclass(frozen=True, kw_only=True)
class ColumnSource(RecordSource):
    """Text files with columns, equally many in each row. A column is a number, counted from 0, or its name in the header."""

    path: str
    """The file or URL, UTF-8; or a pattern for several, sorted by name."""
    header: bool = False
    """Whether the first line of each file has the names of its columns. False: it is a row like the others."""
    record: RecordKinds = Pairs(source=0, target=1)
    """The kind of a row, and the columns that are read of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        used: dict[Field, str] = {}
        for name, column in self.record.fields.items():
            setting = f"{self.kind}.record.{name}"
            if isinstance(column, int) and column < 0:
                raise ValueError(f"{setting} is {column}: it must be at least 0, or a name in the header")
            if isinstance(column, str) and not self.header:
                raise ValueError(
                    f"{setting} is {column!r}, but {self.kind}.header is False, so columns have no names: set it to True"
                )
            if column in used:
                raise ValueError(f"{used[column]} and {setting} are both {column!r}: choose two columns")
            used[column] = setting

    @property
    @abstractmethod
    def form(self) -> Format:
        """The way in which rows are written."""

    @property
    def _fewest(self) -> int:
        """The fewest columns that a file can have."""
        chosen = self.record.fields.values()
        return max(len(chosen), *(column + 1 for column in chosen if isinstance(column, int)), 0)

    @abstractmethod
    def _check_delimiter(self, lines: Sequence[str], file: str) -> None:
        """Raises: ValueError if the first lines of a file seem to have another delimiter."""

    def located(self, setting: str | None = None, progress: ReadProgress = ignore_progress) -> Iterator[LocatedPair]:
        if not self.header:
            first = list(itertools.islice(self._rows(ignore_progress), MOST_COMPARED))
            texts = []
            for row in first:
                sides = row.pair[:2] if isinstance(row.pair, Pair) else []
                texts.append(list(filter(None, sides)))
            if first and looks_like_a_header(texts):
                warn_once(
                    f"{first[0].files[1]}:1: this row looks like a header ({', '.join(map(repr, texts[0]))}), and is read like the "
                    f"others: set {setting or self.kind}.header to True if it is one"
                )
        yield from super().located(setting, progress)

    def _fields(self, progress: ReadProgress) -> Iterator[FileRow]:
        before: FileTable | None = None
        for file, lines in read_files(self.path, progress):
            start = list(itertools.islice(lines, MOST_COMPARED))
            self._check_delimiter(start, file)
            table = FileTable(itertools.chain(start, lines), file, self.form, self.header)
            if not (table.names or table.first):
                continue
            if before is not None and sorted(table.names) != sorted(before.names):
                raise ValueError(
                    f"{file}:1: the header is {', '.join(table.names)}, but that of {before.file} {', '.join(before.names)}: "
                    "give the files of a pattern the same columns"
                )
            columns = {column: table.number(column) for column in self.record.fields.values()}
            columns |= {name: table.names.index(name) for name in self.record.beside if name in table.names}
            last = max(columns.values())
            table.width = table.width or (before.width if before is not None else table.usual_width(last + 1))
            before = before or table
            self._look_at_numbers(table, columns)
            for number, cells in table.rows:
                row: Any = BLANK
                if not is_blank(cells):
                    wrong = table.wrong(cells, last)
                    row = ValueError(wrong) if wrong else {name: cells[column] for name, column in columns.items()}
                yield file, number, row

    def _look_at_numbers(self, table: FileTable, columns: Mapping[Field, int]) -> None:
        """Warns if a column of texts has nothing but numbers, and the table has columns that are not read."""
        if table.width <= len(columns):
            return
        texts = set(itertools.chain.from_iterable(self.record.texts))
        for setting, column in self.record.fields.items():
            if column in texts and table.numbers_alone(columns[column]):
                warn_once(
                    f"{table.file}: {self.kind}.record.{setting} is {column}, which has nothing but numbers in the first rows; "
                    f"the columns are {table.shown()}: set another one if these are not the texts"
                )


@dataclass(frozen=True, kw_only=True)
class TSV(ColumnSource, at="tsv"):
    """A text file with columns between tabs; no quotes, no escapes."""

    kind: Literal["tsv"] = "tsv"

    form = Format()

    def _check_delimiter(self, lines: Sequence[str], file: str) -> None:
        if looks_quoted(lines):
            warn_once(
                f"{file}: its first rows have cells in double quotes, which tsv reads as they are: if they are not of the texts, "
                f"set the source to CSV(path=…, delimiter={self.form.delimiter!r})"
            )
        if any("\t" in line for line in lines) or self._fewest < 2:
            return
        other = better_delimiter(lines, "\t", self._fewest)
        if other is not None:
            raise ValueError(
                f"{file}: its first rows have no tab, and equally many columns between {other!r}: set the source to "
                f"CSV(path=…, delimiter={other!r})"
            )


@dataclass(frozen=True, kw_only=True)
class CSV(ColumnSource, at="csv"):
    """A text file with columns between commas. A text with a comma, a quote or a line break stands in double quotes.

    Inside them a quote is written twice. Reference: RFC 4180.
    """

    kind: Literal["csv"] = "csv"
    delimiter: str = ","
    """The character between two columns; many spreadsheets write ";"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise ValueError(f"csv.delimiter is {self.delimiter!r}: it must be one character, and not a quote")

    @property
    def form(self) -> Format:
        return Format(self.delimiter, quoted=True)

    def _check_delimiter(self, lines: Sequence[str], file: str) -> None:
        other = better_delimiter(lines, self.delimiter, self._fewest)
        if other is not None:
            raise ValueError(
                f"csv.delimiter is {self.delimiter!r}, but the first rows of {file} have equally many columns between {other!r}: "
                f"set it to {other!r}"
            )


@dataclass(frozen=True, kw_only=True)
class JSONLines(RecordSource, at="json_lines"):
    """A text file with one JSON object a line."""

    kind: Literal["json_lines"] = "json_lines"
    path: str
    """The file or URL, UTF-8; or a pattern for several, sorted by name."""

    def _fields(self, progress: ReadProgress) -> Iterator[FileRow]:
        for file, lines in read_files(self.path, progress):
            for number, line in enumerate(lines, 1):
                yield file, number, parsed(line)


def parsed(line: str) -> Any:
    """Returns the value of a line of JSON, or its error."""
    try:
        return json_value(line) if line.strip() else BLANK
    except ValueError as error:
        return error


@dataclass(frozen=True, kw_only=True)
class CoNLL(RecordSource, at="conll"):
    """Text files with a word and its label in each line, in columns between tabs or spaces; a blank line ends a text.

    Lines that begin with -DOCSTART- are left out, and those of CoNLL-U's ten columns for several words (1-2) or for none (3.1).
    For the objective `token_labels`.
    """

    kind: Literal["conll"] = "conll"
    path: str
    """The file or URL, UTF-8; or a pattern for several, sorted by name."""
    record: Words = FIRST_AND_LAST
    """The columns of the words and of their labels, from 0; -1 is the last one. By default the first and the last column; of the
    ten columns of CoNLL-U the forms and the parts of speech, `Words(words=1, labels=3)`."""
    comment: str | None = None
    """Beginning of the lines before the first word of a text that are left out, such as "# "; None: each line has a word, but
    for those of CoNLL-U that begin with "#"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        columns = {column for column in self.record.fields.values() if isinstance(column, int)}
        if len(columns) < 2 or self.record.sentence is not None:
            raise ValueError(
                f"conll.record is {self.record}: words and labels must be two columns by number, and sentence None"
            )

    def _fields(self, progress: ReadProgress) -> Iterator[FileRow]:
        left_out = ("-DOCSTART-",) if self.comment is None else ("-DOCSTART-", self.comment)
        for file, lines in read_files(self.path, progress):
            for number, text in numbered_paragraphs(lines):
                rows = text.split("\n")
                words = list(itertools.dropwhile(lambda row: row.startswith(left_out), rows))
                uncommented = [row for row in rows if not row.startswith("#")]
                if self.comment is None and is_conllu(uncommented):
                    words = uncommented
                if words:
                    first = number + len(rows) - len(words)
                    yield file, first, self._lists(words, first)

    def _lists(self, rows: Sequence[str], first: int) -> object:
        """Returns the words of some lines and their labels, or what is wrong with them. first: the number of the first line."""
        lists: dict[Field, list[str]] = {column: [] for column in self.record.fields.values()}
        chosen = self.record.fields
        conllu = is_conllu(rows)
        if conllu and self.record == FIRST_AND_LAST:
            chosen = {"words": FORM, "labels": UPOS}
        for number, row in enumerate(rows, first):
            columns = columns_in(row)
            if conllu and chosen["words"] and not columns[0].isdecimal():
                continue  # several words, such as 1-2, or none, such as 3.1
            for kept, (setting, column) in zip(lists.values(), chosen.items(), strict=True):
                assert isinstance(column, int)
                if not -len(columns) <= column < len(columns) or len(columns) < 2:
                    wrong = f"{len(columns)} columns, but conll.record.{setting} is {column}: correct it"
                    if len(columns) < 2:
                        wrong = "a word without a label: add it, or -100 for a word that does not count"
                    return ValueError(
                        f"line {number}, {row[:60]!r}, has {wrong}; if it is a comment, set conll.comment to its beginning"
                    )
                kept.append(columns[column])
        return lists


def is_conllu(rows: Sequence[str]) -> bool:
    """Returns whether rows have the ten columns of CoNLL-U, whose first column numbers the words."""
    numbers = [row.partition("\t")[0] for row in rows if CONLLU.fullmatch(row)]
    words = list(filter(str.isdecimal, numbers))
    in_order = list(map(str, range(1, len(words) + 1)))
    return len(numbers) == len(rows) and bool(words) and words == in_order


@dataclass(frozen=True, kw_only=True)
class PlainText(Checked, LocatedSource, at="plain_text"):
    """Text files, plain or compressed, UTF-8. A document is a pair with an empty source."""

    kind: Literal["plain_text"] = "plain_text"
    path: str
    """The file or URL, or a pattern for several, sorted by name: `books/*.txt`, `books/**/*.txt.gz`."""
    documents: Literal["file", "lines", "paragraphs"] = "file"
    """Unit of a document: a whole file, a line, or a paragraph between blank lines. Blank documents are left out."""

    record = Documents()

    def located(self, setting: str | None = None, progress: ReadProgress = ignore_progress) -> Iterator[LocatedPair]:
        count = longest = 0
        kind = container(self.path)
        if kind:
            warn_once(
                f"{self.path} is {kind} by its name, but {setting or self.kind} is plain_text, which learns its signs too: "
                "a source of kind tsv, csv, json_lines, conll or parquet reads only the texts"
            )
        for file, lines in read_files(self.path, progress):
            texts: Iterable[tuple[int, str]] = enumerate(lines, 1)
            if self.documents == "file":
                texts = [(1, "\n".join(lines))]
            elif self.documents == "paragraphs":
                texts = numbered_paragraphs(lines)
            for number, text in texts:
                if text.strip():
                    count, longest = count + 1, max(longest, text.count("\n") + 1)
                    yield LocatedPair(Pair("", text), (file, file), number)
        if not count:
            raise ValueError(f"{self.path}: no text in it")
        if self.documents == "paragraphs" and count == 1 and longest > 1:
            warn_once(
                f"{self.path}: no blank line in its text, so its {longest:,} lines are one paragraph and one document: set "
                f"{setting or self.kind}.documents to 'lines' if each line is one"
            )

    def versions(self) -> list[str] | None:
        return file_versions(self.path)


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Yields the groups of lines between blank lines."""
    return (text for _, text in numbered_paragraphs(lines))


def numbered_paragraphs(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yields the groups of lines between blank lines, each with the number of its first line, from 1."""
    for filled, group in itertools.groupby(enumerate(lines, 1), lambda line: bool(line[1].strip())):
        if filled:
            numbers, texts = zip(*group, strict=True)
            yield numbers[0], "\n".join(texts)
