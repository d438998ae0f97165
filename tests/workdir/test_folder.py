"""Hand-worked cases of the run folder: who may use it, and what is in its files."""

import contextlib
import dataclasses
import errno
import fcntl
import json
import math
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite.base.console import Failure
from flaxformer_lite.config.load import load_config
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.optim.schedules import Constant, Noam
from flaxformer_lite.workdir.folder import MOST_ANSWERS, RunFolder
from tests.support.experiments import tiny_config, with_train

CONFIG = tiny_config()


def lock(path: Path) -> None:
    with RunFolder(path).lock(CONFIG):
        pass


def test_a_folder_with_other_files_is_no_run_folder(tmp_path):
    (tmp_path / "holiday.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match=r"holds files but no config\.json"):
        lock(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["holiday.jpg"]
    with pytest.raises(ValueError, match=r"holiday\.jpg is a file: choose a folder"):
        lock(tmp_path / "holiday.jpg")


def test_what_a_process_killed_at_its_first_start_left_does_not_matter(tmp_path):
    for name in (".lock", ".config.json.4321.unfinished"):
        (tmp_path / name).write_bytes(b"")
    with RunFolder(tmp_path).lock(CONFIG):
        assert RunFolder(tmp_path).config() == CONFIG


def test_a_cached_import_is_called_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By hand: a folder, a model of the hub, and a run elsewhere that was imported from the same one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cached, elsewhere = tmp_path / "flaxformer_lite/models/bert-1234", tmp_path / "runs/bert"
    for folder in (cached, elsewhere):
        folder.mkdir(parents=True)
        assert RunFolder(folder).called == str(folder)
    for given, called in (("./bert", "./bert"), ("hf://org/bert@1234", "org/bert@1234")):
        for folder in (cached, elsewhere):
            (folder / "imported.json").write_text(json.dumps({"system": "hf", "weights": given}))
        assert RunFolder(cached).called == called and RunFolder(elsewhere).called == str(elsewhere)


def test_where_nothing_can_be_locked_it_says_so_and_goes_on(tmp_path, monkeypatch, capfd):
    def flock(number: int) -> Callable[..., None]:
        def fail(*_: Any) -> None:
            raise OSError(number, os.strerror(number))

        return fail

    for number in (errno.ENOLCK, errno.ENOTSUP):
        monkeypatch.setattr(fcntl, "flock", flock(number))
        with RunFolder(tmp_path).lock(CONFIG):
            assert f"cannot be locked ({os.strerror(number)})" in capfd.readouterr().err
    monkeypatch.setattr(fcntl, "flock", flock(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"), RunFolder(tmp_path).lock(CONFIG):
        pass


def test_a_folder_is_known_by_the_mark_of_who_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A copy has the mark of an earlier holder, an empty folder none; a file system that is slow to tell gets some seconds."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    folder, copy = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "copy")
    with folder.lock(CONFIG) as mark:
        folder.check_mark(mark)
        with pytest.raises(ValueError, match="copy is not the folder that the first process writes to"):
            copy.check_mark(mark)
    shutil.copytree(folder.path, copy.path)
    with folder.lock(CONFIG) as mark:
        folder.check_mark(mark)
        with pytest.raises(ValueError, match="copy is not the folder that the first process writes to"):
            copy.check_mark(mark)
        monkeypatch.setattr("time.sleep", lambda wait: wait and shutil.copy(folder.path / ".lock", copy.path))
        copy.check_mark(mark)


def test_a_lock_that_was_replaced_ends_the_run(tmp_path: Path):
    """Law: of two processes in one folder, the one that had the lock first stops before it saves."""
    path, first, second = tmp_path / "run", RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    second.check_lock()  # it holds none
    with first.lock(CONFIG):
        first.check_lock()
        with pytest.raises(ValueError, match="another process is training"):
            lock(path)
        (path / ".lock").unlink()
        first.check_lock()
        with second.lock(CONFIG):
            second.check_lock()
            second.append(ROWS[0])
            for action in (first.check_lock, lambda: first.append(ROWS[1])):
                with pytest.raises(Failure, match="another process has started to train"):
                    action()
            assert second.rows() == ROWS[:1]


@pytest.mark.parametrize(
    ("rows", "folder_there", "refused"),
    [
        ((), False, False),
        ((3,), True, False),  # killed before the first checkpoint
        ((3, 4), True, False),  # killed while the first one was written
        ((3, 5), True, False),  # as well: the second one is due at 5
        ((3, 6), True, True),  # the second one was begun, so the first was complete
        ((3,), False, True),  # the trainer makes the folder before the first row
    ],
)
def test_lost_checkpoints_are_noticed_before_anything_is_erased(
    tmp_path: Path, rows: tuple[int, ...], folder_there: bool, refused: bool
):
    """Oracle: by hand, for checkpoints every 4 steps and evaluations every 5."""
    config = tiny_config()
    folder = RunFolder(tmp_path)
    with folder.lock(config):
        (tmp_path / "tokenizer.json").touch()
        for step in rows:
            folder.append({"step": step, "split": "train"})
        if folder_there:
            folder.checkpoints.mkdir()
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file() and file.name != ".lock"}
    for other in (config, with_train(config, seed=1)):
        refusal = pytest.raises(ValueError, match="jsonl knows of ") if refused else contextlib.nullcontext()
        with refusal, folder.lock(other):
            folder.check_nothing_lost()
        if refused:
            assert before == {name: (tmp_path / name).read_bytes() for name in before}


def test_more_frequent_checkpoints_after_a_kill_before_the_first_one_are_no_loss(tmp_path: Path):
    """The natural answer to nine lost steps: the rows were made with the periods of before."""
    config = tiny_config()
    folder = RunFolder(tmp_path)
    with folder.lock(with_train(config, checkpoint_every=10, eval_every=10)):
        folder.append({"step": 9, "split": "train"})
        folder.checkpoints.mkdir()
    again = RunFolder(tmp_path)
    with again.lock(with_train(config, checkpoint_every=1, eval_every=10)):
        again.check_nothing_lost()


def test_an_empty_mount_point_in_place_of_the_only_checkpoint_is_noticed(tmp_path: Path):
    folder = RunFolder(tmp_path)
    with folder.lock(CONFIG):
        folder.append({"step": 3, "split": "train"})
        (folder.checkpoints / "3").mkdir(parents=True)
    (folder.checkpoints / "3").rmdir()
    with pytest.raises(ValueError, match=r"knows of 3 steps, but .* has no checkpoint: mount or restore"):
        folder.check_nothing_lost()
    folder.metrics.unlink()
    folder.check_nothing_lost()


def test_the_refusal_of_other_settings_prints_the_command_that_continues_with_them(tmp_path: Path):
    """Law: the printed command, read by the real parser, has exactly the settings that were refused."""
    run = tmp_path / "a run"
    lock(run)
    (run / "checkpoints" / "4").mkdir(parents=True)
    slower = dataclasses.replace(CONFIG.optimizer, schedule=Constant(peak_rate=3e-4), weight_decay=0.0, clip_norm=None)
    other = dataclasses.replace(with_train(CONFIG, steps=99, trackers=("wandb", "trackio")), optimizer=slower)
    with (
        pytest.raises(ValueError, match=r"peak_rate was 0\.01 and is now 0\.0003") as refused,
        RunFolder(run).lock(other),
    ):
        pass
    _, command, end = str(refused.value).split("`")
    program, train, file, *options, flag = shlex.split(command)
    assert (program, train, flag, end) == ("flaxformer-lite", "train", "--continue-with-changes", "")
    assert load_config(file, options) == other
    with RunFolder(run, with_changes=True).lock(other):
        assert RunFolder(run).config() == other


def test_a_refusal_prints_no_command_where_there_is_none(tmp_path: Path):
    """Oracle: by hand. A kind is chosen in a config file; the width of a model changes in no run."""
    lock(tmp_path)
    (tmp_path / "checkpoints" / "4").mkdir(parents=True)
    kind = dataclasses.replace(CONFIG, optimizer=dataclasses.replace(CONFIG.optimizer, schedule=Noam()))
    wider = dataclasses.replace(kind, model=dataclasses.replace(CONFIG.model, d_ff=7))
    for other, with_changes, end in (
        (kind, False, "or the old settings; to continue with the new ones, add --continue-with-changes to the command"),
        (wider, False, "or the old settings; no run continues with another model.d_ff"),
        (wider, True, "is now 7. Use another run folder, or the old settings"),
    ):
        with (
            pytest.raises(ValueError, match=f"{re.escape(end)}$"),
            RunFolder(tmp_path, with_changes=with_changes).lock(other),
        ):
            pass


def test_changes_of_settings_are_kept_with_the_step_from_which_they_hold(tmp_path: Path):
    """Oracle: by hand. Two changes after one step are one; a run that returns to an earlier step goes on with them from there."""
    folder, rate, decay = RunFolder(tmp_path), "optimizer.schedule.peak_rate", "optimizer.weight_decay"
    for step, settings in (
        (2, {rate: (3.0, 2.0)}),
        (4, {rate: (2.0, 1.0)}),
        (4, {rate: (1.0, 0.5), decay: (0.0, None)}),
    ):
        folder.append({"step": step, "split": "train", "loss": 1.0})
        folder.append({"step": step, "split": "change", "settings": settings})
    changes = [row for row in folder.rows() if row["split"] == "change"]
    assert [(row["step"], row["settings"]) for row in changes] == [
        (2, {rate: [3.0, 2.0]}),
        (4, {rate: [2.0, 0.5], decay: [0.0, None]}),
    ]
    folder.truncate_metrics(1)
    assert folder.rows() == [{"step": 1, "split": "change", "settings": {rate: [3.0, 0.5], decay: [0.0, None]}}]


ROWS = [
    {"step": step, "split": split, "loss": step / 2}
    for step, split in ((1, "train"), (2, "train"), (2, "eval"), (3, "train"))
]


@pytest.mark.parametrize(("evaluated", "kept"), [(True, 3), (False, 2)])
def test_metrics_are_truncated_to_a_step(tmp_path: Path, evaluated: bool, kept: int):
    """Oracle: by hand. Of step 2 the evaluation stays only if the checkpoint has it."""
    folder = RunFolder(tmp_path)
    for row in ROWS:
        folder.append(row)
    assert folder.rows() == ROWS
    folder.truncate_metrics(2, **({} if evaluated else {"evaluated": False}))
    assert folder.rows() == ROWS[:kept]


def test_results_are_those_of_evaluate_or_else_of_the_training(tmp_path: Path):
    """Oracle: by hand. Training evaluates neither averages nor ema."""
    folder = RunFolder(tmp_path)
    for row in ROWS:
        folder.append(row)
    assert [folder.results(2, weights) for weights in ("last", "best", "ema")] == [[ROWS[2]], [ROWS[2]], []]
    report = {"step": 2, "weights": "ema", "bleu": 30.0}
    (tmp_path / "evaluations").mkdir()
    (tmp_path / "evaluations/test.json").write_text(json.dumps(report))
    assert [folder.results(2, weights) for weights in ("last", "ema")] == [[ROWS[2]], [report]]


def test_rows_that_two_processes_wrote_count_once(tmp_path: Path):
    """Oracle: by hand, for a folder of an older release: one process was ahead of the other, and the last row of a step counts."""
    folder, slow = RunFolder(tmp_path), [{**row, "tokens_per_second": 7} for row in ROWS]
    for row in (*ROWS[:3], slow[0], ROWS[3], *slow[1:3]):
        folder.append(row)
    expected = [*slow[:3], ROWS[3]]
    assert folder.rows() == expected
    folder.truncate_metrics(3)
    assert [json.loads(line) for line in folder.metrics.read_text(encoding="utf-8").splitlines()] == expected


def test_numbers_that_are_not_finite_are_null_and_none(tmp_path: Path):
    """JSON has neither NaN nor infinity: a strict reader of metrics.jsonl refuses them. Rows of older runs may have them."""
    folder, row = RunFolder(tmp_path), {"step": 4, "split": "eval"}
    folder.append(row | {"loss": math.nan, "bleu": -math.inf, "accuracy": 0.5})
    with open(tmp_path / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 6, "split": "eval", "loss": NaN}\n')
    expected = [row | {"loss": None, "bleu": None, "accuracy": 0.5}, row | {"step": 6, "loss": None}]
    assert folder.rows() == expected
    folder.truncate_metrics(8)
    lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line, parse_constant=pytest.fail) for line in lines] == expected


def test_a_silent_folder_writes_no_reports(tmp_path: Path):
    RunFolder(tmp_path).append(ROWS[0])
    silent = RunFolder(tmp_path, silent=True)
    silent.append(ROWS[1])
    silent.truncate_metrics(0)
    silent.write_hypotheses("eval", [Pair("a", "b")], ["c"])
    assert silent.rows() == ROWS[:1] and [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("damage", ["none", "cut", "zeroed", "gone"])
def test_lost_rows_of_metrics_are_reported(tmp_path: Path, damage: str, capsys: pytest.CaptureFixture):
    """Rows every 10 steps, every 30 before; the run goes on after step 94."""
    folder = RunFolder(tmp_path)
    for step in (30, 60, 70, 80, 90, 100):
        folder.append({"step": step, "split": "train"})
    content = folder.metrics.read_bytes()
    folder.metrics.write_bytes({"cut": content[:70], "zeroed": bytes(len(content))}.get(damage, content))
    if damage == "gone":
        folder.metrics.unlink()
    folder.truncate_metrics(94, log_every=10)
    lost = {"cut": "steps 61 to 94", "zeroed": "steps 1 to 94", "gone": "steps 1 to 94"}
    expected = (
        f"warning: {folder.metrics} lacks the rows of {lost.get(damage)}: it was cut or damaged, those are lost\n"
    )
    assert capsys.readouterr().err == ("" if damage == "none" else expected)


def test_more_frequent_rows_than_before_are_not_missed(tmp_path: Path, capsys: pytest.CaptureFixture):
    """Rows every 30 steps until step 60; a run that continues after step 75 with a row every 10 has lost none."""
    folder = RunFolder(tmp_path)
    for step in (30, 60):
        folder.append({"step": step, "split": "train"})
    folder.truncate_metrics(75, log_every=10)
    assert capsys.readouterr().err == ""
    folder.truncate_metrics(90, log_every=10)
    assert "lacks the rows of steps 61 to 90" in capsys.readouterr().err


@pytest.mark.parametrize(
    "value",
    ["[" * 5000, '{"step": [1], "split": "eval"}', '{"step": 1, "split": "eval", "loss": [1]}', f"1{'0' * 400}"],
)
def test_what_is_no_row_is_passed_over_and_what_is_no_report_is_named(
    tmp_path: Path, value: str, capsys: pytest.CaptureFixture
):
    folder = RunFolder(tmp_path)
    folder.append(ROWS[0])
    (tmp_path / "evaluations").mkdir()
    for file in (folder.metrics, tmp_path / "evaluations/test.json"):
        with open(file, "a", encoding="utf-8") as written:
            written.write(value + "\n")
    assert folder.rows() == ROWS[:1]
    assert capsys.readouterr().err == f"warning: {folder.metrics}, line 2 is not a row of metrics: it was skipped\n"
    if not value.startswith("{"):
        with pytest.raises(ValueError, match=r"test\.json is not a report of evaluate: delete it, or evaluate again"):
            folder.results(1, "last")
    folder.append({"step": 2, "split": "eval", "perplexity": math.inf, "loss": None, "epoch": 1})
    assert len(folder.rows()) == 2


def test_answers_of_the_last_evaluations_and_of_checkpoints_are_kept(tmp_path: Path):
    folder = RunFolder(tmp_path)
    (folder.checkpoints / "20").mkdir(parents=True)
    folder.write_hypotheses("test", [Pair("a", "b")], ["c"])
    for step in range(10, 10 * (MOST_ANSWERS + 5), 10):
        folder.write_hypotheses(f"eval-step-{step:08}", [Pair("a", "b")], ["c"])
    for kind in ("samples", "hypotheses"):
        kept = [20, *range(50, 10 * (MOST_ANSWERS + 5), 10)]
        names = {path.name for path in (tmp_path / kind).iterdir()}
        assert names == {"test.txt", *(f"eval-step-{step:08}.txt" for step in kept)}


def begin(path: Path, files: tuple[str, ...], error: Exception) -> list[str] | None:
    """Starts a run that ends in an error before its first step, and returns what it leaves behind; None: no folder."""

    def run() -> None:
        with RunFolder(path).lock(CONFIG):
            (path / "checkpoints").mkdir(exist_ok=True)
            for file in ("train.log", "tokenizer.model", *files):
                (path / file).parent.mkdir(exist_ok=True)
                (path / file).write_text("x")
            raise error

    with pytest.raises(type(error)):
        run()
    return sorted(file.name for file in path.iterdir()) if path.is_dir() else None


def test_a_mistake_before_anything_was_trained_leaves_no_run_behind(tmp_path: Path):
    """A folder of the user's stays, and so does a run that has rows, a checkpoint or files of somebody else."""
    mistake, made = ValueError("model.vocab_size is too high"), [".lock", "config.json", "tokenizer.model", "train.log"]
    (tmp_path / "own").mkdir()
    assert begin(tmp_path / "own", (), mistake) == []
    assert begin(tmp_path / "new", (), mistake) is None
    assert begin(tmp_path / "rows", ("metrics.jsonl",), mistake) == sorted([*made, "metrics.jsonl"])
    assert begin(tmp_path / "notes", ("notes.txt",), mistake) == sorted([*made, "notes.txt"])
    assert begin(tmp_path / "trained", ("checkpoints/3",), mistake) == sorted([*made, ".state.json", "checkpoints"])
    crashed = sorted([*made, "checkpoints"])
    assert begin(tmp_path / "crashed", (), KeyError("may be looked into")) == crashed
    assert begin(tmp_path / "crashed", (), mistake) == crashed, "an earlier command made it"


@pytest.mark.parametrize(
    "text", ["5", "null", '"a"', "[5]", "{", "", "[" * 100_000, "\xff", '[{"name": "a"}]', "[[1]]"]
)
def test_a_garbled_file_of_origins_is_refused_in_one_line(tmp_path: Path, text: str):
    """Law: whatever imported.json and taught_by.json hold."""
    for name, read in (("imported.json", lambda run: run.imported), ("taught_by.json", lambda run: run.teachers)):
        assert not read(RunFolder(tmp_path))
        (tmp_path / name).write_bytes(text.encode("latin-1"))
        with pytest.raises(ValueError, match=rf"{name} is garbled: restore it"):
            read(RunFolder(tmp_path))
