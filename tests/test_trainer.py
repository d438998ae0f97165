"""Laws of the loop: a run that was stopped, crashed or killed anywhere ends bit for bit like one that never was."""

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from experiments import tiny_config, use_one_device, with_train, write_config_file

from flaxformer_lite import trainer
from flaxformer_lite.data.pipeline import blank_batch
from flaxformer_lite.data.sources import ParallelText
from flaxformer_lite.optimizer import OptimizerConfig
from flaxformer_lite.parallel import make_mesh
from flaxformer_lite.run_folder import RunFolder
from flaxformer_lite.schedules import Constant
from flaxformer_lite.training import Compiled, Task

ROOT = Path(__file__).parent.parent
CONFIG = dataclasses.replace(tiny_config(), data=dataclasses.replace(tiny_config().data, bucket_lengths=(40,)))
NO_TEXT = with_train(CONFIG, text_metrics=())


class Crash(Exception):
    pass


@pytest.fixture(autouse=True)
def one_device(monkeypatch: pytest.MonkeyPatch):
    use_one_device(monkeypatch)


def final_state(folder: Path) -> list[tuple[str, bytes]]:
    """Every array of the newest checkpoint, by path: parameters, optimizer state and averages."""
    run = RunFolder(folder)
    config = run.config()
    batch = blank_batch(config.objective, config.data.buckets[-1])
    compiled = Compiled.of(Task.of(config), make_mesh(jax.devices()[:1]), train_shapes=1, eval_shapes=1)
    with trainer.open_checkpoints(config, run, read_only=True) as checkpoints:
        _, state, _ = checkpoints.restore(compiled.abstract_state(batch))
    return [(jax.tree_util.keystr(k), np.asarray(x).tobytes()) for k, x in jax.tree_util.tree_leaves_with_path(state)]


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, without what the clock decides."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "tokens_per_second"} for line in lines]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "uninterrupted"
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        trainer.train(NO_TEXT, folder)
    return folder


def during_step(monkeypatch: pytest.MonkeyPatch, step: int, action: Callable[[], None]) -> None:
    """Has `action` happen while the train step number `step` is under way, before anything is written for it."""
    original = trainer.Trainer.show

    def show(self: trainer.Trainer, at: int) -> None:
        if at == step:
            action()
        original(self, at)

    monkeypatch.setattr(trainer.Trainer, "show", show)


def crash() -> None:
    raise Crash


def test_rows_are_written_once_and_in_order(uninterrupted: Path):
    """Oracle: worked by hand for 12 steps, log every 3, evaluation every 5 and at the end."""
    found = [(row["step"], row["split"]) for row in rows(uninterrupted)]
    assert found == [(3, "train"), (5, "eval"), (6, "train"), (9, "train"), (10, "eval"), (12, "train"), (12, "eval")]
    assert all(
        row["perplexity"] == pytest.approx(np.exp(row["loss"])) for row in rows(uninterrupted) if row["split"] == "eval"
    )


def test_the_run_folder_explains_itself(uninterrupted: Path):
    assert {p.name for p in uninterrupted.iterdir()} == {
        "config.json", "metrics.jsonl", "checkpoints", "tokenizer.characters.json", "train.log"
    }  # fmt: skip
    assert {p.name for p in (uninterrupted / "checkpoints").iterdir()} == {"8", "10", "12"}


@pytest.mark.parametrize("step", [1, 7, 11])
def test_stopped_by_sigterm_it_saves_and_goes_on_as_if_nothing_was(uninterrupted, tmp_path, monkeypatch, step: int):
    """Law: bit-identical state and equal rows, wherever the signal falls; step 11's falls between checkpoints and rows."""
    with monkeypatch.context() as patch:
        during_step(patch, step, lambda: os.kill(os.getpid(), signal.SIGTERM))
        trainer.train(NO_TEXT, tmp_path / "run")
    with trainer.open_checkpoints(NO_TEXT, RunFolder(tmp_path / "run"), read_only=True) as checkpoints:
        assert checkpoints.latest() == step
    trainer.train(NO_TEXT, tmp_path / "run")
    assert final_state(tmp_path / "run") == final_state(uninterrupted)
    assert rows(tmp_path / "run") == rows(uninterrupted)


