"""Laws of the loop: a run that was stopped, crashed or killed anywhere ends bit for bit like one that never was."""

import contextlib
import dataclasses
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import chex
import jax
import numpy as np
import pytest

from flaxformer_lite.base.console import Failure, warn
from flaxformer_lite.config import Config, TrainConfig, load_config
from flaxformer_lite.core.data.batch_plan import Bucket
from flaxformer_lite.core.data.dataset import Dataset, draw_by_example, zero_batch
from flaxformer_lite.core.data.records import Lengths
from flaxformer_lite.core.objectives import Batch
from flaxformer_lite.core.optim import Constant, OptimizerConfig
from flaxformer_lite.core.parallel.mesh import make_mesh
from flaxformer_lite.core.runners import abstract_state
from flaxformer_lite.files.data import Dates, ParallelText
from flaxformer_lite.training import LoopState, evaluation, loop, seconds, train_task
from flaxformer_lite.training.hooks import EachRow
from flaxformer_lite.training.trackers import TRACKERS
from flaxformer_lite.workdir.folder import RunFolder
from tests.support.commands import Command
from tests.support.disturbed_loops import Crash, crash, during_step, poison, share_programs, terminate
from tests.support.experiments import rows, saved, tiniest_config, with_train, write_config_file
from tests.support.final_state import assert_same_run, final_state, open_run
from tests.support.paths import ROOT

CONFIG = tiniest_config()
NO_TEXT = with_train(CONFIG, text_metrics=())


def with_lengths(config: Config, lengths: Any) -> Config:
    return dataclasses.replace(config, data=dataclasses.replace(config.data, bucket_lengths=lengths))


def in_epochs(epochs: float) -> Config:
    """A run of so many epochs, with an evaluation every fifth of 25 batches."""
    return with_train(NO_TEXT, steps=TrainConfig.steps, epochs=epochs, eval_every=0.2)


def share(patch: pytest.MonkeyPatch) -> None:
    """Runs train on one device by programs that they share, and do not really translate."""
    share_programs(patch, NO_TEXT.train)
    patch.setattr(
        evaluation.Evaluator,
        "_answers",
        lambda self, _, variables, requests, *rest: [str(len(one.source) - 1) for one in requests],  # without EOS
    )


@pytest.fixture(autouse=True)
def shared_programs(monkeypatch: pytest.MonkeyPatch):
    share(monkeypatch)


@pytest.fixture(autouse=True)
def hangups_are_heard():
    """As on a terminal, also where the tests themselves run under nohup."""
    old = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, old)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "uninterrupted"
    with pytest.MonkeyPatch.context() as patch:
        share(patch)
        loop.train(NO_TEXT, folder)
    return folder


@pytest.fixture
def copy(uninterrupted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(uninterrupted, tmp_path / "copy"))


