"""What the tests of `pair` share."""

import dataclasses
from pathlib import Path

import pytest

from flaxformer_lite.config import load_config
from flaxformer_lite.tools.pair import recipe


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Smaller models and shorter trainings than any text is worth, and a beam of one."""
    monkeypatch.chdir(tmp_path)
    sizes = (recipe.Size(10**6, 8, 8, 1, 2, 0.0), recipe.Size(10**9, 16, 16, 1, 2, 0.0))
    base = load_config(recipe.BASE)
    train = dataclasses.replace(base.train, text_metrics=(), best_metric="loss")
    decode = dataclasses.replace(base.decode, beam_size=1)
    monkeypatch.setattr(recipe, "SIZES", sizes)
    monkeypatch.setattr(recipe, "load_config", lambda name: dataclasses.replace(base, train=train, decode=decode))
    monkeypatch.setattr(recipe, "EPOCHS", (1, 1))
    monkeypatch.setattr(recipe, "MEASURED_STEPS", 2)
    return tmp_path