@pytest.mark.parametrize("step", [6, 12])
def test_crashed_it_loses_only_what_came_after_the_last_checkpoint(uninterrupted, tmp_path, monkeypatch, step: int):
    """Law: as after SIGTERM; in step 6 the newest checkpoint is 5's, in step 12 it is 10's."""
    with monkeypatch.context() as patch:
        during_step(patch, step, crash)
        with pytest.raises(Crash):
            trainer.train(NO_TEXT, tmp_path / "run")
    trainer.train(NO_TEXT, tmp_path / "run")
    assert final_state(tmp_path / "run") == final_state(uninterrupted)
    assert rows(tmp_path / "run") == rows(uninterrupted)


def test_interrupted_while_evaluating_it_evaluates_again(uninterrupted, tmp_path, monkeypatch):
    """Law: a signal during an evaluation saves the step without metrics; going on makes up for the evaluation first."""
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "mean_metrics", lambda *a: os.kill(os.getpid(), signal.SIGTERM) or a[-1](1, 1))
        trainer.train(NO_TEXT, tmp_path / "run")
    assert [row["step"] for row in rows(tmp_path / "run")] == [3]
    trainer.train(NO_TEXT, tmp_path / "run")
    assert rows(tmp_path / "run") == rows(uninterrupted)
    with trainer.open_checkpoints(NO_TEXT, RunFolder(tmp_path / "run"), read_only=True) as checkpoints:
        assert checkpoints.metrics(10) is not None


def test_a_finished_run_does_nothing_and_more_steps_go_on(uninterrupted, tmp_path, capfd):
    before = {
        p: p.stat().st_mtime_ns
        for p in uninterrupted.rglob("*")
        if p.is_file() and p.name not in ("train.log", "config.json")
    }
    trainer.train(NO_TEXT, uninterrupted)
    assert "all 12 steps are done" in capfd.readouterr().err
    assert before == {p: p.stat().st_mtime_ns for p in before}


def test_a_run_can_be_made_longer(tmp_path):
    """Law: 5 steps and then 12 end like 12 at once, because nothing else depends on the number of steps."""
    trainer.train(with_train(NO_TEXT, steps=5), tmp_path / "run")
    trainer.train(NO_TEXT, tmp_path / "run")
    with trainer.open_checkpoints(NO_TEXT, RunFolder(tmp_path / "run"), read_only=True) as checkpoints:
        assert checkpoints.latest() == 12


def test_another_config_is_refused_with_what_differs(uninterrupted):
    other = dataclasses.replace(
        NO_TEXT, optimizer=OptimizerConfig(schedule=Constant(peak_rate=2e-2), weight_decay=0.01, ema_decay=0.9)
    )
    with pytest.raises(ValueError, match=r"optimizer\.schedule\.peak_rate was 0\.01 and is now 0\.02"):
        trainer.train(other, uninterrupted)


def test_other_data_is_refused(uninterrupted, tmp_path, monkeypatch):
    """The config is the same, the files it names are not: here the generator is made to give other dates."""
    with monkeypatch.context() as patch:
        patch.setattr("flaxformer_lite.data.dates.held_out", lambda day: day.toordinal() % 7 == 0)
        with pytest.raises(ValueError, match="the training data is not what"):
            trainer.train(with_train(NO_TEXT, steps=13), uninterrupted)


