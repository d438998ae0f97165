"""Progress and warnings on stderr: a live view on a terminal, plain lines elsewhere.

Each line is a record of the logger `flaxformer_lite`, and its one handler writes it. A level above INFO leaves out notes
and bars, as `--quiet` does.
"""

import contextlib
import functools
import logging
import math
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

import rich.progress
from rich.console import Console
from rich.table import Table
from rich.text import Text


class Failure(RuntimeError):
    """A failure that no change of options would have avoided: one line, exit status 1. All processes of a run raise it."""


LONGEST_NOTE = 2000
"""Characters: the longest line on stderr."""
WARNING = "warning: "
"""The beginning of a line that `--quiet` leaves."""
SECONDS_BETWEEN_LINES = 30
"""The time after which a long work writes a line to its log, and without a terminal to stderr."""


LOGGER = logging.getLogger("flaxformer_lite")
"""The logger of all messages: notes at the level INFO, and warnings. The root's handlers, which would say them twice, get none."""


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
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda match: f"\\x{ord(match[0]):02x}", text)


def time_left(task: rich.progress.Task) -> str:
    """Returns the time that an activity has left by its speed; the time since its start where its size is not known."""
    if task.total is None:
        return describe_seconds(task.elapsed or 0)
    return "" if task.time_remaining is None else f"{describe_seconds(task.time_remaining)} left"


class Bars(rich.progress.Progress):
    """A bar for the work and one for an activity within it, and below them lines of facts with a picture each."""

    def __init__(self, console: Console, *, shown: bool) -> None:
        self.facts: dict[str, tuple[str, str]] = {}
        count = rich.progress.TextColumn("{task.fields[count]}")
        super().__init__(
            rich.progress.TextColumn("{task.description}", markup=False),
            rich.progress.BarColumn(30),
            count,
            rich.progress.TimeRemainingColumn(),
            console=console,
            disable=not shown,
            transient=True,
            refresh_per_second=4,
            speed_estimate_period=3600,
            # Else rows for a file would go to the terminal.
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
            get_time=lambda: time.monotonic(),
        )

    def get_renderables(self) -> Iterable[Table]:
        yield self.make_tasks_table(self.tasks)
        facts = Table.grid(padding=(0, 2))
        for label, (text, picture) in list(self.facts.items()):
            facts.add_row(Text(f"  {label}", "dim"), Text(printable(text)) + Text(f"  {picture}", "cyan"))
        yield facts

    def last_in_words(self) -> str:
        """Returns the activity that began last, with how much of it is done, and the facts, in a line."""
        if not self.tasks:
            return "starting"
        task = self.tasks[-1]
        share = "" if task.total is None else f"{task.percentage / 100:.0%}"
        words = f"{task.description}: {', '.join(filter(None, [task.fields['count'], share, time_left(task)]))}"
        return "; ".join([words, *(f"{label} {text}" for label, (text, _) in list(self.facts.items()))])


