"""CTranslate2 as users have it, and a run that translates."""

from pathlib import Path

import pytest

from tests.support.engine_runs import write_random_run


@pytest.fixture
def jax_answers() -> None:
    """CTranslate2 is found where it is installed."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_random_run(tmp_path / "run")
