"""Input lines of a command, in chunks: of files, of a pipe as they arrive, or typed; and the texts in the rows of tables."""

import contextlib
import dataclasses
import functools
import itertools
import os
import shlex
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from flaxformer_lite.base.console import Progress, note, one_of_each, warn
from flaxformer_lite.core.base.bounds import cut
from flaxformer_lite.core.base.mistake import Mistake, known
from flaxformer_lite.core.base.progress import ProgressCallback
from flaxformer_lite.files.text.files import (
    BadLine,
    ReadProgress,
    check_file,
    ignore_progress,
    line_chunks,
    stream_lines,
)
from flaxformer_lite.files.text.tables import FileTable, Format, container, is_blank, open_table, require_lines

if TYPE_CHECKING:
    from flaxformer_lite.files.data.source import RecordSource

LINES_AT_ONCE = 4096
"""Lines of a file in a chunk; results are written after each chunk."""
Line = TypeVar("Line")
MOST_BAD_LINES = 10
"""Lines that a command warns of one by one."""


class BadLines:
    """Lines of one source that have no answer: warns of the first ones, and remembers all."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()
        """Counted from 1."""

    def add(self, number: int, mistake: ValueError) -> None:
        """Adds a line, with the mistake for which it has no answer."""
        self.numbers.add(number)
        if len(self.numbers) <= MOST_BAD_LINES:
            last = "; further ones are not listed" if len(self.numbers) == MOST_BAD_LINES else ""
            warn(f"{mistake}; its answer is empty{last}")

    def of(self, name: str) -> BadLine:
        """Returns a function that adds the lines of a source that are no text."""
        return lambda number, reason: self.add(number, Mistake(reason, f"{name}, line {number}"))


class NoBadLines(BadLines):
    """The bad lines of a source in which one mistake stops all."""

    def add(self, number: int, mistake: ValueError) -> None:
        """Raises: the mistake."""
        raise mistake


class TableRow(NamedTuple):
    texts: tuple[Any, ...]
    """The texts that are answered, or the list of words."""
    cells: list[str]
    """All cells; none of a row that is in no table."""


@dataclass(frozen=True)
class LineChunk:
    """Lines that are processed together."""

    lines: list[str]
    name: str
    """Source of the lines, for messages."""
    before: int
    """Number of lines before these in the source."""
    unit: str = "line"
    """Name of one line in messages."""
    bad: BadLines = dataclasses.field(default_factory=BadLines, compare=False)
    """Bad lines of the source; the lines of the chunk that are no text are among them."""
    table: FileTable | None = None
    """The table whose rows these are; each line is then the first text of a row."""
    rows: tuple["TableRow", ...] = ()
    """The rows of the table; empty for lines."""
    index: int = 0
    """Number of lines before these in all sources of the command."""
    share: float = dataclasses.field(default=0.0, compare=False)
    """The share of the command's input that has been read with these lines; 0: unknown."""
    progress: ProgressCallback | None = None
    """Receives the progress on these lines; None: they are shown as a work of their own."""
    read: tuple[Any, ...] = dataclasses.field(default=(), compare=False)
    """The value that a command read of each line (`answerable`)."""

    def answerable(self, read: "LineReader | None" = None) -> Iterator["LineChunk | None"]:
        """Yields the lines in order: good ones in chunks, and None for each bad one.

        read: returns what is asked in line `number` of a chunk. It raises ValueError, with the place, if the line has no answer;
        it is reported, and counts as bad.
        """
        start, asked = 0, list[Any]()
        for number in range(len(self.lines) + 1):
            at_end = number == len(self.lines)
            if at_end or self._is_bad(number, read, asked):
                if start < number:
                    yield dataclasses.replace(
                        self,
                        lines=self.lines[start:number],
                        before=self.before + start,
                        rows=self.rows[start:number],
                        index=self.index + start,
                        read=tuple(asked),
                    )
                if not at_end:
                    yield None
                start = number + 1
                asked = []

    def _is_bad(self, number: int, read: "LineReader | None", asked: list[object]) -> bool:
        """Returns whether a line has no answer. Otherwise what is read of it is added to what is asked."""
        line = self.before + number + 1
        if read is not None and line not in self.bad.numbers:
            try:
                asked.append(read(self, number))
            except ValueError as error:
                self.bad.add(line, error)
        return line in self.bad.numbers

    @property
    def is_refused(self) -> bool:
        """Returns whether no line has an answer, after all have been looked at."""
        return all(self.before + number in self.bad.numbers for number in range(1, len(self.lines) + 1))

    def has_text(self, number: int) -> bool:
        """Returns whether line `number` of the chunk has a text that is not blank."""
        texts = self.rows[number].texts if self.rows else self.lines[number : number + 1]
        return any(text.strip() if isinstance(text, str) else text for text in texts)

    def token_ids(self, number: int) -> list[int]:
        """Returns the token ids in line `number` of the chunk. Raises: ValueError if it contains anything else."""
        words = self.lines[number].split()
        if not all(word.isdecimal() for word in words):
            line = self.lines[number][:40]
            raise ValueError(f"{line!r} is no list of token ids: write numbers separated by spaces")
        return [int(word) for word in words]

    def warn(self, line: str) -> None:
        """Writes a warning with the source of the lines to stderr."""
        warn(f"{self.name}: {line}")

    @contextlib.contextmanager
    def reporting(self, activity: str) -> Iterator[dict[str, Any]]:
        """Shows the progress on these lines; yields the arguments for the reports of a `Run` (`Reporting`)."""
        with contextlib.ExitStack() as stack:
            tell = self.progress or stack.enter_context(Progress()).of

            def update(_: str, done: int, total: int) -> None:
                tell(activity, done, len(self.lines))

            update(activity, 0, 0)
            say = stack.enter_context(one_of_each(self.warn))
            yield {"progress": update, "warn": say, "first_line": self.before + 1}

    def naming(self, number: int) -> contextlib.AbstractContextManager[None]:
        """Adds the place of line `number` of the chunk to a mistake that is raised within."""
        return known(file=f"{self.name}, {self.unit} {self.before + number + 1}")


