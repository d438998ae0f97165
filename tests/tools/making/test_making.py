"""What `pair` and `fit` share. Oracles: the times by hand."""

from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite.tools.making import timing
from flaxformer_lite.tools.making.finishing import exported_once
from flaxformer_lite.tools.making.starting import is_begun, run_path


def test_a_run_is_named_by_its_whole_path_and_at_a_url_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`train.init_from` must name it from any other folder. Models of others: tests/interop/test_loading.py."""
    monkeypatch.chdir(tmp_path)
    assert [run_path(name) for name in ("runs/a", "memory://a/b")] == [str(tmp_path / "runs/a"), "memory://a/b"]


def test_a_folder_is_continued_with_the_same_facts_alone(tmp_path: Path):
    """Facts that an earlier release did not know count as empty."""
    output, file = tmp_path / "run", tmp_path / "run" / "made_of.json"
    assert not is_begun(output, file, {"files": ["a"]}, "fit")
    (output / "start").mkdir(parents=True)
    assert not is_begun(output, file, {"files": ["a"]}, "fit"), "a refused call leaves its models"
    file.write_text('{"files": ["a"], "labels": ["x"]}')
    assert is_begun(output, file, {"files": ["a"], "hours": []}, "fit")
    message = r"other files and labels \(files: a before, b, c now; labels: x before, not given now\): give those again"
    with pytest.raises(ValueError, match=message):
        is_begun(output, file, {"files": ["b", "c"], "labels": []}, "fit")
    file.rename(output / "mine")
    with pytest.raises(ValueError, match=r"run exists, and was not made by `fit`: give a new folder"):
        is_begun(output, file, {"files": ["a"]}, "fit")


def test_time_that_others_need_is_not_given_to_steps():
    """By hand: of 190 seconds the steps get 100, of 1,000 seconds 850. A message adds what is missing in hours, rounded up."""
    assert [timing.training_seconds(left) for left in (190.0, 1000.0)] == [100.0, 850.0]
    assert timing.steps_within(190.0, 0.5, 1.0) == 50
    with pytest.raises(ValueError, match=r"and 100 of training, .* add 0.03, or 0.25 for all"):
        timing.steps_within(100.0, timing.MEASURED_STEPS / 100, timing.MEASURED_STEPS * 8.5)


def test_a_model_that_another_system_does_not_have_is_made_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture):
    def refuse(*_: Any, **options: Any) -> None:
        raise ValueError("CTranslate2 cannot express this")

    assert exported_once(tmp_path / "ctranslate2", refuse, "CTranslate2") is None
    assert "left out: the folder for CTranslate2: CTranslate2 cannot express this" in capsys.readouterr().err
