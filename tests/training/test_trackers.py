"""Oracles: each tracker's own reader of what it was given; a tracker that fails."""

import contextlib
import functools
import json
import logging
import math
import sqlite3
import struct
import sys
import time
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from flaxformer_lite.base.console import Progress
from flaxformer_lite.config.train import TrackerName
from flaxformer_lite.training import TrainingRun, trackers
from flaxformer_lite.training.trackers import TRACKERS, Trackers, tracker_id
from flaxformer_lite.workdir.folder import RunFolder
from tests.support import needs
from tests.support.experiments import tiny_config

CONFIG = tiny_config()


def row(step: int, loss: float | None, split: str = "train") -> dict[str, Any]:
    return {"step": step, "split": split, "loss": loss, "tokens_per_second": 2 * step}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


@contextlib.contextmanager
def opened(name: TrackerName, folder: RunFolder) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that gives rows to a tracker, as a training does."""
    run = Mock(spec=TrainingRun, folder=folder, config=CONFIG, progress=Progress())
    hook = Trackers((name,))
    hook.on_start(run)
    yield functools.partial(hook.on_row, run)
    hook.on_end(run)


class Lines:
    """A tracker that keeps what it is given, and fails at one step."""

    fails_at = -1
    last: "Lines"

    def __init__(self, folder: RunFolder, config: object) -> None:
        self.lines: list[object] = []
        Lines.last = self

    def write(self, step: int, values: dict[str, float]) -> None:
        if step == self.fails_at:
            raise OSError("the network is down")
        self.lines.append((step, values))

    def close(self) -> None:
        self.lines.append("closed")


def test_every_tracker_of_the_settings_is_there():
    assert typing.get_args(TrackerName) == tuple(TRACKERS)


def test_finite_numbers_are_passed_on_under_their_split(folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(TRACKERS, "wandb", Lines)
    with opened("wandb", folder) as write:
        write(row(3, None) | {"gradient_norm": math.inf, "note": "text"})
        write(row(5, 0.5, "eval"))
    first, second, end = Lines.last.lines
    assert first == (3, {"train/tokens_per_second": 6.0}) and end == "closed"
    assert second == (5, {"eval/loss": 0.5, "eval/tokens_per_second": 10.0})


def test_one_that_fails_is_reported_once_and_left_out(folder, monkeypatch, capsys: pytest.CaptureFixture):
    monkeypatch.setitem(TRACKERS, "wandb", Lines)
    monkeypatch.setattr(Lines, "fails_at", 2)
    with opened("wandb", folder) as write:
        for step in (1, 2, 3):
            write(row(step, 0.5))
    assert [line[0] for line in Lines.last.lines] == [1]
    warning = "warning: train.trackers wandb failed, and training continues without it (OSError: the network is down)\n"
    assert capsys.readouterr().err == warning


def test_one_that_is_not_installed_is_a_warning_with_the_command(folder, monkeypatch, capsys: pytest.CaptureFixture):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with opened("tensorboard", folder) as write:
        write(row(1, 0.5))
    err = capsys.readouterr().err
    assert err.count("warning") == 1 and err.endswith('pip install "flaxformer-lite[tensorboard]"\n')


def test_the_name_at_a_tracker_stays_with_the_run_folder(folder: RunFolder):
    name = tracker_id(folder, "wandb")
    assert name.startswith("run-") and tracker_id(folder, "wandb") == name
    assert json.loads((folder.path / trackers.TRACKED_RUNS).read_text()) == {"wandb": name}
    assert tracker_id(folder, "trackio") != name and tracker_id(folder, "wandb") == name


def write_twice(name: TrackerName, folder: RunFolder) -> None:
    """Two processes: the second continues from step 2, so it writes step 3 anew."""
    for steps in ((1, 2, 3), (3, 4)):
        with opened(name, folder) as write:
            for step in steps:
                write(row(step, 1 / step if len(steps) == 3 else -1 / step))
        time.sleep(1.1 * (name == "wandb"))  # it names the files of a process by the second of its start


def test_after_a_rollback_tensorboard_deletes_the_steps_that_come_again(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
):
    tensorboard = Mock()
    monkeypatch.setitem(sys.modules, "tensorboardX", tensorboard)
    with opened("tensorboard", folder) as write:
        for step in (1, 2, 2, 3, 2, 3):
            write(row(step, 0.5))
    assert [call.kwargs["purge_step"] for call in tensorboard.SummaryWriter.call_args_list] == [1, 2]
    assert tensorboard.SummaryWriter.return_value.close.call_count == 2


@pytest.mark.slow
@needs.tensorboard
def test_tensorboard_reads_each_step_once(folder: RunFolder):
    """Oracle: TensorBoard's own reader; of step 3 the value of the process that came last."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write_twice("tensorboard", folder)
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it says that it purged a step
    found = EventAccumulator(str(folder.path / "tensorboard"))
    found.Reload()
    losses = [(event.step, event.value) for event in found.Scalars("train/loss")]
    assert losses == [(1, 1.0), (2, 0.5), (3, pytest.approx(-1 / 3)), (4, -0.25)]


def log_records(data: bytes) -> Iterator[bytes]:
    """Yields the records of a file of wandb: LevelDB's log, after 7 bytes of its own. A record is cut at 32 KiB."""
    record, place = b"", 7
    while place + 7 <= len(data):
        if 2**15 - place % 2**15 < 7:
            place += 2**15 - place % 2**15
            continue
        size, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        record += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


@pytest.mark.slow
@needs.wandb
def test_wandb_offline_continues_the_same_run(folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
    """Oracle: the records that wandb would upload, as its own protocol describes them."""
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    write_twice("wandb", folder)
    found, names = [], set()
    for path in sorted((folder.path / "wandb").glob("offline-run-*/*.wandb")):
        for data in log_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                names.add(record.run.run_id)
            if record.HasField("history"):
                items = {
                    "/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item
                }
                found.append((items["step"], items["train/loss"]))
    assert names == {tracker_id(folder, "wandb")}
    assert found == [(1, 1.0), (2, 0.5), (3, 1 / 3), (3, -1 / 3), (4, -0.25)]


@pytest.mark.slow
@needs.trackio
def test_trackio_continues_the_same_run(folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Oracle: trackio's own files, read as the database that they are."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    write_twice("trackio", folder)
    (database,) = (tmp_path / "trackio").glob("*.db")
    with sqlite3.connect(database) as connection:
        found = connection.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
    assert {name for name, _, _ in found} == {tracker_id(folder, "trackio")}
    assert [(step, json.loads(values)["train/loss"]) for _, step, values in found] == [
        (1, 1.0), (2, 0.5), (3, 1 / 3), (3, -1 / 3), (4, -0.25)
    ]  # fmt: skip