LineReader = Callable[[LineChunk, int], Any]
"""Returns what is asked in line `number` of a chunk. Raises ValueError, with the place, if the line has no answer."""


def columns(block: LineChunk, number: int, wanted: int | None = None) -> Sequence[str]:
    """Returns the one or two texts of a line, separated by a tab. Raises: ValueError if their number is not `wanted`."""
    if block.rows:
        return block.rows[number].texts
    texts = block.lines[number].split("\t")
    if len(texts) > 2 or wanted not in (None, len(texts)):
        raise ValueError(f"{len(texts)} texts separated by tabs: there must be {wanted or 'one or two'}")
    return texts


class TextColumns(NamedTuple):
    """The columns of a table that have the texts of a row."""

    texts: tuple[tuple[int | str, ...], ...] = ()
    """For each text its column, and one that follows it after an empty line; (): not known."""
    header: bool = False
    wanted: int | None = 1
    """Texts of a row; None: one or two."""
    typed: bool = False
    """Whether they come from the command line, and not from the training data."""
    form: Format | None = None
    """The way in which the rows of the training data are written; None: unknown, a file's first rows say it."""
    whole_lines: bool = False
    """Whether the lines of every file are read as they are, whatever its name."""
    sources: Mapping[str, "RecordSource"] = MappingProxyType({})
    """The sources of files that are read as the training data was, by their paths."""

    def numbers(self, table: FileTable) -> list[list[int]]:
        """Returns the numbers of the columns in a table. Raises: ValueError with the remedy if it does not have them."""
        texts = self.texts or self.all_of(table)
        if self.wanted not in (None, len(texts)) or len(texts) > 2:
            names = " ".join(map(str, itertools.chain.from_iterable(texts)))
            origin = "typed" if self.typed else "what the run was trained on"
            raise ValueError(
                f"{table.file}: {self.wanted or 'one or two'} of its columns must be read, but {names} are {origin}: choose by "
                f"--column among {table.shown()}"
            )
        try:
            numbers = [[table.number(column) for column in text] for text in texts]
        except ValueError as error:
            raise ValueError(f"{error}; choose by --column") from None
        last = max(itertools.chain.from_iterable(numbers))
        table.width = table.width or table.usual_width(last + 1)
        if last >= table.width:
            raise ValueError(
                f"{table.file} has no column {last}, counted from 0: choose by --column among {table.shown()}"
            )
        return numbers

    def all_of(self, table: FileTable) -> tuple[tuple[int | str, ...], ...]:
        """Returns all columns of a table whose text columns are unknown. Raises: ValueError for too many or too few columns."""
        table.width = table.usual_width()
        if table.width > (1 if self.wanted == 1 else 2) or self.wanted not in (None, table.width):
            raise ValueError(
                f"{table.file} is a table by its name, and this run was not trained on its columns, {table.shown()}: choose "
                "that of the texts by --column, a number or a name in the header"
            )
        return tuple((number,) for number in range(table.width))


def text_columns(
    run: str, paths: Sequence[str], typed: Sequence[str], wanted: int | None, first: bool = False
) -> TextColumns:
    """Returns the columns that are read of the tables among the files: typed ones, or those of the run's training data.

    typed: numbers from 0, or names in the header. first: if the training data has two texts a row, only the source is read.
    """
    if typed:
        chosen = [int(column) if column.isdecimal() else column for column in typed]
        header = any(isinstance(column, str) for column in chosen)
        return TextColumns(tuple((column,) for column in chosen), header, wanted, typed=True)
    return trained_columns(run, paths, wanted, first) if any(map(container, paths)) else TextColumns(wanted=wanted)


