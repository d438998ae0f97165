"""Text files as data: parallel files, columns (TSV, CSV), JSON lines, plain text; plain or compressed, one file or several."""

import itertools
import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from flaxformer_lite.base.console import warn_once
from flaxformer_lite.core.base.bounds import Checked
from flaxformer_lite.core.data.records import Pair
from flaxformer_lite.files.data.source import FieldSource, LocatedPair, LocatedSource, TextSource, texts_of, with_input
from flaxformer_lite.files.records.candidates import TextCandidates
from flaxformer_lite.files.records.words import pair_of_words
from flaxformer_lite.files.text.files import ReadProgress, file_versions, ignore_progress, line_chunks, matching_files
from flaxformer_lite.files.text.json_objects import json_value
from flaxformer_lite.files.text.tables import (
    MOST_COMPARED,
    Format,
    Table,
    better_delimiter,
    columns_in,
    container,
    is_blank,
    looks_like_a_header,
    looks_quoted,
    require_lines,
)

CONLLU = 10
"""The number of columns in CoNLL-U."""


def read_files(path: str, progress: ReadProgress = ignore_progress) -> Iterator[tuple[str, Iterator[str]]]:
    """Yields every file that matches `path`, with its lines. Raises: ValueError if no file has a line."""
    files, empty = matching_files(path), True
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
class ColumnSource(Checked, TextSource, at="data"):
    """Text files with columns, equally many in each row. A column is a number, counted from 0, or its name in the header."""

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
    label_separator: str | None = None
    """The sign between the labels in a cell, such as "," or "|", for any number of labels a text; an empty cell has none. None: a
    cell is one label."""
    input_column: int | str | None = None
    """Column of a text that belongs to the source, and follows it after an empty line unless it is blank; None: no such text."""
    negatives_columns: tuple[int | str, ...] = ()
    """Columns of texts that do not answer the source, as the target does. For embeddings and rerankers. (): plain pairs."""

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
        if self.label_separator == "" or (self.label_separator is not None and self.label_column is None):
            raise ValueError(
                f"{self.kind}.label_separator is {self.label_separator!r} and {self.kind}.label_column {self.label_column}: give a "
                "sign and a column of labels, or leave the separator out"
            )

    @property
    def _chosen(self) -> dict[str, int | str | None]:
        """The columns of source, target, label, input and negatives, by their settings."""
        names = ("source_column", "target_column", "label_column", "input_column")
        negatives = {f"negatives_columns.{i}": column for i, column in enumerate(self.negatives_columns)}
        return {name: getattr(self, name) for name in names} | negatives

    @property
    def _has_source(self) -> bool:
        return self.source_column is not None

    def target_names(self) -> list[str]:
        return [str(self.target_column)]

    def text_columns(self) -> tuple[tuple[int | str, ...], ...]:
        return texts_of(self.source_column, self.target_column, self.input_column)

    @property
    @abstractmethod
    def form(self) -> Format:
        """The way in which rows are written."""

    @property
    def _fewest(self) -> int:
        """The fewest columns that a file can have."""
        chosen = [column for column in self._chosen.values() if column is not None]
        return max(len(chosen), *(column + 1 for column in chosen if isinstance(column, int)), 0)

    @abstractmethod
    def _check_delimiter(self, lines: Sequence[str], file: str) -> None:
        """Raises: ValueError if the first lines of a file seem to have another delimiter."""

    def located(self, setting: str | None = None, progress: ReadProgress = ignore_progress) -> Iterator[LocatedPair]:
        if not self.header:
            first = list(itertools.islice(self._rows(ignore_progress), MOST_COMPARED))
            texts = [[] if isinstance(row.pair, str) else list(filter(None, row.pair[:2])) for row in first]
            if first and looks_like_a_header(texts):
                warn_once(
                    f"{first[0].files[1]}:1: this row looks like a header ({', '.join(map(repr, texts[0]))}), and is read like the "
                    f"others: set {setting or self.kind}.header to True if it is one"
                )
        yield from super().located(setting, progress)

    def _rows(self, progress: ReadProgress) -> Iterator[LocatedPair]:
        before: Table | None = None
        for file, lines in read_files(self.path, progress):
            start = list(itertools.islice(lines, MOST_COMPARED))
            self._check_delimiter(start, file)
            table = Table(itertools.chain(start, lines), file, self.form, self.header)
            if not (table.names or table.first):
                continue
            if before is not None and sorted(table.names) != sorted(before.names):
                raise ValueError(
                    f"{file}:1: the header is {', '.join(table.names)}, but that of {before.file} {', '.join(before.names)}: "
                    "give the files of a pattern the same columns"
                )
            columns = [None if column is None else table.number(column) for column in self._chosen.values()]
            last = max(column for column in columns if column is not None)
            table.width = table.width or (before.width if before is not None else table.usual_width(last + 1))
            before = before or table
            self._look_at_numbers(table, columns)
            for number, cells in table.rows:
                yield LocatedPair(self._pair(cells, columns, table.wrong(cells, last)), (file, file), number)

    def _look_at_numbers(self, table: Table, columns: Sequence[int | None]) -> None:
        """Warns if a column of texts has nothing but numbers, and the table has columns that are not read."""
        if table.width <= sum(column is not None for column in columns):
            return
        for setting, column in zip(("source_column", "target_column"), columns, strict=False):
            if column is not None and table.numbers_alone(column):
                warn_once(
                    f"{table.file}: {self.kind}.{setting} is {column}, which has nothing but numbers in the first rows; the "
                    f"columns are {table.shown()}: set another one if these are not the texts"
                )

    def _pair(self, cells: list[str], columns: Sequence[int | None], wrong: str) -> Pair | str:
        """Returns the texts of a row, empty ones for a blank line, or what is wrong with it."""
        if is_blank(cells):
            return Pair("", "")
        if wrong:
            return wrong
        source, target, label, more, *negatives = ("" if column is None else cells[column] for column in columns)
        source = with_input(source, more)
        if self.label_separator is not None:
            label = json.dumps(
                [name.strip() for name in label.split(self.label_separator) if name.strip()], ensure_ascii=False
            )
        if not negatives:
            return Pair(source, target, label)
        try:
            return TextCandidates.read([target], negatives).pair(source)
        except ValueError as error:
            return str(error)


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
class JSONLines(FieldSource, at="json_lines"):
    """A text file with one JSON object a line."""

    kind: Literal["json_lines"] = "json_lines"
    path: str
    """The file or URL, UTF-8; or a pattern for several, sorted by name."""

    def _rows(self, progress: ReadProgress) -> Iterator[LocatedPair]:
        for file, lines in read_files(self.path, progress):
            for number, line in enumerate(lines, 1):
                yield LocatedPair(self._parsed(line), (file, file), number)

    def _parsed(self, line: str) -> Pair | str:
        if not line.strip():
            return Pair("", "")
        try:
            return self._pair(json_value(line))
        except ValueError as error:
            return str(error)


