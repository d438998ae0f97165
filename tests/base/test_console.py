"""Oracles: lines written by hand. A closed terminal or pipe is tested with a whole training in tests/training/test_loop.py."""

import contextlib
import fcntl
import io
import logging
import math
import os
import pty
import re
import struct
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import rich.progress
from rich.console import Console

from flaxformer_lite.base import console
from flaxformer_lite.base.console import (
    LONGEST_NOTE,
    Progress,
    Terminal,
    curve,
    describe_seconds,
    note,
    one_of_each,
    quiet,
    warn,
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the console reads, as the one item of a list."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_lines_go_to_stderr_and_to_the_log_which_grows(tmp_path: Path, capsys: pytest.CaptureFixture):
    for line in ("one [bold]", "two"):
        with Progress(3, tmp_path / "log") as progress:
            progress.update("working", 1)
            progress.say(line)
    assert capsys.readouterr() == ("", "one [bold]\ntwo\n")
    times, lines = zip(*(line.split("  ") for line in (tmp_path / "log").read_text().splitlines()), strict=True)
    assert lines == ("one [bold]", "two") and all(len(time) == len("2026-11-20 12:00:00") for time in times)


def test_a_silent_one_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture):
    with Progress(3, tmp_path / "log", silent=True) as progress:
        progress.say("one")
    assert capsys.readouterr() == ("", "") and not (tmp_path / "log").exists()


