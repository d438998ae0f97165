"""Input lines of a command, in chunks: of files, of a pipe as they arrive, or typed."""

import argparse
import contextlib
import itertools
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from flaxformer_lite.bounds import cut
from flaxformer_lite.cli.options import add_weights
from flaxformer_lite.console import Progress, warn
from flaxformer_lite.text.files import BadLine, check_file, line_chunks, read_lines, stream_lines

LINES_AT_ONCE = 4096
"""Lines of a file in a chunk; results are written after each chunk."""

MOST_BAD_LINES = 10
"""Lines that a command warns of one by one."""


class LineChunk(NamedTuple):
    """Lines that are processed together."""

    lines: list[str]
    name: str
    """Source of the lines, for messages."""
    before: int
    """Number of lines before these in the source."""
    unit: str = "line"
    """Name of one line in messages."""

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
    def naming(self, first: int = 0) -> Iterator[None]:
        """Adds the source to errors that name the number of a line or prompt; prompts are counted from `first`."""
        try:
            yield
        except ValueError as error:
            if found := re.match(r"prompt (\d+)", str(error)):
                raise ValueError(self.place(int(found[1]) - first) + str(error)[found.end() :]) from None
            raise ValueError(f"{self.name}, {error}") if str(error).startswith("line ") else error from None


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


def chosen_blocks(paths: list[str], action: str, *, keep_bad: bool = False) -> Iterator[LineChunk]:
    """Returns the chunks of the files, or of stdin; `action` is the verb of the prompt for typed lines.

    keep_bad: a line that is not UTF-8 is reported, and counts as an empty one.

    Raises: ValueError if a file cannot be read, or there is no stdin.
    """
    for path in paths:
        with naming_the_pipe(path):
            check_file(path)
    if paths and keep_bad:
        return file_blocks(
            (path, itertools.chain.from_iterable(line_chunks(path, bad_line=reporting(path)))) for path in paths
        )
    if paths:
        return file_blocks([(path, iter(read_lines(path))) for path in paths])
    if sys.stdin is None:
        raise ValueError("there is no standard input: give a FILE, or pipe lines in")
    return typed_blocks(action) if sys.stdin.isatty() else piped_blocks(reporting("stdin") if keep_bad else None)


@contextlib.contextmanager
def naming_the_pipe(path: str) -> Iterator[None]:
    """Adds to the error of a missing file how a text is passed, if its name looks like a text."""
    try:
        yield
    except ValueError as error:
        if len(path.split()) < 2 or os.path.exists(path):
            raise
        raise ValueError(f"{error}; for a text itself: echo {shlex.quote(cut(path))} | flaxformer-lite …") from None


def reporting(name: str) -> BadLine:
    """Returns a function that warns of the first bad lines of the source."""
    numbers = itertools.count(1)

    def report(line: int, reason: str) -> None:
        number = next(numbers)
        if number <= MOST_BAD_LINES:
            last = "; further ones are not listed" if number == MOST_BAD_LINES else ""
            warn(f"{name}, line {line}: {reason}; its answer is empty{last}")

    return report


def file_blocks(files: Iterable[tuple[str, Iterator[str]]]) -> Iterator[LineChunk]:
    for path, lines in files:
        for before in itertools.count(0, LINES_AT_ONCE):
            if not (block := list(itertools.islice(lines, LINES_AT_ONCE))):
                break
            yield LineChunk(block, path, before)


def piped_blocks(bad_line: BadLine | None) -> Iterator[LineChunk]:
    before = 0
    for lines in stream_lines(sys.stdin.buffer, "stdin", bad_line):  # type: ignore[arg-type]  # declared without its read1
        yield LineChunk(lines, "stdin", before)
        before += len(lines)


def typed_blocks(action: str) -> Iterator[LineChunk]:
    """Yields typed lines, each as a chunk, until the end of input."""
    with contextlib.suppress(ImportError):  # without it, input() has no line editing
        import readline  # noqa: F401

    print(f"Type a line to {action}; Ctrl-D ends.", file=sys.stderr)
    for before in itertools.count():
        try:
            yield LineChunk([input("> " if sys.stdout.isatty() else "")], "stdin", before)
        except EOFError:
            print(file=sys.stderr)
            return
