"""Input lines of a command, in chunks: of files, of a pipe as they arrive, or typed."""

import argparse
import contextlib
import dataclasses
import itertools
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from flaxformer_lite.base.bounds import cut
from flaxformer_lite.base.console import Progress, warn
from flaxformer_lite.cli.options import add_weights
from flaxformer_lite.text.files import BadLine, check_file, line_chunks, stream_lines

LINES_AT_ONCE = 4096
"""Lines of a file in a chunk; results are written after each chunk."""

MOST_BAD_LINES = 10
"""Lines that a command warns of one by one."""


class BadLines:
    """Lines of one source that have no answer: warns of the first ones, and remembers all."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()
        """Counted from 1."""

    def add(self, number: int, message: str) -> None:
        """Adds a line; the message names it, and why it has no answer."""
        self.numbers.add(number)
        if len(self.numbers) <= MOST_BAD_LINES:
            last = "; further ones are not listed" if len(self.numbers) == MOST_BAD_LINES else ""
            warn(f"{message}; its answer is empty{last}")

    def of(self, name: str) -> BadLine:
        """Returns a function that adds the lines of a source that are no text."""
        return lambda number, reason: self.add(number, f"{name}, line {number}: {reason}")


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

    def answerable(self, check: "LineCheck | None" = None) -> Iterator["LineChunk | None"]:
        """Yields the lines in order: good ones in chunks, and None for each bad one.

        check: raises ValueError, with the place, if line `number` of a chunk has no answer; it is reported, and counts as bad.
        """
        start = 0
        for number in range(len(self.lines) + 1):
            at_end = number == len(self.lines)
            if at_end or self._is_bad(number, check):
                if start < number:
                    yield dataclasses.replace(self, lines=self.lines[start:number], before=self.before + start)
                if not at_end:
                    yield None
                start = number + 1

    def _is_bad(self, number: int, check: "LineCheck | None") -> bool:
        line = self.before + number + 1
        if check is not None and line not in self.bad.numbers:
            try:
                check(self, number)
            except ValueError as error:
                self.bad.add(line, str(error))
        return line in self.bad.numbers

    def place(self, number: int) -> str:
        """Returns source and number of line `number` of the chunk, for messages."""
        return f"{self.name}, {self.unit} {self.before + number + 1}"

    def token_ids(self, number: int) -> list[int]:
        """Returns the token ids in line `number` of the chunk. Raises: ValueError if it contains anything else."""
        words = self.lines[number].split()
        if not all(word.isdecimal() for word in words):
            line = self.lines[number][:40]
            raise ValueError(
                f"{self.place(number)}: {line!r} is no list of token ids: write numbers separated by spaces"
            )
        return [int(word) for word in words]

    def warn(self, line: str) -> None:
        """Writes a warning with the source of the lines to stderr."""
        warn(f"{self.name}: {line}")

    @contextlib.contextmanager
    def reporting(self, activity: str) -> Iterator[dict[str, Any]]:
        """Shows the progress on these lines; yields the arguments by which a `Run` reports on them (`Reporting`)."""
        with Progress(len(self.lines)) as progress:
            progress.update(activity, 0)

            def update(done: int, total: int) -> None:
                progress.update(activity, done)

            yield {"progress": update, "warn": self.warn, "first_line": self.before + 1}

    @contextlib.contextmanager
    def naming(self, number: int) -> Iterator[None]:
        """Adds the place of line `number` of the chunk to errors, in place of the number of a source, prompt or line."""
        try:
            yield
        except ValueError as error:
            message, place = str(error), self.place(number)
            named = re.match(r"(source|prompt|line) \d+", message)
            raise ValueError(place + message[named.end() :] if named else f"{place}: {message}") from None


LineCheck = Callable[[LineChunk, int], object]
"""Raises ValueError, with the place, if line `number` of a chunk has no answer."""


def answer_lines(
    blocks: Iterable[LineChunk],
    answer: Callable[[LineChunk], Iterable[str]],
    check: LineCheck | None = None,
    empty: Callable[[], Iterable[str]] = lambda: [""],
) -> None:
    """Prints the answers to all lines, in their order, after each chunk; for a bad line `empty`."""
    for block in blocks:
        for part in block.answerable(check):
            for line in empty() if part is None else answer(part):
                print(line)
        sys.stdout.flush()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of commands that process lines with a run."""
    parser.add_argument("folder", metavar="RUN", help="the run folder")
    parser.add_argument(
        "files", metavar="FILE", nargs="*", default=[], help="text files, plain or gzipped; default: stdin"
    )
    add_weights(parser)


def columns(block: LineChunk, number: int, wanted: int | None = None) -> list[str]:
    """Returns the one or two texts of a line, separated by a tab. Raises: ValueError if their number is not `wanted`."""
    texts = block.lines[number].split("\t")
    if len(texts) > 2 or wanted not in (None, len(texts)):
        raise ValueError(
            f"{block.place(number)}: {len(texts)} texts separated by tabs: there must be {wanted or 'one or two'}"
        )
    return texts


def chosen_blocks(paths: list[str], action: str) -> Iterator[LineChunk]:
    """Returns the chunks of the files, or of stdin; `action` is the verb of the prompt for typed lines.

    A line that is not UTF-8 is reported, and is one of the bad lines of its source.

    Raises: ValueError if a file cannot be read, or there is no stdin.
    """
    for path in paths:
        try:
            check_file(path)
        except ValueError as error:
            if len(path.split()) < 2 or os.path.exists(path):
                raise
            hint = f"for a text itself: echo {shlex.quote(cut(path))} | flaxformer-lite …"
            raise ValueError(f"{error}; {hint}") from None
    if paths:
        return itertools.chain.from_iterable(map(file_blocks, paths))
    if sys.stdin is None:
        raise ValueError("there is no standard input: give a FILE, or pipe lines in")
    return typed_blocks(action) if sys.stdin.isatty() else piped_blocks()


def file_blocks(path: str) -> Iterator[LineChunk]:
    """Yields the lines of a file."""
    bad = BadLines()
    lines = itertools.chain.from_iterable(line_chunks(path, bad_line=bad.of(path)))
    for before in itertools.count(0, LINES_AT_ONCE):
        if not (block := list(itertools.islice(lines, LINES_AT_ONCE))):
            break
        yield LineChunk(block, path, before, bad=bad)


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
