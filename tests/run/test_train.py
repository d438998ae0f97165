"""Laws of training from Python: the run that is returned is the one that `load` reads, from a config, a path or a name."""

import os
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import flaxformer_lite
from flaxformer_lite.config import load_config
from flaxformer_lite.run.run import Run
from flaxformer_lite.training import loop
from flaxformer_lite.training.setup import set_up
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


def test_a_name_is_a_config_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trained = []
    monkeypatch.setattr(loop, "train", lambda config, *_, **__: trained.append(config))
    with pytest.raises(KeyboardInterrupt):
        flaxformer_lite.train("quickstart", tmp_path / "run")
    assert trained == [load_config("quickstart")]
