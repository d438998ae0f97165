"""Progress and warnings on stderr: a live view on a terminal, plain lines elsewhere; suggestions for mistyped names."""

import collections
import contextlib
import difflib
import logging
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text


class Failure(RuntimeError):
    """An end that no other command line would have avoided: one line and exit status 1. All processes of a run raise it."""


LONGEST_NOTE = 2000
"""Characters: the longest line on stderr."""
WARNING = "warning: "
"""The beginning of a line that `--quiet` leaves."""
COMPILING = "compiling"
"""The activity within a work that comes once: meanwhile the clock of the time left stands still."""
SECONDS_BETWEEN_LINES = 30
"""The time after which a long work writes a line to its log, and without a terminal to stderr."""


@dataclass
class Verbosity:
    """The amount that this process writes to stderr, as its command line says."""

    quiet: bool = False
    """Whether only warnings and errors are written."""


verbosity = Verbosity()


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


class Bar:
    """One activity of a long work: its name, how much of it is done, and the time left."""

    def __init__(self, activity: str, window: float) -> None:
        self.activity, self.window = activity, window
        self.count, self.fraction = "", math.nan
        self.started = time.monotonic()
        self.points: collections.deque[tuple[float, float]] = collections.deque()
        """Times and fractions of the last `window` seconds, a hundredth of it apart."""
        self.held: float | None = None
        """The time at which the clock stands still, if it does."""

    def move(self, fraction: float, count: str) -> None:
        """Sets the fraction that is done, and the count that is shown."""
        now, self.held = time.monotonic(), None
        if not self.points or now - self.points[-1][0] >= self.window / 100:
            self.points.append((now, fraction))
        self.fraction, self.count = fraction, count  # now that there is a point, which the view's thread reads
        while len(self.points) > 2 and now - self.points[1][0] > self.window:
            self.points.popleft()

    def leave_out(self, seconds: float) -> None:
        """Leaves out the last `seconds`, as of a compiling that does not come again, from the speed."""
        self.points = collections.deque((time + seconds, fraction) for time, fraction in self.points)
        self.held = None

    @property
    def left(self) -> str:
        """The time left by the speed of the last `window` seconds; the time since the start where no fraction is known."""
        held, fraction = self.held, self.fraction  # read once: another thread may move the bar
        now = time.monotonic() if held is None else held
        if math.isnan(fraction):
            return describe_seconds(now - self.started)
        start, before = self.points[0]
        if fraction <= before:
            return ""
        return f"{describe_seconds((1 - fraction) * (now - start) / (fraction - before))} left"

    def __str__(self) -> str:
        share = "" if math.isnan(self.fraction) else f"{self.fraction:.0%}"
        return f"{self.activity}: {', '.join(filter(None, [self.count, share, self.left]))}"


class Progress:
    """The live view of a long work: on a terminal a bar, facts below it and lines above it; elsewhere lines only.

    An activity within the work, such as an evaluation, has a second bar. What the bars show is a line in the file `log` every 30
    seconds if no other line was written meanwhile, without a terminal on stderr too. A thread writes this line during long calls
    that report nothing, such as a compiling. `log` gets all lines, with the time of day.

    Args:
        total: The number of steps; None: unknown.
        silent: Show and write nothing.
    """

    def __init__(self, total: int | None = None, log: Path | None = None, *, silent: bool = False):
        self.total, self.silent, self.quiet = total, silent, silent or verbosity.quiet
        self.console = Console(file=cast(IO[str], Stderr()), highlight=False, soft_wrap=True)
        self.work, self.inner, self.facts = Bar("starting", 3600), cast(Bar | None, None), dict[str, tuple[str, str]]()
        on_terminal = self.console.is_terminal and not self.console.is_dumb_terminal and not self.quiet
        self.live = Live(
            console=self.console,
            get_renderable=self.view,
            transient=True,
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),  # else rows for a file would go to the terminal
        ) if on_terminal else None  # fmt: skip
        self.last_line, self.pacing = time.monotonic(), threading.RLock()
        self.log = open(log, "a", encoding="utf-8") if log and not silent else None  # noqa: SIM115
        self.ended, self.pacemaker = threading.Event(), threading.Thread(target=self._keep_pace, daemon=True)

    def __enter__(self) -> "Progress":
        if self.live:
            self.live.start()
        if not self.silent:
            self.pacemaker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        if self.live:
            self.live.stop()
        if self.pacemaker.is_alive():
            self.pacemaker.join()
        if self.log:
            self.log.close()

    def say(self, line: str) -> None:
        """Writes a line that stays; with `--quiet` only if it is a warning."""
        self.last_line = time.monotonic()
        if not (self.silent or (self.quiet and not line.startswith(WARNING))):
            self.console.print(printable(line) if self.console.is_terminal else line, markup=False)
        self._write_log(line)

    def warn(self, line: str) -> None:
        """Writes a warning, which `--quiet` leaves."""
        self.say(WARNING + line)

    def update(self, activity: str, step: int | None = None) -> None:
        """Sets the current activity and the step that was reached; ends an activity within it."""
        if activity != self.work.activity:
            self.work = Bar(activity, 3600)
        if step is not None and self.total:
            self.work.move(step / self.total, f"{step:,}/{self.total:,}")
        self.inner = None
        self._pace()

    def leave_out(self, seconds: float) -> None:
        """Leaves out the last `seconds` from the speed that the time left is computed by."""
        self.work.leave_out(seconds)

    def within(self, activity: str, fraction: float = math.nan, count: str = "") -> None:
        """Shows an activity within the work until the next `update`."""
        if self.inner is None or self.inner.activity != activity:
            self.inner = Bar(activity, 120)
            self.work.held = time.monotonic() if activity == COMPILING else None
        if not math.isnan(fraction):
            self.inner.move(fraction, count)
        self._pace()

    def counting(self, activity: str) -> Callable[[float, int], None]:
        """Returns a function that shows the fraction and the number of items that are done of an activity within the work."""
        return lambda fraction, done: self.within(activity, fraction, f"{done:,}")

    def show(self, label: str, text: str, picture: str = "") -> None:
        """Shows a fact below the bar until it is replaced, an empty one not at all; its picture on a terminal only."""
        self.facts[label] = text, picture

    def view(self) -> Group:
        """Returns the bars and the facts, as they are now."""
        bars, facts = Table.grid(padding=(0, 2)), Table.grid(padding=(0, 2))
        for bar in filter(None, (self.work, self.inner)):
            known = not math.isnan(bar.fraction)
            line = ProgressBar(1.0, bar.fraction if known else 0.0, width=30, pulse=not known)
            bars.add_row(printable(bar.activity), line, Text(bar.count), Text(bar.left))
        for label, (text, picture) in [(label, fact) for label, fact in list(self.facts.items()) if fact[0]]:
            facts.add_row(Text(f"  {label}", "dim"), Text(printable(text)) + Text(f"  {picture}", "cyan"))
        return Group(bars, facts)

    def _write_log(self, line: str) -> None:
        if self.log:
            self.log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")
            self.log.flush()

    def _pace(self) -> None:
        """Writes the current activity as a line if none was written for 30 seconds: to the log, without a bar to stderr too."""
        with self.pacing:
            if time.monotonic() - self.last_line >= SECONDS_BETWEEN_LINES:
                self.last_line = time.monotonic()
                facts = (f"{label} {text}" for label, (text, _) in list(self.facts.items()) if text)
                (self._write_log if self.live else self.say)("; ".join([str(self.inner or self.work), *facts]))

    def _keep_pace(self) -> None:
        """Writes those lines while the work reports nothing. Runs in a thread."""
        while not self.ended.wait(self.last_line + SECONDS_BETWEEN_LINES - time.monotonic()):
            with contextlib.suppress(OSError):  # of a full disk; the work itself meets it with its next line
                self._pace()


