"""The command line, as a user types it."""

import argparse
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from flaxformer_lite.cli.commands import evaluate
from flaxformer_lite.cli.main import main
from tests.support.oracles import load_case


class Said(NamedTuple):
    """What a command has written."""

    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of stdout."""
        return self.out.splitlines()

    @property
    def notes(self) -> list[str]:
        """The lines of stderr."""
        return self.err.splitlines()


class Command:
    """Types commands; what was written before is dropped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *words: object, stdin: bytes = b"") -> Said:
        """Returns what a command writes that succeeds."""
        status, said = self.ended(*words, stdin=stdin)
        assert status == 0, said.err
        return said

    def ended(self, *words: object, stdin: bytes = b"") -> tuple[int, Said]:
        """Returns the exit status too."""
        self.capsys.readouterr()
        self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        status = 0
        try:
            main([str(word) for word in words])
        except SystemExit as end:
            status = int(end.code or 0)
        return status, Said(*self.capsys.readouterr())

    def mistake(self, *words: object, stdin: bytes = b"") -> str:
        """Returns the message. Law: a mistake is exit status 2, one line on stderr, and nothing on stdout."""
        status, said = self.ended(*words, stdin=stdin)
        assert (status, said.out, len(said.notes)) == (2, "", 1) and said.err.startswith("error: "), (status, said)
        return said.notes[0]

    def on(self, run: Any, name: str, *options: object, stdin: bytes = b"") -> tuple[list[str], list[str]]:
        """Returns the lines of stdout and stderr of a command with a run that is loaded already."""
        self.load(run)
        said = self(name, "run", *options, stdin=stdin)
        return said.lines, said.notes

    def load(self, run: Any) -> None:
        """Lets every folder have this run, and its config."""
        self.monkeypatch.setattr("flaxformer_lite.run.load", lambda path, **weights: run)
        opened = SimpleNamespace(config=lambda: run.config)
        self.monkeypatch.setattr("flaxformer_lite.workdir.open_run", lambda folder: opened)

    def import_case(self, folder: Path, system: str, name: str) -> Path:
        """Imports the weights of an oracle's case and returns the run."""
        config, weights = load_case(name)
        (folder / "config.json").write_text(json.dumps(config))
        np.savez(folder / "weights.npz", **weights)
        self("import", system, folder / "weights.npz", "--config", folder / "config.json", folder / "run")
        return folder / "run"


def type_command(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> None:
    monkeypatch.setattr("sys.argv", ["flaxformer-lite", *map(str, words)])
    main()


def evaluate_arguments(*words: str) -> argparse.Namespace:
    """Returns the words of `evaluate`, parsed."""
    parser = argparse.ArgumentParser()
    evaluate.add_arguments(parser)
    return parser.parse_args(words)