def spoil_parameters(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Makes the parameters NaN after the step number `step`."""

    def spoil(running: loop.Loop) -> None:
        nan = jax.tree.map(lambda x: x * np.float32("nan"), running.state.params)
        running.state = running.state._replace(params=nan)

    during_step(monkeypatch, step, spoil)


@pytest.mark.slow
def test_rows_are_written_once_and_in_order(uninterrupted: Path):
    """Oracle: worked by hand for 12 steps, log every 3, evaluation every 5 and at the end."""
    found = [(row["step"], row["split"]) for row in rows(uninterrupted)]
    assert found == [(3, "train"), (5, "eval"), (6, "train"), (9, "train"), (10, "eval"), (12, "train"), (12, "eval")]
    assert all(
        row["perplexity"] == pytest.approx(np.exp(row["loss"])) for row in rows(uninterrupted) if row["split"] == "eval"
    )


def test_the_run_folder_explains_itself(uninterrupted: Path):
    assert {p.name for p in uninterrupted.iterdir()} == {
        "config.json", "metrics.jsonl", "checkpoints", "tokenizer.characters.json", "samples", "train.log", ".lock", ".state.json"
    }  # fmt: skip
    assert saved(uninterrupted) == ["10", "12", "8"]


def test_samples_are_always_written_and_all_translations_where_they_are_scored(uninterrupted: Path, tmp_path: Path):
    """Oracle: worked by hand for 20 sentences, whose translations here are the numbers of their tokens."""
    loop.train(with_train(CONFIG, steps=1), tmp_path / "run")
    pairs = list(CONFIG.data.eval.open())
    for sample in (uninterrupted / "samples/eval-step-00000005.txt", tmp_path / "run/samples/eval-step-00000001.txt"):
        blocks = sample.read_text().split("\n\n")
        assert len(blocks) == 10
        assert blocks[7].splitlines() == [
            f"source:     {pairs[7].source}",
            f"reference:  {pairs[7].target}",
            f"hypothesis: {len(pairs[7].source)}",
        ]
    assert len((tmp_path / "run/hypotheses/eval-step-00000001.txt").read_text().splitlines()) == 20
    assert rows(tmp_path / "run")[-1]["exact_match"] == 0


# Stopped -----------------------------------------------------------------------------------------------------------------


STOPS = {1: signal.SIGTERM, 7: signal.SIGHUP, 11: signal.SIGINT}


@pytest.mark.slow
@pytest.mark.parametrize("step", STOPS)
def test_stopped_by_a_signal_it_saves_and_goes_on_as_if_nothing_was(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
):
    """Law: the same run, whatever the signal and wherever it falls; step 11's falls between checkpoints and rows."""
    with monkeypatch.context() as patch:
        during_step(patch, step, lambda _: os.kill(os.getpid(), STOPS[step]))
        loop.train(NO_TEXT, tmp_path / "run")
    with open_run(tmp_path / "run") as checkpoints:
        assert checkpoints.latest() == step
        assert not checkpoints.is_regular(step)
    loop.train(NO_TEXT, tmp_path / "run")
    assert_same_run(tmp_path / "run", uninterrupted)


@pytest.mark.slow
def test_a_signal_after_the_look_for_one_loses_no_step(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Law: every step that is done is saved, also where the request comes between step 6 and the next one."""
    original = loop.Loop.report_saved

    def report(self: loop.Loop) -> None:
        original(self)
        if self.step == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "report_saved", report)
        loop.train(NO_TEXT, tmp_path / "run")
    with open_run(tmp_path / "run") as checkpoints:
        assert checkpoints.latest() == 7
    loop.train(NO_TEXT, tmp_path / "run")
    assert_same_run(tmp_path / "run", uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("step", [6, 12])
def test_crashed_it_loses_only_what_came_after_the_last_checkpoint(uninterrupted, tmp_path, monkeypatch, step: int):
    """Law: as after a signal; in step 6 the newest checkpoint is 5's, in step 12 it is 10's."""
    with monkeypatch.context() as patch:
        during_step(patch, step, crash)
        with pytest.raises(Crash):
            loop.train(NO_TEXT, tmp_path / "run")
    loop.train(NO_TEXT, tmp_path / "run")
    assert_same_run(tmp_path / "run", uninterrupted)


@pytest.mark.slow
def test_interrupted_while_evaluating_it_evaluates_again(uninterrupted, tmp_path, monkeypatch):
    """Law: a signal during an evaluation saves the step without metrics; going on makes up for the evaluation first."""
    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "count", lambda *a: os.kill(os.getpid(), signal.SIGTERM) or a[-1]("evaluating", 1, 1))
        loop.train(NO_TEXT, tmp_path / "run")
    assert [row["step"] for row in rows(tmp_path / "run")] == [3]
    loop.train(NO_TEXT, tmp_path / "run")
    assert_same_run(tmp_path / "run", uninterrupted)
    with open_run(tmp_path / "run") as checkpoints:
        assert checkpoints.metrics(10) is not None


@pytest.mark.slow
def test_a_mistake_in_an_evaluation_costs_no_step(uninterrupted, tmp_path, monkeypatch):
    """Law: the step is saved without metrics before the exception is raised; going on makes up for the evaluation."""

    def fail(*arguments: Any) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "count", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            loop.train(NO_TEXT, tmp_path / "run")
    with open_run(tmp_path / "run") as checkpoints:
        step = checkpoints.latest()
        assert step == NO_TEXT.train.eval_every and checkpoints.metrics(step) is None
    loop.train(NO_TEXT, tmp_path / "run")
    assert_same_run(tmp_path / "run", uninterrupted)


@pytest.mark.slow
def test_rows_are_passed_on_as_they_are_written(tmp_path, uninterrupted):
    """Law: the callback sees what metrics.jsonl holds by then, row by row; what it does with a row changes nothing."""
    seen = []

    def on_row(row: dict[str, Any]) -> None:
        assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[len(seen)]) == row
        seen.append(row["split"])
        row.clear()

    loop.train(NO_TEXT, tmp_path / "run", [EachRow(on_row)])
    assert seen == [row["split"] for row in rows(uninterrupted)]
    assert_same_run(tmp_path / "run", uninterrupted)


@pytest.mark.slow
def test_trackers_and_a_trace_change_nothing(tmp_path: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch):
    """Law: the same run; the tracker got its rows, and the trace is there."""
    tracker = Mock()
    monkeypatch.setitem(TRACKERS, "wandb", lambda *_: tracker)
    loop.train(with_train(NO_TEXT, trackers=("wandb",), profile="2:4"), tmp_path / "run")
    assert_same_run(tmp_path / "run", uninterrupted)
    assert [call.args[0] for call in tracker.write.call_args_list] == [row["step"] for row in rows(uninterrupted)]
    assert tracker.close.call_count == 1
    assert list((tmp_path / "run" / "profile").glob("plugins/profile/*/*.xplane.pb"))


@pytest.mark.slow
@pytest.mark.parametrize("stderr", [pty.openpty, os.pipe])
def test_a_closed_terminal_does_not_stop_it(
    uninterrupted, tmp_path, monkeypatch, stderr: Callable[[], tuple[int, int]]
):
    """Law: the same run where no program reads stderr: a terminal that was closed, a pipe to a program that ended."""
    theirs, ours = stderr()
    tokenizers = RunFolder.tokenizers
    monkeypatch.setattr(RunFolder, "tokenizers", lambda *a: os.close(theirs) or tokenizers(*a))
    with open(ours, "w") as file:
        monkeypatch.setattr(sys, "stderr", file)
        loop.train(NO_TEXT, tmp_path / "run")
        warn("nobody reads this either")
    assert_same_run(tmp_path / "run", uninterrupted)
    assert "all 12 steps are done" in (tmp_path / "run" / "train.log").read_text()


# Started again -----------------------------------------------------------------------------------------------------------


def test_a_finished_run_does_nothing(uninterrupted, capfd):
    before = {
        p: p.stat().st_mtime_ns
        for p in uninterrupted.rglob("*")
        if p.is_file() and p.name not in ("train.log", "config.json", ".lock")
    }
    loop.train(NO_TEXT, uninterrupted)
    assert "all 12 steps are done" in capfd.readouterr().err
    assert before == {p: p.stat().st_mtime_ns for p in before}


@pytest.mark.slow
def test_a_run_starts_from_the_parameters_of_another(uninterrupted: Path, tmp_path: Path, capfd: pytest.CaptureFixture):
    """A step at next to no rate changes no parameter; step and optimizer are fresh, the average starts at the parameters."""
    still = dataclasses.replace(NO_TEXT.optimizer, schedule=Constant(peak_rate=1e-30), weight_decay=0.0)
    config = with_train(dataclasses.replace(NO_TEXT, optimizer=still), steps=1, init_from=str(uninterrupted))
    loop.train(config, tmp_path / "run")
    assert f"from step {NO_TEXT.train.steps} of {uninterrupted}" in capfd.readouterr().err
    target = abstract_state(train_task(config), make_mesh(devices=jax.devices()[:1]))
    with open_run(uninterrupted) as before, open_run(tmp_path / "run") as after:
        old, new = before.restore(target)[1], after.restore(target)[1]
    assert int(new.step) == 1 and int(old.step) > 1
    chex.assert_trees_all_equal(new.params, old.params)
    chex.assert_trees_all_close(new.ema, old.params, rtol=1e-6)


@pytest.mark.slow
def test_a_run_can_be_made_longer(uninterrupted, tmp_path):
    """Law: 5 steps and then 12 end like 12 at once, because nothing else depends on the number of steps."""
    loop.train(with_train(NO_TEXT, steps=5), tmp_path / "run")
    loop.train(NO_TEXT, tmp_path / "run")
    assert final_state(tmp_path / "run") == final_state(uninterrupted)


@pytest.mark.slow
def test_a_run_in_epochs_is_the_run_in_their_steps(uninterrupted: Path, tmp_path: Path, monkeypatch, capfd):
    """Law: 0.48 epochs of 25 batches are 12 steps, from any start: killed with the data unread, or read, or made longer."""
    epochs, run = in_epochs(0.48), tmp_path / "run"
    for place in ("setup.read_data", "loop.announce"):
        with monkeypatch.context() as patch:
            patch.setattr(f"flaxformer_lite.training.{place}", Mock(side_effect=Crash))
            with pytest.raises(Crash):
                loop.train(epochs, run)
        known = json.loads((run / "config.json").read_text())
        assert (known["train"]["epochs"], known["train"]["eval_every"]) == (0.48, 0.2), "as it was typed"
        assert known["resolved"] == (
            None if place == "setup.read_data" else {"batches_per_epoch": 25, "bucket_lengths": [40]}
        )
    seen = []
    loop.train(in_epochs(0.2), run, [EachRow(lambda row: seen.append(RunFolder(run).config().train.steps))])
    assert {*seen} == {5} and rows(run)[-1]["step"] == 5
    with monkeypatch.context() as patch:
        patch.setattr("flaxformer_lite.training.setup.read_data", Mock(side_effect=Crash))
        loop.train(in_epochs(0.2), run)
        assert "all 5 steps are done" in capfd.readouterr().err
    loop.train(epochs, run)
    assert final_state(run) == final_state(uninterrupted)
    assert "train.epochs 0.48 is train.steps 12" in capfd.readouterr().err
    loop.train(epochs, tmp_path / "at_once")
    assert_same_run(tmp_path / "at_once", uninterrupted)
    loop.train(load_config(str(run)), tmp_path / "again")
    assert_same_run(tmp_path / "again", uninterrupted)


@pytest.mark.slow
def test_lengths_are_chosen_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Law: 5 steps and then 12 are 12 at once in the same lengths, though 12 alone may choose others, and a table may change."""
    auto = with_lengths(NO_TEXT, "auto")
    loop.train(with_train(auto, steps=5), tmp_path / "run")
    lengths = RunFolder(tmp_path / "run").config().data.bucket_lengths
    with monkeypatch.context() as patch:
        patch.setitem(seconds.COMPILING, "cpu", 0.0)
        with pytest.raises(ValueError, match=r"data\.bucket_lengths was \(.*\) and is now \(39,\)"):
            loop.train(with_lengths(auto, (39,)), tmp_path / "run")
        loop.train(auto, tmp_path / "run")
        loop.train(with_train(auto, steps=5), tmp_path / "other")
    assert RunFolder(tmp_path / "run").config().data.bucket_lengths == lengths
    assert len(RunFolder(tmp_path / "other").config().data.bucket_lengths) > len(lengths) == 1
    assert json.loads((tmp_path / "run" / "config.json").read_text())["data"]["bucket_lengths"] == "auto"
    loop.train(with_lengths(auto, lengths), tmp_path / "explicit")
    assert final_state(tmp_path / "run") == final_state(tmp_path / "explicit")


@pytest.mark.slow
def test_a_stopped_run_can_be_made_shorter_and_get_other_cadences(tmp_path, monkeypatch, capfd):
    """Oracle: by hand. Step 7 is not regular until it is one of the steps that the run saves anyway."""
    with monkeypatch.context() as patch:
        during_step(patch, 7, terminate)
        loop.train(NO_TEXT, tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    loop.train(with_train(NO_TEXT, steps=6), tmp_path / "run")
    assert "7 steps are done already, and train.steps is 6; --train.steps can be raised" in capfd.readouterr().err
    assert rows(tmp_path / "run")[-1]["step"] == 6
    loop.train(with_train(NO_TEXT, steps=7), tmp_path / "run")
    with open_run(tmp_path / "run") as checkpoints:
        assert checkpoints.metrics(7) is not None
        assert checkpoints.is_regular(7)
    loop.train(with_train(NO_TEXT, checkpoint_every=7), tmp_path / "other")
    assert saved(tmp_path / "other") == ["10", "12", "7"]


def test_another_config_is_refused_with_what_differs(uninterrupted):
    other = dataclasses.replace(
        NO_TEXT, optimizer=OptimizerConfig(schedule=Constant(peak_rate=2e-2), weight_decay=0.01, ema_decay=0.9)
    )
    with pytest.raises(ValueError, match=r"optimizer\.schedule\.peak_rate was 0\.01 and is now 0\.02"):
        loop.train(other, uninterrupted)


def test_a_run_continues_with_other_settings_if_that_is_asked_for(copy: Path, tmp_path: Path):
    """Law: the change is a row, and from then on the settings are the run's: nobody has to ask again. The callback sees the row."""
    patient = with_train(NO_TEXT, steps=13, patience=5)
    with pytest.raises(
        ValueError, match=r"train\.patience was None and is now 5\. .*: `flaxformer-lite train .* --train\.patience 5 "
    ):
        loop.train(patient, copy)
    seen: list[dict[str, Any]] = []
    loop.train(patient, copy, [EachRow(seen.append)], with_changes=True)
    assert {"step": 12, "split": "change", "settings": {"train.patience": [None, 5]}} in rows(copy)
    assert [row["split"] for row in seen] == ["change", "train", "eval"]
    for asked in (False, True):
        loop.train(with_train(patient, steps=14), copy, with_changes=asked)
    assert [row["step"] for row in rows(copy) if row["split"] == "change"] == [12]
    with pytest.raises(ValueError, match=r"^--continue-with-changes: .*new has no checkpoint to continue from"):
        loop.train(patient, tmp_path / "new", with_changes=True)
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_run_with_another_rate_is_the_same_with_stops_and_crashes(uninterrupted, tmp_path, monkeypatch):
    """Law: the old moments and the new rate, wherever the run is stopped, also before the first checkpoint with the new rate."""
    with monkeypatch.context() as during:
        during_step(during, 7, terminate)
        loop.train(NO_TEXT, tmp_path / "once")
    shutil.copytree(tmp_path / "once", tmp_path / "disturbed")
    slower = dataclasses.replace(NO_TEXT.optimizer, schedule=Constant(peak_rate=1e-3))
    config = dataclasses.replace(NO_TEXT, optimizer=slower)
    loop.train(config, tmp_path / "once", with_changes=True)
    for step, action in ((8, crash), (9, terminate), (11, crash)):
        with monkeypatch.context() as during, contextlib.suppress(Crash):
            during_step(during, step, action)
            loop.train(config, tmp_path / "disturbed", with_changes=step == 8)
    loop.train(RunFolder(tmp_path / "disturbed").config(), tmp_path / "disturbed")
    assert_same_run(tmp_path / "disturbed", tmp_path / "once")
    rates = {row["step"]: row["learning_rate"] for row in rows(tmp_path / "once") if row["split"] == "train"}
    assert rates == {3: pytest.approx(1e-2), 6: pytest.approx(1e-2), 9: pytest.approx(1e-3), 12: pytest.approx(1e-3)}
    assert final_state(tmp_path / "once") != final_state(uninterrupted)


def test_a_finished_run_keeps_its_config_where_no_step_is_taken(copy: Path):
    """Law: a change that no step was trained with, and fewer steps than there are, leave the settings of config.json."""
    before = RunFolder(copy).config()
    loop.train(with_train(NO_TEXT, patience=5), copy, with_changes=True)
    loop.train(with_train(NO_TEXT, steps=6), copy)
    assert RunFolder(copy).config() == before
    assert (copy / "train.log").read_text().count("config.json keeps its settings") == 2


@pytest.mark.slow
def test_a_run_that_stopped_early_goes_on_with_more_patience(tmp_path, monkeypatch):
    """Oracle: losses given by hand; the second evaluation without a better one ends it, and with more patience the fourth."""
    losses = iter([3.0, 2.0, 2.5, 2.0, 2.0, 2.0])
    monkeypatch.setattr(evaluation, "report", lambda *a: {"loss": next(losses), "accuracy": 0.5, "perplexity": 9.0})
    loop.train(with_train(NO_TEXT, steps=20, eval_every=2, patience=2), tmp_path / "run")
    assert rows(tmp_path / "run")[-1]["step"] == 8
    loop.train(with_train(NO_TEXT, steps=20, eval_every=2, patience=4), tmp_path / "run", with_changes=True)
    assert rows(tmp_path / "run")[-1]["step"] == 12


def test_other_data_is_refused(copy, monkeypatch):
    """The config is the same, the files it names are not: here the generator is made to give other dates."""
    monkeypatch.setattr("flaxformer_lite.files.data.built_in.is_held_out", lambda day: day.toordinal() % 7 == 0)
    with pytest.raises(ValueError, match="the training data is not the data that"):
        loop.train(with_train(NO_TEXT, steps=13), copy)


def test_other_evaluation_data_is_refused(copy, monkeypatch):
    """As above; here the held-out dates are counted backwards."""
    original = Dates.open
    monkeypatch.setattr(Dates, "open", lambda s, *a: list(original(s, *a))[:: -1 if s.split == "held_out" else 1])
    with pytest.raises(ValueError, match="the evaluation data is not the data that"):
        loop.train(with_train(NO_TEXT, steps=13), copy)


def test_a_config_edited_by_hand_is_refused_with_what_differs(copy):
    """The command is `train.py RUN/config.json`: the file and the command agree, the checkpoints do not."""
    text = (copy / "config.json").read_text()
    (copy / "config.json").write_text(text.replace('"peak_rate": 0.01', '"peak_rate": 0.02'))
    with pytest.raises(ValueError, match=r"was made with another config: optimizer\.schedule\.peak_rate was 0\.01"):
        loop.train(RunFolder(copy).config(), copy)


def test_a_second_process_in_the_folder_gets_one_line_and_status_2(copy, tmp_path, command: Command):
    config = write_config_file(tmp_path / "tiny.json", NO_TEXT)
    words = ["train", str(config), "--workdir", str(copy)]
    with RunFolder(copy).lock(NO_TEXT):
        assert command.mistake(*words).startswith(f"error: another process is training in {copy}: ")
    assert "all 12 steps are done" in command(*words).err


# Ended otherwise ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_stops_early_when_the_metric_does_not_improve(tmp_path, monkeypatch, capfd):
    """Oracle: losses given by hand; 3.0, 2.0, then two evaluations without a better one."""
    losses = iter([3.0, 2.0, 2.5, 2.25])
    monkeypatch.setattr(evaluation, "report", lambda *a: {"loss": next(losses), "accuracy": 0.5, "perplexity": 9.0})
    config = with_train(NO_TEXT, steps=12, eval_every=2, patience=2, keep_latest=1, keep_best=1)
    loop.train(config, tmp_path / "run")
    with open_run(tmp_path / "run") as checkpoints:
        assert (checkpoints.latest(), checkpoints.best(), checkpoints.steps()) == (8, 4, [4, 8])
    loop.train(config, tmp_path / "run")
    assert "stopped early at step 8, after 2 evaluations without a better loss" in capfd.readouterr().err


@pytest.mark.slow
def test_a_damaged_newest_checkpoint_costs_only_the_steps_since_the_one_before(uninterrupted, copy, capfd):
    """Law: with step 12 garbled the run goes on from step 10, says so, and ends the same."""
    (copy / "checkpoints" / "12" / "meta" / "meta.json").write_bytes(b"{")
    loop.train(NO_TEXT, copy)
    assert capfd.readouterr().err.count("using checkpoint 10 instead") == 1
    assert_same_run(copy, uninterrupted)


def test_a_mistake_at_the_first_start_can_be_mended(tmp_path):
    """Nothing was trained, so the folder does not insist on the wrong config."""
    wrong = dataclasses.replace(
        NO_TEXT, data=dataclasses.replace(NO_TEXT.data, train=ParallelText(source="no", target="where"))
    )
    with pytest.raises(ValueError, match="no"):
        loop.train(wrong, tmp_path / "run")
    loop.train(with_train(NO_TEXT, steps=1), tmp_path / "run")


def test_a_garbled_row_does_not_stop_the_run(copy, capfd):
    lines = (copy / "metrics.jsonl").read_bytes().split(b"\n")
    lines[1] = b"\0" * 8
    (copy / "metrics.jsonl").write_bytes(b"\n".join(lines))
    loop.train(with_train(NO_TEXT, steps=13), copy)
    assert "line 2 is not a row of metrics" in capfd.readouterr().err
    assert len(rows(copy)) == 6 + 2


@pytest.mark.slow
@pytest.mark.parametrize("log_every", [1, 50])
def test_a_loss_that_is_not_finite_ends_the_run_with_a_word(tmp_path, monkeypatch, capfd, log_every: int):
    """Parameters spoilt after step 6 skip step 7, a warning, and step 8, whose checkpoint is not saved: a few in a row suffice."""
    spoil_parameters(monkeypatch, 6)
    for limit, message in (
        (9, "not finite after step 8"),
        (2, r"at step 8, the last of 2 steps .*: lower optimizer\.sch"),
    ):
        config = with_train(NO_TEXT, log_every=log_every, max_skipped_steps=limit)
        with pytest.raises(Failure, match=message):
            loop.train(config, tmp_path / str(limit))
        assert saved(tmp_path / str(limit)) == ["4", "5"]
    assert (
        capfd.readouterr().err.count("warning: the loss is nan and the gradient's norm nan at step 7: its update was")
        == 2
    )


@pytest.mark.slow
def test_a_run_that_continues_with_more_rows_misses_none(tmp_path, monkeypatch, capfd):
    """The rows before are as far apart as `train.log_every` was then: none of the first 8 steps was due."""
    with monkeypatch.context() as patch:
        during_step(patch, 10, crash)
        with pytest.raises(Crash):
            loop.train(with_train(NO_TEXT, log_every=50), tmp_path / "run")
    assert [row["step"] for row in rows(tmp_path / "run") if row["split"] == "train"] == []
    loop.train(with_train(NO_TEXT, log_every=2), tmp_path / "run")
    assert "resuming after step 8" in (tmp_path / "run" / "train.log").read_text()
    assert "lacks the rows" not in capfd.readouterr().err
    assert [row["step"] for row in rows(tmp_path / "run") if row["split"] == "train"] == [10, 12]


@pytest.mark.slow
def test_an_evaluation_that_is_not_finite_is_null_in_every_row(copy, monkeypatch, command: Command):
    """Oracle: a reader of strict JSON, on the file, on `on_row` and on `inspect --json`."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    monkeypatch.setattr(evaluation.Evaluator, "evaluate", lambda *_: {"loss": float("nan"), "accuracy": 0.5})
    seen: list[dict[str, Any]] = []
    loop.train(with_train(NO_TEXT, steps=13), copy, [EachRow(seen.append)])
    expected = {"step": 13, "split": "eval", "loss": None, "accuracy": 0.5}
    written = [json.loads(line, parse_constant=refuse) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    assert expected in seen and expected in written
    found = json.loads(command("inspect", copy, "--json").out, parse_constant=refuse)
    assert found["checkpoints"][-1]["metrics"] == {"loss": None, "accuracy": 0.5}


@pytest.mark.slow
def test_parameters_that_are_not_finite_are_neither_saved_nor_resumed(uninterrupted, tmp_path, monkeypatch, capfd):
    """Law: spoilt by the update of step 8, they are not saved; a checkpoint of an older release that has them is passed over."""
    with monkeypatch.context() as patch:
        spoil_parameters(patch, 8)
        with pytest.raises(Failure, match="not finite after step 8, which was not saved: lower"):
            loop.train(NO_TEXT, tmp_path / "run")
        assert saved(tmp_path / "run") == ["4", "5"]
        patch.setattr(loop, "all_finite", lambda _: True)
        with pytest.raises(Failure, match="at step 9"):
            loop.train(with_train(NO_TEXT, max_skipped_steps=1), tmp_path / "run")
    assert saved(tmp_path / "run") == ["4", "5", "8"]
    loop.train(NO_TEXT, tmp_path / "run")
    assert "8 in " in (line := capfd.readouterr().err) and "(it has a NaN or an infinity); using checkpoint 5" in line
    assert_same_run(tmp_path / "run", uninterrupted)


def leave_out(monkeypatch: pytest.MonkeyPatch, first: int, count: int) -> None:
    original = Dataset.batch
    monkeypatch.setattr(
        Dataset,
        "batch",
        lambda self, n, *rest: original(self, n + count * (n >= first and self.draw is not draw_by_example), *rest),
    )


@pytest.mark.slow
def test_skipped_steps_push_out_no_checkpoint(tmp_path, monkeypatch, capfd):
    """Oracle: by hand. Step 6 is the last update: of the due steps 7 to 9 none is saved, and the message is true."""
    config = with_train(NO_TEXT, checkpoint_every=1, keep_latest=2, max_skipped_steps=4, log_every=1)
    poison(monkeypatch, *range(6, 10))
    with pytest.raises(Failure, match=r"at step 10, .* the checkpoints before step 7 are untouched"):
        loop.train(config, tmp_path / "run")
    assert saved(tmp_path / "run") == ["5", "6"]
    poison(monkeypatch, *range(10))
    with pytest.raises(Failure, match=r"at step 4, .* none was saved before"):
        loop.train(config, tmp_path / "early")
    assert saved(tmp_path / "early") == []


@pytest.mark.slow
def test_a_run_with_skipped_steps_is_the_same_with_stops_and_crashes_among_them(tmp_path, monkeypatch):
    """Law: steps 8 to 10 are skipped, a checkpoint and an evaluation among them, and step 12, which is saved as the last one."""
    poison(monkeypatch, 7, 8, 9, 11)
    loop.train(NO_TEXT, tmp_path / "once")
    assert saved(tmp_path / "once") == ["12", "4", "5"]
    assert [row["step"] for row in rows(tmp_path / "once") if row["split"] == "eval"] == [5, 10, 12]
    for step, action in ((8, terminate), (9, crash), (9, terminate), (10, terminate), (11, crash)):
        with monkeypatch.context() as during, contextlib.suppress(Crash):
            during_step(during, step, action)
            loop.train(NO_TEXT, tmp_path / "disturbed")
        assert {"4", "5"} <= set(saved(tmp_path / "disturbed"))
    loop.train(NO_TEXT, tmp_path / "disturbed")
    assert_same_run(tmp_path / "disturbed", tmp_path / "once")


CAREFUL = with_train(NO_TEXT, log_every=1, max_skipped_steps=2, max_rollbacks=1)


@pytest.mark.slow
def test_a_rollback_ends_like_a_run_whose_data_never_had_these_batches(tmp_path, monkeypatch, capfd):
    """Law: batches 9 and 10 spoil steps 10 and 11, so batches 8 to 10 are left out."""
    with monkeypatch.context() as patch:
        leave_out(patch, 8, 3)
        loop.train(CAREFUL, tmp_path / "without")
    poison(monkeypatch, 9, 10)
    loop.train(CAREFUL, tmp_path / "once")
    assert (
        "returned to the checkpoint of step 8; batches 8 to 10 are left out (rollback 1 of 1)" in capfd.readouterr().err
    )
    assert final_state(tmp_path / "once") == final_state(tmp_path / "without")
    found, expected = ({row["step"]: row for row in rows(tmp_path / name)} for name in ("once", "without"))
    assert all(found[step]["loss"] == expected[step]["loss"] for step in expected)
    assert [row.get("rollbacks") for row in rows(tmp_path / "once") if row["split"] == "train"] == [None] * 8 + [1] * 4


@pytest.mark.slow
def test_a_rollback_is_the_same_with_a_stop_and_a_crash_on_the_way(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        poison(patch, 9, 10)
        loop.train(CAREFUL, tmp_path / "once")
        for step, action in ((9, terminate), (11, crash), (12, crash)):
            with patch.context() as during, contextlib.suppress(Crash):
                during_step(during, step, action)
                loop.train(CAREFUL, tmp_path / "disturbed")
        assert "9" not in saved(tmp_path / "disturbed")
        loop.train(CAREFUL, tmp_path / "disturbed")
    assert_same_run(tmp_path / "disturbed", tmp_path / "once")


@pytest.mark.slow
def test_no_rollback_is_left_or_there_is_no_checkpoint_to_return_to(tmp_path, monkeypatch, capfd):
    poison(monkeypatch, 9, 10, 11, 12)
    with pytest.raises(Failure, match="at step 10, the last of 2 steps in a row without an update"):
        loop.train(CAREFUL, tmp_path / "limited")
    assert capfd.readouterr().err.count("returned to") == 1
    poison(monkeypatch, 1, 2)
    with pytest.raises(Failure, match="at step 3, the last of 2 steps"):
        loop.train(CAREFUL, tmp_path / "early")


@pytest.mark.slow
def test_a_spike_is_rolled_back(tmp_path, monkeypatch, capfd):
    """The second spike is reported only."""
    spikes = iter([None] * 6 + ["far above"] + [None] * 3 + ["far above"] + [None] * 99)
    monkeypatch.setattr(LoopState, "spike", lambda state, loss: next(spikes))
    loop.train(CAREFUL, tmp_path / "run")
    said = [line for line in capfd.readouterr().err.splitlines() if "a loss spike" in line or "returned" in line]
    assert said == [
        "step      7  a loss spike on batch 6: far above",
        "step      7  returned to the checkpoint of step 5; batches 5 to 6 are left out (rollback 1 of 1)",
        "step      9  a loss spike on batch 10: far above",
    ]
    assert [row["step"] for row in rows(tmp_path / "run") if row["split"] == "train"] == list(range(1, 13))


# Real processes --------------------------------------------------------------------------------------------------------


def start(config: Path, folder: Path, cache: Path) -> subprocess.Popen:
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    command = [sys.executable, str(ROOT / "train.py"), str(config), "--workdir", str(folder)]
    return subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_real_process_saves_and_exits_0_on_a_signal(tmp_path, number: signal.Signals):
    """After SIGHUP also with nobody left to read its stderr, as when a terminal is closed."""
    config = write_config_file(tmp_path / "tiny.json", with_train(CONFIG, steps=10_000))
    process = start(config, tmp_path / "run", tmp_path / "cache")
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    if number == signal.SIGHUP:
        process.stderr.close()
    process.send_signal(number)
    assert process.wait(60) == 0
    process.stderr.close()
    assert f"{number.name}: saved after step" in (tmp_path / "run" / "train.log").read_text()


def test_compiling_in_an_evaluation_counts_for_no_time_left(monkeypatch: pytest.MonkeyPatch):
    """Oracle: by hand. Of an evaluation 7 s are compiling."""
    seconds = iter([2.0, 9.0])
    monkeypatch.setattr(loop, "compiling_seconds", lambda: next(seconds))
    run = Mock(config=NO_TEXT, counts=lambda: False)
    run.evaluator.evaluate.return_value = {"loss": 1.0}
    assert loop.Loop.evaluate(run) == {"loss": 1.0}
    run.progress.leave_out.assert_called_once_with(7.0)


def test_compiling_a_shape_is_shown_and_counts_for_no_speed(monkeypatch: pytest.MonkeyPatch):
    """Oracle: by hand. The first batch of each of two shapes takes 10 s, the others 1 s."""
    clock, left_out = [0.0], {"throughput": [], "progress": []}
    monkeypatch.setattr("flaxformer_lite.training.loop.time.perf_counter", lambda: clock[0])

    def step(state: int, batch: Batch, *, with_norm: bool) -> tuple[int, dict[str, jax.Array]]:
        clock[0] += (
            1
            if batch.inputs.source_tokens.shape in [other.inputs.source_tokens.shape for other in batches[:state]]
            else 10
        )
        return state + 1, {}

    batches = [zero_batch(CONFIG.objective, Bucket(Lengths(size, 4), 1)) for size in (4, 4, 8, 4, 8)]
    run = SimpleNamespace(compiled=set(), started=None, state=0, step=0, runner=SimpleNamespace(train_step=step))
    run.data, run.row_due = SimpleNamespace(plan=SimpleNamespace(buckets=["of 4", "of 8"])), lambda step: False
    programs: list[str] = []
    shown: list[tuple[Any, ...]] = []
    run.throughput = SimpleNamespace(leave_out=left_out["throughput"].append)
    run.progress = SimpleNamespace(
        leave_out=left_out["progress"].append,
        within=lambda activity: shown.append((activity, clock[0])),
        update=lambda activity, step: shown.append((activity, step, clock[0])),
        show=lambda name, text: programs.append(text),
    )
    for batch in batches:
        assert loop.Loop.start_step(run, batch) == {}
    assert run.state == run.step == 5 and left_out == {"throughput": [10, 10], "progress": [10, 10]}
    assert shown == [("compiling", 0), ("training", 0, 10), ("compiling", 11), ("training", 2, 21)]
    assert programs == ["up to 1 more to compile", ""]