class Curve:
    """The course of a number as a line of small bars, all of it in 20 to 40 of them. `every` values are one bar's mean."""

    BARS, MOST = "▁▂▃▄▅▆▇█", 40

    def __init__(self) -> None:
        self.means: list[float] = []
        self.every, self.total, self.count = 1, 0.0, 0

    def add(self, value: float) -> None:
        """Adds the next value; one that is not finite is left out."""
        if not math.isfinite(value):
            return
        self.total, self.count = self.total + value, self.count + 1
        if self.count == self.every:
            self.means.append(self.total / self.count)
            self.total, self.count = 0.0, 0
        if len(self.means) == self.MOST:
            self.means = [(a + b) / 2 for a, b in zip(self.means[::2], self.means[1::2], strict=True)]
            self.every *= 2

    def __str__(self) -> str:
        if not self.means:
            return ""
        low, high = min(self.means), max(self.means)
        scale = (len(self.BARS) - 1) / (high - low) if high > low else 0.0
        return "".join(self.BARS[round((mean - low) * scale)] for mean in self.means)


def describe_seconds(seconds: float) -> str:
    """Returns a duration in its two largest units: 40 s, 2 min 5 s, 3 h 20 min."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, for example "1 batch", "2,000 batches"."""
    plural = noun + ("es" if noun.endswith(("ch", "x")) else "s")
    return f"{number:,} {noun if number == 1 else plural}"


def suggest(name: str, names: Iterable[str], most: int = 1, cutoff: float = 0.6) -> str:
    """Returns the end of a message that offers the names most like a mistyped one; empty where none is like it."""
    near = difflib.get_close_matches(name, list(names), most, cutoff)
    return f"; perhaps you meant {' or '.join(near)}" if near else ""


def warn(line: str) -> None:
    """Writes a one-line warning to stderr."""
    write_line(WARNING + line)


def note(line: str) -> None:
    """Writes a line to stderr, unless the process is quiet."""
    if not verbosity.quiet:
        write_line(line)


def write_line(line: str) -> None:
    """Writes a line to stderr: without line breaks, without its middle if it is long, and printable on a terminal."""
    stream, line = Stderr(), " ".join(line.splitlines())
    if len(line) > LONGEST_NOTE:
        line = f"{line[: LONGEST_NOTE * 3 // 4]} … {line[-LONGEST_NOTE // 4 :]}"
    stream.write((printable(line) if stream.isatty() else line) + "\n")


class Quiet(logging.Filter):
    """Drops what a package logs through absl below errors; lines of other packages pass.

    Errors are logged without tracebacks, which fill many screens for one full disk, and in at most 300 characters. The exception
    reaches the caller anyway.
    """

    def __init__(self, package: str) -> None:
        super().__init__()
        self.folder = f"{os.sep}{package}{os.sep}"

    def filter(self, record: logging.LogRecord) -> bool:
        if self.folder not in record.pathname:
            return True
        record.exc_info = record.exc_text = None
        record.msg, record.args = record.getMessage()[:300], ()
        return record.levelno >= logging.ERROR
