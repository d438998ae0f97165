"""A run that predicts for whole texts, and commands that are typed with it."""

import pytest

from flaxformer_lite.run import Run
from tests.support.text_runs import Typed, text_run


@pytest.fixture(scope="module")
def run() -> Run:
    return text_run()


@pytest.fixture
def type_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Typed:
    return Typed(monkeypatch, capsys)