def test_a_folder_with_other_files_is_no_run_folder(tmp_path):
    (tmp_path / "holiday.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match=r"holds files but no config\.json"):
        trainer.train(NO_TEXT, tmp_path)


def test_it_stops_early_when_the_metric_does_not_improve(tmp_path, monkeypatch, capfd):
    """Oracle: losses given by hand; 3.0, 2.0, then two evaluations without a better one."""
    losses = iter([3.0, 2.0, 2.5, 2.0])
    monkeypatch.setattr(trainer, "mean_metrics", lambda *a: {"loss": next(losses), "accuracy": 0.5, "perplexity": 9.0})
    config = with_train(NO_TEXT, steps=12, eval_every=2, patience=2, keep_latest=1, keep_best=1)
    trainer.train(config, tmp_path / "run")
    with trainer.open_checkpoints(config, RunFolder(tmp_path / "run"), read_only=True) as checkpoints:
        assert (checkpoints.latest(), checkpoints.best(), checkpoints.steps()) == (8, 4, [4, 8])
    trainer.train(config, tmp_path / "run")
    assert "stopped early at step 8, after 2 evaluations without a better loss" in capfd.readouterr().err


def test_a_damaged_newest_checkpoint_costs_only_the_steps_since_the_one_before(uninterrupted, tmp_path, capfd):
    """Law: with step 12 garbled the run goes on from step 10, says so, and ends bit for bit the same."""
    shutil.copytree(uninterrupted, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "12" / "meta" / "meta.json").write_bytes(b"{")
    trainer.train(NO_TEXT, tmp_path / "run")
    assert "using checkpoint 10 instead" in capfd.readouterr().err
    assert final_state(tmp_path / "run") == final_state(uninterrupted)
    assert rows(tmp_path / "run") == rows(uninterrupted)


def test_a_mistake_at_the_first_start_can_be_mended(tmp_path):
    """Nothing was trained, so the folder does not insist on the wrong config."""
    wrong = dataclasses.replace(
        NO_TEXT, data=dataclasses.replace(NO_TEXT.data, train=ParallelText(source="no", target="where"))
    )
    with pytest.raises(ValueError, match="no"):
        trainer.train(wrong, tmp_path / "run")
    trainer.train(with_train(NO_TEXT, steps=1), tmp_path / "run")


def test_a_garbled_row_does_not_stop_the_run(uninterrupted, tmp_path, capfd):
    shutil.copytree(uninterrupted, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_bytes().split(b"\n")
    lines[1] = b"\0" * 8
    (tmp_path / "run" / "metrics.jsonl").write_bytes(b"\n".join(lines))
    trainer.train(with_train(NO_TEXT, steps=13), tmp_path / "run")
    assert "line 2 is not a row of metrics" in capfd.readouterr().err
    assert len(rows(tmp_path / "run")) == 6 + 2


@pytest.mark.parametrize("log_every", [3, 50])
def test_a_loss_that_is_not_finite_ends_the_run_with_a_word(tmp_path, log_every: int):
    wild = dataclasses.replace(
        with_train(NO_TEXT, log_every=log_every),
        optimizer=OptimizerConfig(schedule=Constant(peak_rate=1e30), clip_norm=None),
    )
    with pytest.raises(ValueError, match=r"the loss is nan .* at step \d: lower optimizer\.schedule\.peak_rate"):
        trainer.train(wild, tmp_path / "run")


# Real processes --------------------------------------------------------------------------------------------------------


def start(config: Path, folder: Path, cache: Path) -> subprocess.Popen:
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    command = [sys.executable, str(ROOT / "train.py"), str(config), "--workdir", str(folder)]
    return subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_killed_at_random_times_it_ends_the_same(tmp_path):
    """Law, with SIGKILL on real processes at five random moments between the first row and the end of the run."""
    config = write_config_file(
        tmp_path / "tiny.json", with_train(CONFIG, steps=400, eval_every=100, checkpoint_every=20)
    )
    first = start(config, tmp_path / "whole", tmp_path / "cache")
    assert first.wait(300) == 0
    generator = random.Random(0)
    for _ in range(5):
        process = start(config, tmp_path / "killed", tmp_path / "cache")
        deadline = time.monotonic() + 120
        seen = (
            len((tmp_path / "killed" / "metrics.jsonl").read_text())
            if (tmp_path / "killed" / "metrics.jsonl").exists()
            else 0
        )
        while process.poll() is None and time.monotonic() < deadline:
            metrics = tmp_path / "killed" / "metrics.jsonl"
            if metrics.exists() and len(metrics.read_text()) > seen:
                break
            time.sleep(0.05)
        time.sleep(generator.uniform(0, 0.5))
        process.kill()
        process.wait()
    assert start(config, tmp_path / "killed", tmp_path / "cache").wait(300) == 0
    assert final_state(tmp_path / "killed") == final_state(tmp_path / "whole")
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")


@pytest.mark.slow
def test_a_real_process_exits_0_on_sigterm(tmp_path):
    config = write_config_file(tmp_path / "tiny.json", with_train(CONFIG, steps=10_000))
    process = start(config, tmp_path / "run", tmp_path / "cache")
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    process.terminate()
    assert process.wait(60) == 0
    assert "SIGTERM: saved after step" in process.stderr.read()
