"""Oracles: lines written by hand. A closed terminal or pipe is tested with a whole training in tests/training/test_loop.py."""

import sys
from pathlib import Path

import pytest

from flaxformer_lite.console import Progress, suggest, warn


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
