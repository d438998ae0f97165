"""Lines for a command to answer, in blocks: of files, of a pipe as they arrive, or typed at a prompt."""

import argparse
import contextlib
import itertools
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

from flaxformer_lite.console import warn
from flaxformer_lite.text.files import read_lines, stream_lines

LINES_AT_ONCE = 4096
"""Results are written after that many lines of a file, so that a long one does not wait for its end."""


class LineChunk(NamedTuple):
    """Lines that are answered together."""

    lines: list[str]
    name: str
    """Where they are from, for messages."""
    before: int
    """How many lines there are before them."""
    unit: str = "line"
    """What one of them is called."""

    def place(self, number: int) -> str:
        """Where the line is that has this number in the block."""
        return f"{self.name}, {self.unit} {self.before + number + 1}"

    def warn(self, line: str) -> None:
        """A warning on stderr that says where the lines are from."""
        warn(f"{self.name}: {line}")

    @contextlib.contextmanager
    def naming(self, first: int = 0) -> Iterator[None]:
        """Says of an error that begins with the number of a line where that is; prompts are counted from `first`."""
        try:
            yield
        except ValueError as error:
            if found := re.match(r"prompt (\d+)", str(error)):
                raise ValueError(self.place(int(found[1]) - first) + str(error)[found.end() :]) from None
            raise ValueError(f"{self.name}, {error}") if str(error).startswith("line ") else error from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of every command that answers lines with a run."""
    parser.add_argument("folder", metavar="RUN", help="the run folder")
    parser.add_argument(
        "files", metavar="FILE", nargs="*", default=[], help="text files, plain or gzipped; by default stdin"
    )
    parser.add_argument("--weights", help="last, best, ema or average:N; by default the config's weights")


def columns(block: LineChunk, number: int, wanted: int | None = None) -> list[str]:
    """The texts of a line with tabs between them, one or two. Raises: ValueError where there are others than `wanted`."""
    texts = block.lines[number].split("\t")
    if len(texts) > 2 or wanted not in (None, len(texts)):
        raise ValueError(
            f"{block.place(number)}: {len(texts)} texts with tabs between them, but {wanted or 'one or two'} are read"
        )
    return texts


def chosen_blocks(paths: list[str], wish: str) -> Iterator[LineChunk]:
    """The blocks of the files, or of stdin; `wish` says at a prompt what a line is typed for.

    Raises: ValueError where a file cannot be read, or there is no stdin.
    """
    if paths:
        return file_blocks([(path, read_lines(path)) for path in paths])
    if sys.stdin is None:
        raise ValueError("there is no standard input: give a FILE, or pipe lines in")
    return typed_blocks(wish) if sys.stdin.isatty() else piped_blocks()


def file_blocks(files: list[tuple[str, list[str]]]) -> Iterator[LineChunk]:
    for path, lines in files:
        for before in range(0, len(lines), LINES_AT_ONCE):
            yield LineChunk(lines[before : before + LINES_AT_ONCE], path, before)


def piped_blocks() -> Iterator[LineChunk]:
    before = 0
    for lines in stream_lines(sys.stdin.buffer, "stdin"):  # type: ignore[arg-type]  # declared without its read1
        yield LineChunk(lines, "stdin", before)
        before += len(lines)


def typed_blocks(wish: str) -> Iterator[LineChunk]:
    """Line by line until the end of input."""
    with contextlib.suppress(ImportError):  # where there is none, input() has no line editing
        import readline  # noqa: F401

    print(f"Type a line to {wish}; Ctrl-D ends.", file=sys.stderr)
    for before in itertools.count():
        try:
            yield LineChunk([input("> " if sys.stdout.isatty() else "")], "stdin", before)
        except EOFError:
            print(file=sys.stderr)
            return