class Progress:
    """The live view of a long work: on a terminal a bar, facts below it and lines above it; elsewhere lines only.

    An activity within the work, such as an evaluation, has a second bar. Every 30 seconds without another line, the file `log` gets
    the content of the last bar as a line, and without a terminal stderr too. A thread writes this line during long calls that
    report nothing, such as a compilation. `log` gets all lines, with the time of day.

    Args:
        total: The number of steps; None: unknown.
        silent: Show and write nothing.
    """

    def __init__(self, total: int | None = None, log: Path | None = None, *, silent: bool = False):
        self.total, self.silent = total, silent
        self.console = Console(file=cast(IO[str], Stderr()), highlight=False, soft_wrap=True)
        may_show = not silent and LOGGER.isEnabledFor(logging.INFO)
        self.shown = self.console.is_terminal and not self.console.is_dumb_terminal and may_show
        self.bars = Bars(self.console, shown=self.shown)
        self.activity = "starting"
        self.last_line, self.pacing = time.monotonic(), threading.RLock()
        self.log = open(log, "a", encoding="utf-8") if log and not silent else None  # noqa: SIM115
        self.ended, self.pacemaker = threading.Event(), threading.Thread(target=self._keep_pace, daemon=True)

    def __enter__(self) -> "Progress":
        if self.shown:
            self.bars.start()
        if not self.silent:
            self.pacemaker.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        if self.shown:  # rich 13 writes an empty line at the end of bars that are not shown
            self.bars.stop()
        if self.pacemaker.is_alive():
            self.pacemaker.join()
        if self.log:
            self.log.close()

    def say(self, line: str) -> None:
        """Writes a line that stays; with `--quiet` only to the log."""
        self._say(line, logging.INFO)

    def warn(self, line: str) -> None:
        """Writes a warning, which `--quiet` leaves."""
        self._say(line, logging.WARNING)

    def _say(self, line: str, level: int) -> None:
        self.last_line = time.monotonic()
        if not self.silent:
            tell(line, level, self._print, stacklevel=4)
        self._write_log(as_said(line, level))

    def _print(self, line: str) -> None:
        self.console.print(printable(line) if self.console.is_terminal else line, markup=False)

    def update(self, activity: str, step: int | None = None) -> None:
        """Sets the current activity and the step that was reached; ends an activity within it."""
        self.activity = activity
        known = step is not None and self.total is not None
        self._show([activity], step if known else None, self.total, f"{step:,}/{self.total:,}" if known else "")

    def of(self, activity: str, done: int, total: int) -> None:
        """Sets the current activity, and how many of its parts are done; total 0: unknown."""
        self.total = total or None
        self.update(activity, done)

    def within(self, activity: str, done: int = 0, total: int = 0) -> None:
        """Shows an activity within the work until the next `update`, and how many of its parts are done; total 0: unknown."""
        count = f"{done:,}" if done else ""
        if total:
            count = f"{done:,}/{total:,}"
        # A fraction: rich forgets the speed whenever a total changes, as an estimate does.
        share, whole = (done / total, 1.0) if total else (0.0, None)
        self._show([self.activity, activity], share, whole, count)

    def leave_out(self, seconds: float) -> None:
        """Measures the speed anew after some seconds of an activity that does not come again, such as compiling."""
        for task in self.bars.tasks:
            if seconds > 0 and task.description == printable(self.activity):
                self.bars.reset(task.id, completed=int(task.completed))

    def show(self, label: str, text: str, picture: str = "") -> None:
        """Shows a fact below the bar until it is replaced, an empty one not at all; its picture on a terminal only."""
        self.bars.facts.pop(label, None) if not text else self.bars.facts.update({label: (text, picture)})

    def _show(self, activities: Sequence[str], done: float | None, total: float | None, count: str) -> None:
        """Shows the bars of these activities, and how much of the last one is done, if that is known."""
        names = [printable(activity) for activity in activities]
        bars = {task.description: task.id for task in self.bars.tasks}
        for name in bars.keys() - names:
            self.bars.remove_task(bars[name])
        bar = bars[names[-1]] if names[-1] in bars else self.bars.add_task(names[-1], total=None, count="")
        if done is not None:
            self.bars.update(bar, completed=done, total=total, count=count)
        self._pace()

    def _write_log(self, line: str) -> None:
        if self.log:
            self.log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")
            self.log.flush()

    def _pace(self) -> None:
        """Writes the current activity as a line if none was written for 30 seconds: to the log, without a bar to stderr too."""
        with self.pacing:
            if time.monotonic() - self.last_line >= SECONDS_BETWEEN_LINES:
                self.last_line = time.monotonic()
                (self._write_log if self.shown else self.say)(self.bars.last_in_words())

    def _keep_pace(self) -> None:
        """Writes those lines while the work reports nothing. Runs in a thread."""
        while not self.ended.wait(self.last_line + SECONDS_BETWEEN_LINES - time.monotonic()):
            with contextlib.suppress(OSError):  # of a full disk; the work itself meets it with its next line
                self._pace()


