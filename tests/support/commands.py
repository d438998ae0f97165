"""The command line, as a user types it."""

from pathlib import Path

import pytest

from flaxformer_lite.cli.main import main


def type_command(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> None:
    monkeypatch.setattr("sys.argv", ["flaxformer-lite", *map(str, words)])
    main()
