"""Progress and warnings on stderr: a bar on a terminal, plain lines elsewhere; suggestions for mistyped names; quiet libraries."""

import collections
import difflib
import logging
import os
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


class Failure(RuntimeError):
    """An end that no other command line would have avoided: one line and exit status 1. All processes of a run raise it."""


LONGEST_NOTE = 2000
"""Characters: the longest line on stderr."""


class Stderr:
    """The current sys.stderr, replaced by the null device once writing fails: a closed terminal stops no training."""

    def __init__(self) -> None:
        self.file = sys.stderr  # None where it was closed before Python started

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, text: str) -> int:
        try:
            if self.file is not None:
                self.file.write(text)
                self.file.flush()
        except OSError:
            # Replaces the file itself: what is still in its buffer would fail again when Python ends.
            with open(os.devnull, "wb") as null:
                os.dup2(null.fileno(), self.file.fileno())
        return len(text)

    def flush(self) -> None:
        """Does nothing: every write flushes."""

    def isatty(self) -> bool:
        return self.file is not None and self.file.isatty()


class Terminal:
    """A terminal's stream of text on which control characters are written as escapes: `\\x1b` in place of ESC."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, text: str) -> int:
        return int(self.file.write(printable(text)))


def printable(text: str) -> str:
    """Returns a text that moves no cursor and types nothing: tabs and line breaks are the only control characters."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: f"\\x{ord(found[0]):02x}", text)


class Progress:
    """A bar over `total` steps and lines above it; lines are also appended to the file `log`, with the time of day.

    A silent one shows and writes nothing.
    """

    def __init__(self, total: int, log: Path | None = None, *, silent: bool = False):
        self.console = Console(file=cast(IO[str], Stderr()), highlight=False, soft_wrap=True, quiet=silent)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[details]}"),
            TimeRemainingColumn(compact=True),
        )
        self.bar = Bar(*columns, console=self.console, transient=True, disable=silent or not self.console.is_terminal)
        self.task = self.bar.add_task("starting", total=total, details="")
        self.log = open(log, "a", encoding="utf-8") if log and not silent else None  # noqa: SIM115

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.bar.disable:  # else Rich 13 writes an empty line
            self.bar.stop()
        if self.log:
            self.log.close()

    def say(self, line: str) -> None:
        """Writes a line that stays."""
        self.console.print(printable(line) if self.console.is_terminal else line, markup=False)
        if self.log:
            self.log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")
            self.log.flush()

    def update(self, description: str, step: int | None = None, details: str | None = None) -> None:
        """Updates the bar: the current activity, the step, and details."""
        self.bar.update(self.task, description=description, completed=step)
        if details is not None:
            self.bar.update(self.task, details=details)


class Countdown:
    """The progress of a long activity and its time left: on the bar, and where there is none as a line every 30 seconds."""

    def __init__(self, progress: Progress, activity: str) -> None:
        self.progress, self.activity = progress, activity
        self.said = time.monotonic()
        self.points: collections.deque[tuple[float, float]] = collections.deque()
        """Times and fractions of the last two minutes."""

    def __call__(self, fraction: float, done: int) -> None:
        """Shows the fraction and the number of items that are done."""
        now = time.monotonic()
        self.points.append((now, fraction))
        while len(self.points) > 2 and now - self.points[1][0] > 120:
            self.points.popleft()
        start, before = self.points[0]
        line = f"{self.activity}: {done:,}, {fraction:.0%}"
        if fraction > before:
            line += f", {describe_seconds((1 - fraction) * (now - start) / (fraction - before))} left"
        self.progress.update(line)
        if not self.progress.console.is_terminal and now - self.said >= 30:
            self.said = now
            self.progress.say(line)


def describe_seconds(seconds: float) -> str:
    """Returns a duration in its two largest units: 40 s, 2 min 5 s, 3 h 20 min."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def suggest(name: str, names: Iterable[str], most: int = 1, cutoff: float = 0.6) -> str:
    """Returns the end of a message that offers the names most like a mistyped one; empty where none is like it."""
    near = difflib.get_close_matches(name, list(names), most, cutoff)
    return f"; perhaps you meant {' or '.join(near)}" if near else ""


def warn(line: str) -> None:
    """Writes a one-line warning to stderr."""
    note(f"warning: {line}")


def note(line: str) -> None:
    """Writes a line to stderr: without line breaks, without its middle if it is long, and printable on a terminal."""
    stream, line = Stderr(), " ".join(line.splitlines())
    if len(line) > LONGEST_NOTE:
        line = f"{line[: LONGEST_NOTE * 3 // 4]} … {line[-LONGEST_NOTE // 4 :]}"
    stream.write((printable(line) if stream.isatty() else line) + "\n")


class Quiet(logging.Filter):
    """Drops what a package logs through absl below errors; lines of other packages pass.

    Errors are logged without tracebacks, which fill many screens for one full disk. The exception reaches the caller anyway.
    """

    def __init__(self, package: str) -> None:
        super().__init__()
        self.folder = f"{os.sep}{package}{os.sep}"

    def filter(self, record: logging.LogRecord) -> bool:
        if self.folder not in record.pathname:
            return True
        record.exc_info = record.exc_text = None
        return record.levelno >= logging.ERROR