def curve(values: Sequence[float]) -> str:
    """Returns the course of a number as a line of at most 40 small bars, each the mean of some values."""
    finite = [value for value in values if math.isfinite(value)]
    size = max(1, math.ceil(len(finite) / 40))
    bars = [finite[i : i + size] for i in range(0, len(finite), size)]
    means = [sum(bar) / len(bar) for bar in bars]
    low, high = min(means, default=0), max(means, default=0)
    scale = 7 / (high - low) if high > low else 0.0
    return "".join("▁▂▃▄▅▆▇█"[round((mean - low) * scale)] for mean in means)


def describe_seconds(seconds: float) -> str:
    """Returns a duration in its two largest units: 40 s, 2 min 5 s, 3 h 20 min."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, for example "1 batch", "2,000 batches"."""
    plural = noun + ("es" if noun.endswith(("ch", "x")) else "s")
    return f"{number:,} {noun if number == 1 else plural}"


def tell(line: str, level: int, write: Callable[[str], None], stacklevel: int = 3) -> None:
    """Logs a message. write: how the logger's own handler writes it. stacklevel: the caller whose place the record has."""
    LOGGER.log(level, "%s", line, extra={"write": write}, stacklevel=stacklevel)


def as_said(line: str, level: int) -> str:
    return WARNING + line if level == logging.WARNING else line


class OnStderr(logging.Handler):
    """Writes messages as commands show them."""

    def emit(self, record: logging.LogRecord) -> None:
        getattr(record, "write", write_line)(as_said(record.getMessage(), record.levelno))


LOGGER.addHandler(OnStderr())
LOGGER.propagate = False
LOGGER.setLevel(LOGGER.level or logging.INFO)  # a level that a script has set already stays


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within it, only warnings are written."""
    level = LOGGER.level
    LOGGER.setLevel(max(level, logging.WARNING))
    try:
        yield
    finally:
        LOGGER.setLevel(level)


def warn(line: str) -> None:
    tell(line, logging.WARNING, write_line)


@contextlib.contextmanager
def one_of_each(tell: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Yields a function for warnings that begin with the number of a line.

    In the end `tell` gets one line for all that differ only in their numbers: the first, and the lines of the others.
    """
    kinds: dict[str, list[str]] = {}
    try:
        yield lambda line: kinds.setdefault(re.sub("[0-9]+", "", line), []).append(line)
    finally:
        for first, *others in kinds.values():
            numbers = dict[str, None]()
            for line in others:
                numbers |= dict.fromkeys(re.findall("[0-9]+", line)[:1])
            more = f" (and {len(others):,} more, such as line {', '.join(list(numbers)[:5])})" if others else ""
            tell(first + more)


warn_once = functools.cache(warn)
"""Warns with each line once, also where a start reads the same data several times."""


def note(line: str) -> None:
    """Writes a line to stderr, unless the process is quiet."""
    tell(line, logging.INFO, write_line)


note_once = functools.cache(note)
"""Writes each line once, also where many calls have the same to say."""


def write_line(line: str) -> None:
    """Writes a line to stderr: without line breaks, without its middle if it is long, and printable on a terminal."""
    stream = Stderr()
    line = " ".join(line.splitlines())
    if len(line) > LONGEST_NOTE:
        line = f"{line[: LONGEST_NOTE * 3 // 4]} … {line[-LONGEST_NOTE // 4 :]}"
    stream.write((printable(line) if stream.isatty() else line) + "\n")


class Quiet(logging.Filter):
    """Drops what a package logs below errors, and each exception that passed through it: that reaches the caller anyway.

    One full disk is logged by five threads. Errors without an exception have at most 300 characters. Other packages' lines pass.
    """

    def __init__(self, package: str) -> None:
        super().__init__()
        self.folder = f"{os.sep}{package}{os.sep}"

    def filter(self, record: logging.LogRecord) -> bool:
        raised = record.exc_info[2] if record.exc_info else None
        files = [record.pathname, *(frame.f_code.co_filename for frame, _ in traceback.walk_tb(raised))]
        if not any(self.folder in file for file in files):
            return True
        record.msg = record.getMessage()[:300]
        record.args = ()
        return record.levelno >= logging.ERROR and not record.exc_info