def trained_columns(run: str, paths: Sequence[str], wanted: int | None, first: bool) -> TextColumns:
    """Returns the columns of the run's training data, and sources of the files that are read as that."""
    from flaxformer_lite.files.data.source import RecordSource  # with JAX
    from flaxformer_lite.workdir import open_run

    config = open_run(run).config()
    data, reads = config.data, config.objective.reads
    source = data.train or data.eval or data.test
    sources = [] if source is None else [one for _, one in source.parts("data.train")]
    chosen = {
        (
            one.record.texts if isinstance(one, RecordSource) else (),
            getattr(one, "header", True),
            getattr(one, "form", None),
        )
        for one in sources
    }
    texts, header, form = chosen.pop() if len(chosen) == 1 else ((), False, None)
    is_known = texts or reads == "words" or not sources
    others = {path: data.alike(path, reads) for path in paths if container(path) and is_known}
    alike = {
        path: one
        for path, one in others.items()
        if isinstance(one, RecordSource) and (container(path) != "a table" or not one.record.texts)
    }
    return TextColumns(texts[:1] if first else texts, header and bool(texts), wanted, form=form, sources=alike)


@dataclass(frozen=True)
class Chunks:
    """The chunks of files, which are read again at each iteration."""

    read: Callable[[], Iterator[LineChunk]]

    def __iter__(self) -> Iterator[LineChunk]:
        return self.read()


def chosen_blocks(
    paths: list[str], action: str, columns: TextColumns | None = None, size: int | None = None
) -> Iterable[LineChunk]:
    """Returns the chunks of the files, or of stdin; `action` is the verb of the prompt for typed lines.

    columns: those of the texts in files that are tables by their names; typed ones make every file a table.
    size: lines in a chunk of a file; None: LINES_AT_ONCE.

    A line that is not UTF-8 is reported, and is one of the bad lines of its source.

    Raises: ValueError if a file cannot be read, or there is no stdin.
    """
    columns = columns or TextColumns()
    for path in paths:
        check_lines(path, columns)
    if paths:
        return Chunks(lambda: numbered_chunks(files_blocks(paths, columns, size or LINES_AT_ONCE)))
    if columns.typed:
        raise ValueError("--column is for a table, but stdin is read line by line: give the name of the file")
    if sys.stdin is None:
        raise ValueError("there is no standard input: give a FILE, or pipe lines in")
    return numbered_chunks(typed_blocks(action) if sys.stdin.isatty() else piped_blocks())


def check_lines(path: str, columns: TextColumns) -> None:
    """Raises: ValueError for a file that cannot be read, or not line by line."""
    try:
        check_file(path)
    except ValueError as error:
        if len(path.split()) < 2 or os.path.exists(path):
            raise
        hint = f"for a text itself: echo {shlex.quote(cut(path))} | flaxformer-lite …"
        raise ValueError(f"{error}; {hint}") from None
    if container(path) != "a table" and not columns.whole_lines and path not in columns.sources:
        require_lines(path, "give a file with one text a line, or of a kind that the run was trained on")


def numbered_chunks(blocks: Iterable[LineChunk]) -> Iterator[LineChunk]:
    """Yields the chunks of all sources with the number of lines before each."""
    index = 0
    for block in blocks:
        yield dataclasses.replace(block, index=index)
        index += len(block.lines)


def files_blocks(paths: Sequence[str], columns: TextColumns, size: int) -> Iterator[LineChunk]:
    """Yields the lines of files and the rows of tables, `size` at once, with the share of all files that has been read."""
    for number, path in enumerate(paths):
        read = types.SimpleNamespace(share=0.0)
        is_table = columns.typed or (container(path) and not columns.whole_lines)
        blocks = table_blocks if is_table else file_blocks
        if path in columns.sources:
            blocks = record_blocks
        for block in blocks(path, columns, size, functools.partial(setattr, read, "share")):
            yield dataclasses.replace(block, share=(number + read.share) / len(paths))


def line_groups(lines: Iterable[Line], size: int) -> Iterator[tuple[int, list[Line]]]:
    """Yields lines, `size` at once, with the number of lines before them."""
    rest = iter(lines)
    for before in itertools.count(0, size):
        group = list(itertools.islice(rest, size))
        if not group:
            return
        yield before, group


def file_blocks(path: str, columns: TextColumns, size: int, progress: ReadProgress) -> Iterator[LineChunk]:
    """Yields the lines of a file, `size` at once."""
    bad = BadLines()
    all_lines = itertools.chain.from_iterable(line_chunks(path, progress, bad.of(path)))
    for before, lines in line_groups(all_lines, size):
        yield LineChunk(lines, path, before, bad=bad)