def test_a_warning_without_a_stderr_is_lost(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """As after `2>&-` in a shell: Python then has None in its place."""
    warn("careful")
    assert capsys.readouterr().err == "warning: careful\n"
    monkeypatch.setattr(sys, "stderr", None)
    warn("careful")


def test_a_long_activity_is_a_line_every_30_seconds_without_a_terminal(
    clock: list[float], capsys: pytest.CaptureFixture
):
    """Oracle: worked by hand; a hundredth takes a second. A line that was said meanwhile puts the next one off."""
    with Progress(2000) as progress:
        progress.update("training", 1000)
        progress.show("loss", "0.5", "▁█")
        for seconds in range(101):
            clock[0] = 1000.0 + seconds
            if seconds == 45:
                progress.say("a line")
            progress.within("tokenizing data.train", 10 * seconds, 1000)
        progress.update("training", 1100)
        clock[0] += 5
        progress.update("training", 1200)
    assert capsys.readouterr().err.splitlines() == [
        "tokenizing data.train: 300/1,000, 30%, 1 min 10 s left; loss 0.5",
        "a line",
        "tokenizing data.train: 750/1,000, 75%, 25 s left; loss 0.5",
        "training: 1,200/2,000, 60%, 7 min 0 s left; loss 0.5",
    ]


def test_a_call_that_takes_long_is_shown_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Such as a compiling: the work itself reports nothing meanwhile."""
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.02)
    progress, shown, ends = Progress(), "", time.monotonic() + 20
    progress.update("compiling for v5e:4x4")
    with progress:
        while shown.count("\n") < 2 and time.monotonic() < ends:
            time.sleep(0.02)
            shown += capsys.readouterr().err
    assert not progress.pacemaker.is_alive()
    names = [line.rpartition(": ")[0] for line in shown.splitlines()]
    assert len(names) > 1 and set(names) == {"compiling for v5e:4x4"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_under_the_log_is_an_error_of_the_work_and_of_no_thread(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.02)

    def work() -> None:
        with Progress(log=Path("/dev/full")) as progress:
            time.sleep(0.2)
            assert progress.pacemaker.is_alive()
            progress.say("a line")

    with pytest.raises(OSError, match="No space left"):
        work()
    assert "Traceback" not in capsys.readouterr().err


def test_the_speed_is_measured_anew_after_a_compiling(clock: list[float]):
    """Oracle: worked by hand. A step takes 1 s, the first one with 58 s of compiling: 97 steps are left."""
    progress = Progress(100)
    progress.update("training", 0)
    clock[0] += 59
    progress.leave_out(58)
    for step in range(1, 4):
        progress.update("training", step)
        clock[0] += 1
    (bar,) = progress.bars.tasks
    assert bar.time_remaining == 97


def shown(progress: Progress) -> list[str]:
    screen = Console(file=io.StringIO(), force_terminal=True, width=100, record=True)
    screen.print(progress.bars.get_renderable())
    return [line.rstrip() for line in screen.export_text().splitlines()]


def test_the_view_has_bars_and_facts(clock: list[float]):
    """Oracle: worked by hand. Bars of 30; the next step ends the part within the work."""
    progress = Progress(2000)
    for step in (0, 250, 500):
        progress.update("training", step)
        clock[0] += 20
    progress.show("loss", "0.25", "▁▂")
    progress.show("note", "a\x1b[b]")
    progress.show("gone", "")
    progress.within("evaluating", 1, 2)
    first, second, *facts = shown(progress)
    assert first.startswith(f"training   {'━' * 7}╸") and first.endswith("500/2,000 0:02:00")
    assert second.startswith(f"evaluating {'━' * 15}") and "1/2" in second
    assert facts == ["  loss  0.25  ▁▂", "  note  a\\x1b[b]"]
    progress.update("training", 500)
    assert len(shown(progress)) == 3


def test_an_estimate_that_changes_leaves_the_time_left(clock: list[float]):
    """Oracle: worked by hand. A tenth a second, of a total that is known better each time: 7 s are left after three."""
    progress = Progress()
    for second, total in enumerate((999, 1001, 998, 1000)):
        progress.within("reading", total * second // 10, total)
        clock[0] += 1
    assert [bar.time_remaining for bar in progress.bars.tasks] == [7]


def test_parts_of_unknown_number_are_not_counted():
    progress = Progress()
    progress.of("compiling", 0, 0)
    assert progress.bars.tasks[0].total is None and progress.bars.tasks[0].fields["count"] == ""
    progress.within("reading", 4096, 0)
    assert progress.bars.tasks[1].total is None and progress.bars.tasks[1].fields["count"] == "4,096"


def test_a_curve_stays_short():
    """Oracle: worked by hand: 41 values become 21 means of two; one that is not finite is left out."""
    assert curve([]) == "" and curve([3.0, math.nan, 3.0, math.inf]) == "▁▁" and curve([2.0, 1.0, 1.5]) == "█▁▅"
    assert len(curve(list(range(41)))) == 21 and curve([0.0, 2.0] * 20 + [8.0])[-2:] == "▁█"


def test_quiet_leaves_warnings_and_the_log(tmp_path: Path, capsys: pytest.CaptureFixture):
    with quiet(), Progress(3, tmp_path / "log") as progress:
        progress.say("one")
        progress.warn("two")
        note("three")
        warn("four")
    assert capsys.readouterr() == ("", "warning: two\nwarning: four\n")
    assert [line.split("  ")[1] for line in (tmp_path / "log").read_text().splitlines()] == ["one", "warning: two"]


class Collected(logging.Handler):
    """What a handler of a script gets."""

    def __init__(self, logger: str):
        super().__init__()
        self.records: list[logging.LogRecord] = []
        logging.getLogger(logger).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def collected() -> Iterator[dict[str, list[logging.LogRecord]]]:
    """The records that handlers get, by their logger."""
    handlers = {name: Collected(name) for name in ("flaxformer_lite", "")}
    yield {name: handler.records for name, handler in handlers.items()}
    for name, handler in handlers.items():
        logging.getLogger(name).removeHandler(handler)


def test_each_line_is_a_record_of_the_logger(
    collected: dict[str, list[logging.LogRecord]], tmp_path: Path, capsys: pytest.CaptureFixture
):
    """A warning is a level, not a word of the message; its place is that of the call. The root's handlers would say it twice."""
    with Progress(3, tmp_path / "log") as progress:
        progress.say("100 %s")
        progress.warn("two")
    note("three")
    warn("four")
    lines = [("INFO", "100 %s"), ("WARNING", "two"), ("INFO", "three"), ("WARNING", "four")]
    assert [(one.levelname, one.getMessage()) for one in collected["flaxformer_lite"]] == lines and not collected[""]
    assert {(one.name, one.filename) for one in collected["flaxformer_lite"]} == {
        ("flaxformer_lite", "test_console.py")
    }
    assert capsys.readouterr() == ("", "100 %s\nwarning: two\nthree\nwarning: four\n")
    logging.getLogger("flaxformer_lite.own").info("of a plugin")
    assert collected["flaxformer_lite"][-1].name == "flaxformer_lite.own" and capsys.readouterr().err == "of a plugin\n"


def test_a_level_silences(
    collected: dict[str, list[logging.LogRecord]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Law: with a level above INFO a terminal has no bar either, and the run's log is whole."""
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    logging.getLogger("flaxformer_lite").setLevel(logging.ERROR)
    with Progress(3, tmp_path / "log") as progress:
        progress.update("working", 1)
        progress.say("one")
        progress.warn("two")
    note("three")
    warn("four")
    assert (
        not collected["flaxformer_lite"] and screen.getvalue() == "" and (tmp_path / "log").read_text().count("\n") == 2
    )


def test_results_for_a_file_stay_out_of_the_terminal(monkeypatch: pytest.MonkeyPatch):
    """Law: with stderr on a terminal and stdout not, what is printed goes to stdout while the view is there."""
    screen, file = Screen(), io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", file)
    with Progress(3) as progress:
        assert progress.shown
        progress.update("working", 1)
        print("a result")
    assert file.getvalue() == "a result\n" and "a result" not in screen.getvalue() and "working" in screen.getvalue()


def test_where_there_is_a_bar_only_the_log_gets_the_line_of_30_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clock, screen = [1000.0], Screen()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    with Progress(3, tmp_path / "log") as progress:
        monkeypatch.setattr(time, "monotonic", lambda: clock[0])
        progress.last_line = 1000.0
        for _ in range(2):
            clock[0] += 29
            progress.update("training", 1)
    assert [line.split("  ")[1] for line in (tmp_path / "log").read_text().splitlines()] == ["training: 1/3, 33%"]
    assert "33%" not in screen.getvalue() and "1/3" in screen.getvalue()


def test_durations():
    assert [describe_seconds(s) for s in (0.4, 59.6, 125, 3599, 12_010)] == [
        "0 s", "1 min 0 s", "2 min 5 s", "59 min 59 s", "3 h 20 min"
    ]  # fmt: skip


class Screen(io.StringIO):
    """A terminal that keeps what was written."""

    def isatty(self) -> bool:
        return True


def test_control_characters_do_not_reach_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """Answers, warnings and lines above the bar; a pipe and the log get the text as it is."""
    text = "a\x1b]0;x\x07\x9b2J\tü"
    warn(text)
    assert capsys.readouterr().err == f"warning: {text}\n"
    screen = Screen()
    print(text, file=Terminal(screen))
    monkeypatch.setattr(sys, "stderr", screen)
    warn(text)
    with Progress(3, tmp_path / "log") as progress:
        progress.say(text)
    assert screen.getvalue().count("a\\x1b]0;x\\x07\\x9b2J") == 3
    assert "\x07" not in screen.getvalue() and "\x1b]" not in screen.getvalue()
    assert text in (tmp_path / "log").read_text()


def test_a_long_line_loses_its_middle(capsys: pytest.CaptureFixture):
    """Beginning and remedy stay, and a line is a line."""
    warn("first " + "x" * 10_000_000 + "\nlast")
    line = capsys.readouterr().err
    assert line.startswith("warning: first xxx") and line.endswith("x last\n") and len(line) < LONGEST_NOTE + 9


SESSION = """
import time
from flaxformer_lite.base.console import Progress, warn
with Progress(4) as progress:
    for step in range(5):
        progress.update("training", step)
        progress.show("loss", f"{1 / (step + 1):.3f}", "█▄")
        time.sleep(0.3)
    progress.within("evaluating", 1, 2)
    progress.say("a line")
    warn("careful")
    time.sleep(0.3)
"""


@pytest.mark.slow
def test_in_a_real_terminal_the_view_moves_and_leaves_only_the_lines():
    """Law: a pseudo-terminal sees bars and facts while they are there; lines and warnings stay, and the cursor comes back."""
    process, terminal = pty.fork()
    if process == 0:
        os.execve(sys.executable, [sys.executable, "-c", SESSION], {**os.environ, "TERM": "xterm-256color"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    written = b""
    with contextlib.suppress(OSError):  # the end of the session
        while part := os.read(terminal, 4096):
            written += part
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    text = written.decode()
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert "2/4" in seen and "evaluating" in seen and "0.333  █▄" in seen and "0:00:0" in seen
    assert seen.count("a line") == 1 and seen.count("warning: careful") == 1
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l") and text.rindex("\x1b[2K") > text.rindex("evaluating")


def test_without_a_terminal_only_lines_are_written(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    """Bars that are not shown are neither started nor stopped: rich 13 writes an empty line when they stop."""
    monkeypatch.setattr(rich.progress.Progress, "stop", lambda _: print(file=sys.stderr))
    with Progress(3) as progress:
        progress.update("training", 1)
        progress.say("a line")
    assert capsys.readouterr().err == "a line\n"


def test_warnings_that_differ_in_numbers_are_one_line():
    """Also where a line has several, as one with a query and candidates, and where the work ends in an error."""
    said: list[str] = []
    with contextlib.suppress(KeyError), one_of_each(said.append) as say:
        for number in (3, 4, 1000):
            say(f"line {number}: the text has {number * 9} tokens")
            say(f"line {number} has no mask")
        say("line 7: 1 of its masks")
        say("line 1000: the text has 7 tokens")
        raise KeyError
    assert said == [
        "line 3: the text has 27 tokens (and 3 more, such as line 4, 1000)",
        "line 3 has no mask (and 2 more, such as line 4, 1000)",
        "line 7: 1 of its masks",
    ]