@dataclass(frozen=True, kw_only=True)
class CoNLL(Checked, TextSource, at="conll"):
    """Text files with a word and its label in each line, in columns between tabs or spaces; a blank line ends a text.

    Lines that begin with -DOCSTART- are left out, and those of CoNLL-U's ten columns for several words (1-2) or for none (3.1).
    For the objective `token_labels`.
    """

    kind: Literal["conll"] = "conll"
    path: str
    """The file or URL, UTF-8; or a pattern for several, sorted by name."""
    word_column: int = 0
    """Column of the words, from 0; -1 is the last one."""
    label_column: int = -1
    """Column of the labels, from 0; -1 is the last one."""
    comment: str | None = None
    """Beginning of the lines before the first word of a text that are left out, such as "# "; None: each line has a word."""

    _has_source = False
    labels_words = True

    def _rows(self, progress: ReadProgress) -> Iterator[LocatedPair]:
        left_out = ("-DOCSTART-",) if self.comment is None else ("-DOCSTART-", self.comment)
        for file, lines in read_files(self.path, progress):
            for number, text in numbered_paragraphs(lines):
                rows = text.split("\n")
                words = list(itertools.dropwhile(lambda row: row.startswith(left_out), rows))
                if words:
                    first = number + len(rows) - len(words)
                    yield LocatedPair(self._pair(words, first), (file, file), first)

    def _pair(self, rows: Sequence[str], first: int) -> Pair | str:
        """Returns the text of some lines with its labels, or what is wrong with it. first: the number of the first line."""
        words, labels = list[str](), list[str]()
        for number, row in enumerate(rows, first):
            columns = columns_in(row)
            if len(columns) == CONLLU and self.word_column % CONLLU and re.fullmatch(r"\d+[-.]\d+", columns[0]):
                continue
            for kept, setting in ((words, "word_column"), (labels, "label_column")):
                column = getattr(self, setting)
                if not -len(columns) <= column < len(columns) or len(columns) < 2:
                    wrong = f"{len(columns)} columns, but conll.{setting} is {column}: correct it"
                    if len(columns) < 2:
                        wrong = "a word without a label: add it, or -100 for a word that does not count"
                    return f"line {number}, {row[:60]!r}, has {wrong}; if it is a comment, set conll.comment to its beginning"
                kept.append(columns[column])
        return pair_of_words(words, labels)


@dataclass(frozen=True, kw_only=True)
class PlainText(Checked, LocatedSource, at="plain_text"):
    """Text files, plain or compressed, UTF-8. A document is a pair with an empty source."""

    kind: Literal["plain_text"] = "plain_text"
    path: str
    """The file or URL, or a pattern for several, sorted by name: `books/*.txt`, `books/**/*.txt.gz`."""
    documents: Literal["file", "lines", "paragraphs"] = "file"
    """Unit of a document: a whole file, a line, or a paragraph between blank lines. Blank documents are left out."""

    def located(self, setting: str | None = None, progress: ReadProgress = ignore_progress) -> Iterator[LocatedPair]:
        count = longest = 0
        if kind := container(self.path):
            warn_once(
                f"{self.path} is {kind} by its name, but {setting or self.kind} is plain_text, which learns its signs too: "
                "a source of kind tsv, csv, json_lines, conll or parquet reads the texts alone"
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
