"""What the tests of `pair` share."""

from pathlib import Path

import pytest

from tests.support.experiments import use_one_device
from tests.support.toy_pair import make_small


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Smaller models and shorter trainings than any text is worth, and a beam of one; an empty cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make_small(monkeypatch)
    use_one_device(monkeypatch)
    return tmp_path
