"""Trackers: programs that draw curves get the rows of metrics.jsonl too: TensorBoard, Weights & Biases, trackio.

Each program is imported when a config names it. A tracker that fails is reported once and left out; training continues. A run that
continues writes to the same run of its tracker.
"""

import contextlib
import json
import math
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from flaxformer_lite.base.atomic_files import write_json
from flaxformer_lite.config import Config, to_json
from flaxformer_lite.config.train import TrackerName
from flaxformer_lite.training.hooks import Hook, TrainingRun
from flaxformer_lite.workdir import RunFolder

TRACKED_RUNS = "trackers.json"
"""The file of the run folder with the names of its runs at its trackers."""


class TensorBoard:
    """Event files in RUN/tensorboard, by tensorboardX: `tensorboard --logdir runs` shows all runs below `runs`."""

    def __init__(self, folder: RunFolder, config: Config) -> None:
        from tensorboardX import SummaryWriter

        self.make, self.config = SummaryWriter, to_json(config)
        self.place = str(folder.path / "tensorboard")
        self.writer: Any = None
        self.newest = 0

    def write(self, step: int, values: dict[str, float]) -> None:
        if step < self.newest:  # after a rollback
            self.close()
            self.writer = None
        self.newest = step
        if self.writer is None:
            # Rows from this step on that were written before are deleted: the run writes them anew.
            self.writer = self.make(self.place, purge_step=step, flush_secs=10, filename_suffix=f".{step:010}")
            self.writer.add_text("config.json", f"```json\n{self.config}```", step)
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


class HostedRun(NamedTuple):
    """A run at a program that keeps its own files."""

    write: Callable[[int, dict[str, float]], object]
    close: Callable[[], object]


def wandb_run(folder: RunFolder, config: Config) -> HostedRun:
    """Returns a run at Weights & Biases, with files in RUN/wandb. WANDB_PROJECT, WANDB_MODE=offline and so on are its variables."""
    import wandb

    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "flaxformer_lite"),
        name=folder.title,
        id=tracker_id(folder, "wandb"),
        resume="allow",
        dir=folder.path,
        config=json.loads(to_json(config)),
        settings=wandb.Settings(silent=True, console="off"),
    )
    run.define_metric("*", step_metric="step")  # its own steps cannot go back, as they do after a rollback
    return HostedRun(lambda step, values: run.log({**values, "step": step}), run.finish)


def trackio_run(folder: RunFolder, config: Config) -> HostedRun:
    """Returns a run of trackio, in TRACKIO_DIR: `trackio show` opens it. TRACKIO_PROJECT names the project."""
    import trackio

    trackio.init(
        project=os.environ.get("TRACKIO_PROJECT", "flaxformer_lite"),
        name=tracker_id(folder, "trackio"),
        resume="allow",
        config=json.loads(to_json(config)),
    )
    return HostedRun(lambda step, values: trackio.log(values, step=step), trackio.finish)


Tracker = TensorBoard | HostedRun
TRACKERS: dict[str, Callable[[RunFolder, Config], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": wandb_run,
    "trackio": trackio_run,
}


def tracker_id(folder: RunFolder, tracker: Literal["wandb", "trackio"]) -> str:
    """Returns the name of the run at a tracker, which the run folder keeps."""
    path = folder.path / TRACKED_RUNS
    names = json.loads(path.read_bytes()) if path.is_file() else {}
    if tracker not in names:
        names[tracker] = f"{folder.title}-{secrets.token_hex(4)}"
        write_json(path, names)
    return str(names[tracker])


class Trackers(Hook):
    """Passes each row of metrics.jsonl on to the trackers of `train.trackers`; a failure costs that tracker, nothing else."""

    def __init__(self, names: Sequence[TrackerName]) -> None:
        self.names = names
        self.open: dict[str, Tracker] = {}

    def on_start(self, run: TrainingRun) -> None:
        for name in self.names:
            with self.attempt(name, run):
                self.open[name] = TRACKERS[name](run.folder, run.config)

    def on_row(self, run: TrainingRun, row: dict[str, Any]) -> None:
        """Writes the finite numbers of a row as `train/loss`, `eval/bleu` and so on."""
        values = {
            f"{row['split']}/{name}": float(value)
            for name, value in row.items()
            if name not in ("step", "split") and isinstance(value, int | float) and math.isfinite(value)
        }
        for name, tracker in list(self.open.items()):
            with self.attempt(name, run):
                tracker.write(row["step"], values)

    def on_end(self, run: TrainingRun) -> None:
        for name, tracker in list(self.open.items()):
            with self.attempt(name, run):
                tracker.close()

    @contextlib.contextmanager
    def attempt(self, name: str, run: TrainingRun) -> Iterator[None]:
        """Leaves a tracker out from now on, with a warning, if it fails within this context."""
        try:
            with contextlib.redirect_stdout(sys.stderr):  # stdout is for results
                yield
        except Exception as error:
            self.open.pop(name, None)
            remedy = f': pip install "flaxformer-lite[{name}]"' if isinstance(error, ImportError) else ""
            run.progress.warn(
                f"train.trackers {name} failed, and training continues without it ({type(error).__name__}: {error}){remedy}"
            )
