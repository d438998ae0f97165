"""Laws of training from Python: the run that is returned is the one that `load` reads, from a config, a path or a name."""

import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import flaxformer_lite
from flaxformer_lite.config import load_config
from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.run import write_run
from flaxformer_lite.run.run import Run
from flaxformer_lite.training import Hook, TrainingRun, loop
from flaxformer_lite.training.setup import set_up
from flaxformer_lite.workdir import RunFolder
from flaxformer_lite.workdir.weights import abstract_saved_params
from tests.support.experiments import tiny_config, with_train, write_config_file

CONFIG = with_train(tiny_config(), steps=2, eval_every=2, checkpoint_every=2, log_every=1, text_metrics=())


pytestmark = pytest.mark.usefixtures("one_device")


def assert_same(run: Run, other: Run) -> None:
    assert (run.config, run.step, run.folder.path) == (other.config, other.step, other.folder.path)
    jax.tree.map(np.testing.assert_array_equal, run.params, other.params)


@pytest.mark.slow
def test_the_run_is_the_one_that_load_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows: list[dict[str, Any]] = []
    monkeypatch.setattr(loop, "set_up", lambda *a: os.kill(os.getpid(), signal.SIGINT) or set_up(*a))
    with pytest.raises(KeyboardInterrupt):  # before the first step: there is no run yet
        flaxformer_lite.train(CONFIG, tmp_path / "run", on_row=rows.append)
    monkeypatch.setattr(loop, "set_up", set_up)
    run = flaxformer_lite.train(CONFIG, tmp_path / "run", on_row=rows.append)
    assert_same(run, flaxformer_lite.load(tmp_path / "run"))
    assert [(row["step"], row["split"]) for row in rows] == [(1, "train"), (2, "train"), (2, "eval")]
    assert run.folder.rows() == rows
    # The same call on a finished run trains no step.
    config = write_config_file(tmp_path / "tiny.json", CONFIG)
    assert_same(flaxformer_lite.train(config, tmp_path / "run", on_row=rows.append), run)
    assert len(rows) == 3


class KillAtStep1(Hook):
    def on_step(self, run: TrainingRun, step: int, measured: Mapping[str, float]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
def test_a_script_that_trains_in_a_loop_ends_at_sigterm(tmp_path: Path):
    """Law: the run in progress is saved, the next one is not started, and the same script continues."""
    rates = [tmp_path / "first", tmp_path / "second"]
    for hooks in ([KillAtStep1()], []):
        with pytest.raises(SystemExit, match="143") if hooks else contextlib.nullcontext():
            runs = [flaxformer_lite.train(CONFIG, folder, hooks=hooks) for folder in rates]
        assert rates[1].exists() != bool(hooks) and RunFolder(rates[0]).trained
    assert [(run.step, run.stopped) for run in runs] == [(2, False)] * 2


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, None), (0, None)]
)
def test_a_signal_ends_the_script_and_ctrl_c_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, status: int | None
):
    """A shell says 128 + the signal's number; also for one that comes when no step is left."""
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as on a terminal
    params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), abstract_saved_params(CONFIG))
    letters = CharacterTokenizer("abc")
    write_run(RunFolder(tmp_path / "run"), CONFIG, 2, params, "zeros", tokenizers=Tokenizers(letters, letters))
    monkeypatch.setattr(loop, "why_finished", lambda *_: (number and os.kill(os.getpid(), number)) or "all is done")
    try:
        if status is None:
            assert flaxformer_lite.train(CONFIG, tmp_path / "run").stopped == bool(number)
        else:
            with pytest.raises(SystemExit) as ended:
                flaxformer_lite.train(CONFIG, tmp_path / "run")
            assert ended.value.code == status
    finally:
        signal.signal(signal.SIGHUP, hangup)


def test_a_name_is_a_config_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trained = []
    monkeypatch.setattr(loop, "train", lambda config, *_, **__: trained.append(config) or 0)
    with pytest.raises(KeyboardInterrupt):
        flaxformer_lite.train("quickstart", tmp_path / "run")
    assert trained == [load_config("quickstart")]
