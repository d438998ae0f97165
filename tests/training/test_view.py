"""Oracle: facts written by hand for a few rows."""

import time
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from flaxformer_lite.base.console import Progress
from flaxformer_lite.core.objectives import Seq2Seq
from flaxformer_lite.core.objectives.classification import WholeTexts
from flaxformer_lite.training.view import View, metrics_in_words, speed_in_words


def row(step: int, loss: float | None, **more: float) -> dict[str, object]:
    found = {"step": step, "split": "train", "loss": loss, "learning_rate": 1e-3, "tokens_per_second": 1234.5, **more}
    return {"epoch": 1.5, **found}


def run_of(progress: Progress, rows: Sequence[dict[str, Any]] = (), best: float | None = None) -> Any:
    run = Mock(
        progress=progress, folder=Mock(rows=lambda: rows), loop_state=Mock(best=best, best_loss=best and 1.5), step=1000
    )
    run.config.train.best_metric = "accuracy"
    return run


def test_the_facts_are_those_of_the_newest_rows_and_of_the_best():
    progress = Progress(2000, silent=True)
    view = View()
    evaluations = [{"step": s, "split": "eval", "loss": 1.5, "accuracy": a} for s, a in ((500, 0.75), (1000, 0.5))]
    run = run_of(progress, [row(50, 2.0), evaluations[0], row(100, None), row(150, 1.0), evaluations[1]], 0.75)
    view.on_start(run)
    view.on_step(run, 1001, {"loss": 0.25})
    view.on_row(run, row(1050, 1.5, mfu=0.4123, peak_memory_bytes=3 * 2**29))
    assert {label: text for label, (text, _) in progress.bars.facts.items()} == {
        "loss": "0.2500",
        "speed": "1,234 tokens/s  MFU 41.2%  peak memory 1.50 GiB  rate 1.00e-03",
        "eval": "step 1,000  loss 1.5000  accuracy 0.5000",
        "best": "step 500  accuracy 0.7500",
    }
    assert progress.bars.facts["loss"][1] == "█▁" and view.curve == "█▁▅"
    assert progress.bars.tasks[0].fields["count"] == "1,001/2,000"
    view.on_start(run_of(progress, [row(50, 2.0), {"step": 60, "split": "eval", "loss": 1.5, "accuracy": None}]))
    assert progress.bars.facts == {"eval": ("step 60  loss 1.5000", "")}
    view.on_rollback(run_of(progress, [row(50, 2.0)]), 50)
    assert view.curve == "▁" and progress.bars.facts == {}


def test_a_slow_step_has_a_line_every_half_minute(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Oracle: by hand; a `train` row is a line too. The time left is that of all steps since the first."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    progress = Progress(2000)
    view, run = View(), run_of(progress)
    for step, (seconds, with_row) in enumerate(
        [(99, False), (20, False), (20, False), (20, True), (29, False), (2, False)], 1
    ):
        now[0] += seconds
        view.on_step(run, step + 1, {"loss": step / 4})
        if with_row:
            view.on_row(run, row(step, 1.0))
    assert capsys.readouterr().err.splitlines() == [
        "training: 2/2,000, 0%; loss 0.2500",
        "training: 4/2,000, 0%, 11 h 5 min left; loss 0.7500",
        "step      4  epoch 1.50  loss 1.0000  1,234 tokens/s  rate 1.00e-03",
        "training: 7/2,000, 0%, 10 h 4 min left; loss 1.5000; speed 1,234 tokens/s  rate 1.00e-03",
    ]


def test_the_speed_has_the_unit_of_the_objective():
    assert speed_in_words({"step": 1, "examples_per_second": 1234.5}) == "1,234 examples/s"
    assert (Seq2Seq.counted, WholeTexts.counted) == ("tokens", "examples")


def test_what_is_no_number_is_left_out():
    assert metrics_in_words({"step": 1, "split": "eval", "loss": 2, "note": "x", "f1": None}) == "loss 2.0000"