def table_blocks(
    path: str, columns: TextColumns, size: int = LINES_AT_ONCE, progress: ReadProgress = ignore_progress
) -> Iterator[LineChunk]:
    """Yields the rows of a table. One with a line that is not UTF-8, or with other columns than the first ones, is a bad row."""
    undecoded = dict[int, str]()
    lines = itertools.chain.from_iterable(line_chunks(path, progress, undecoded.__setitem__))
    table = open_table(lines, path, columns.header, columns.form)
    if not (table.first or table.names):
        return
    if table.header and 1 in undecoded:
        raise ValueError(f"{path}:1: {undecoded[1]}; this line is the header")
    numbers = columns.numbers(table)
    tell_columns(table, list(itertools.chain.from_iterable(numbers)), columns.typed)
    bad = BadLines()
    for before, rows in line_groups(table_rows(table, numbers, undecoded, bad), size):
        yield LineChunk([row.texts[0] for row in rows], path, before, "row", bad, table, tuple(rows))


def tell_columns(table: FileTable, read: Sequence[int], typed: bool) -> None:
    """Says which columns of a table are read, and what looks wrong about them."""
    path = table.file
    if not typed:
        note(
            f"{path}: the texts are in column {' and '.join(map(str, read))}, counted from 0; --column chooses another"
        )
    for number in read:
        if table.width > len(read) and table.numbers_alone(number):
            warn(f"{path}: column {number} has nothing but numbers in the first rows; the columns are {table.shown()}")
    if table.header_in(read):
        warn(f"{path}:1: this row looks like a header, and is read like the others: if it is one, name it by --column")


def table_rows(
    table: FileTable, numbers: Sequence[Sequence[int]], undecoded: dict[int, str], bad: BadLines
) -> Iterator[TableRow]:
    """Yields the rows of a table with the texts in the columns `numbers`.

    undecoded: lines that are not UTF-8, with the reasons, which come in while it is read.
    """
    from flaxformer_lite.files.records.base import with_input

    last = max(itertools.chain.from_iterable(numbers))
    pairs = itertools.pairwise(itertools.chain(table.rows, [(sys.maxsize, [])]))
    for place, ((line, cells), (next_line, _)) in enumerate(pairs, 1):
        mistakes = list[Mistake]()
        while (first := next(iter(undecoded), next_line)) < next_line:
            mistakes.append(Mistake(undecoded.pop(first), table.file, first))
        if is_blank(cells):
            cells = [""] * table.width
        elif wrong := table.wrong(cells, last):
            mistakes.append(Mistake(wrong, table.file, line))
        if mistakes:
            bad.add(place, mistakes[0])
        present = cells + [""] * (table.width - len(cells))
        texts = (with_input(present[text[0]], present[text[1]] if len(text) > 1 else "") for text in numbers)
        yield TableRow(tuple(texts), cells)


def record_blocks(path: str, columns: TextColumns, size: int, progress: ReadProgress) -> Iterator[LineChunk]:
    """Yields the texts or the words of a file that is read as the training data was. Labels are left out."""
    from flaxformer_lite.files.records.base import BLANK  # with JAX

    width = len(columns.texts or columns.sources[path].record.texts) or 1
    if columns.wanted not in (None, width):
        raise ValueError(
            f"{path}: {columns.wanted} of its texts must be read, but the run was trained on {width}: give a file with one "
            "text a line"
        )
    bad = BadLines()
    for before, records in line_groups(columns.sources[path].asked(progress), size):
        rows = list[TableRow]()
        for place, (*_, texts) in enumerate(records, before + 1):
            if isinstance(texts, Mistake):
                bad.add(place, texts)
                texts = BLANK
            rows.append(TableRow(texts[:width], []))
        lines = [text if isinstance(text, str) else " ".join(text) for (text, *_), _ in rows]
        yield LineChunk(lines, path, before, "row", bad, rows=tuple(rows))


def piped_blocks() -> Iterator[LineChunk]:
    """Yields the lines of a pipe, as they arrive."""
    before, bad = 0, BadLines()
    for lines in stream_lines(sys.stdin.buffer, "stdin", bad.of("stdin")):  # type: ignore[arg-type]  # declared without its read1
        yield LineChunk(lines, "stdin", before, bad=bad)
        before += len(lines)


def typed_blocks(action: str) -> Iterator[LineChunk]:
    """Yields typed lines, each as a chunk, until the end of input."""
    with contextlib.suppress(ImportError):  # without it, input() has no line editing
        import readline  # noqa: F401

    print(f"Type a line to {action}; Ctrl-D ends.", file=sys.stderr)
    bad = BadLines()
    for before in itertools.count():
        try:
            yield LineChunk([input("> " if sys.stdout.isatty() else "")], "stdin", before, bad=bad)
        except EOFError:
            print(file=sys.stderr)
            return
