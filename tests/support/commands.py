"""The command line, as a user types it."""

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.cli.commands import evaluate
from flaxformer_lite.cli.main import main
from tests.support.oracles import load_case


def type_command(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> None:
    monkeypatch.setattr("sys.argv", ["flaxformer-lite", *map(str, words)])
    main()


def import_case(monkeypatch: pytest.MonkeyPatch, folder: Path, system: str, name: str) -> Path:
    """Imports the weights of an oracle's case and returns the run."""
    config, weights = load_case(name)
    (folder / "config.json").write_text(json.dumps(config))
    np.savez(folder / "weights.npz", **weights)
    options = ("--config", folder / "config.json", folder / "run")
    type_command(monkeypatch, "import", system, folder / "weights.npz", *options)
    return folder / "run"


def evaluate_arguments(*words: str) -> argparse.Namespace:
    """Returns the words of `evaluate`, parsed."""
    parser = argparse.ArgumentParser()
    evaluate.add_arguments(parser)
    return parser.parse_args(words)
