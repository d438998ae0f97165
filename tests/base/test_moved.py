import importlib
import re
from pathlib import Path

import pytest

from flaxformer_lite.base.moved import MOVED
from tests.support.paths import ROOT


@pytest.mark.parametrize(("old", "place"), MOVED.items())
def test_an_import_of_an_old_place_names_the_new_one(old: str, place: str):
    with pytest.raises(
        ModuleNotFoundError, match=re.escape(f"flaxformer_lite.{old} has moved: import it from flaxformer_lite.{place}")
    ):
        importlib.import_module(f"flaxformer_lite.{old}")
    for name in re.findall(r"\b(?:core|files)(?:\.\w+)+", place):
        importlib.import_module(f"flaxformer_lite.{name}")


def test_compiled_files_that_are_left_in_an_old_place_change_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Python takes a folder without source for a package."""
    (tmp_path / "model" / "__pycache__").mkdir(parents=True)
    monkeypatch.setattr("flaxformer_lite.__path__", [str(ROOT / "flaxformer_lite"), str(tmp_path)])
    with pytest.raises(ModuleNotFoundError, match="has moved"):
        importlib.import_module("flaxformer_lite.model")
