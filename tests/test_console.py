"""Oracles: lines written by hand. A closed terminal or pipe is tested with a whole training in tests/training/test_loop.py."""

import io
import sys
from pathlib import Path

import pytest

from flaxformer_lite import console
from flaxformer_lite.console import LONGEST_NOTE, Countdown, Progress, Terminal, describe_seconds, suggest, warn


def test_suggestions():
    names = ["translate", "train", "trail", "plan"]
    assert suggest("trian", names) == "; perhaps you meant train"
    assert suggest("trai", names, 2) == "; perhaps you meant train or trail"
    assert suggest("xyz", names) == ""


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
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """Oracle: worked by hand. The time left is that of the last two minutes' speed: what was there before costs nothing."""
    clock = [1000.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])
    with Progress(3) as progress:
        countdown = Countdown(progress, "tokenizing data.train")
        for seconds, fraction in ((0, 0.5), (29, 0.51), (30, 0.52), (59, 0.53), (180, 0.6), (181, 1.0)):
            clock[0] = 1000.0 + seconds
            countdown(fraction, round(10_000 * fraction))
    first, second = capsys.readouterr().err.splitlines()
    assert first == "tokenizing data.train: 5,200, 52%, 12 min 0 s left"
    assert second == "tokenizing data.train: 6,000, 60%, 11 min 31 s left"


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
