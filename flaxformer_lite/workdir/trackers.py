"""Trackers: programs that draw curves get the rows of metrics.jsonl too: TensorBoard, Weights & Biases, trackio.

A tracker that fails is reported once and left out; training continues. A run that continues writes to the same run of its tracker.
"""

import contextlib
import json
import math
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol

from flaxformer_lite.base.atomic_files import write_whole
from flaxformer_lite.base.console import warn
from flaxformer_lite.config.experiment import Config
from flaxformer_lite.config.serialize import to_json
from flaxformer_lite.workdir.folder import RunFolder

NAMES = "trackers.json"
"""The file of the run folder with the names of its runs at its trackers."""


class Tracker(Protocol):
    """A program that gets numbers by name."""

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes the values of a step."""

    def close(self) -> None:
        """Writes what is still in memory."""


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


class WeightsAndBiases:
    """A run at Weights & Biases, with files in RUN/wandb. WANDB_PROJECT, WANDB_MODE=offline and so on are wandb's own variables."""

    def __init__(self, folder: RunFolder, config: Config) -> None:
        import wandb

        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "flaxformer_lite"),
            name=folder.path.name,
            id=tracker_id(folder, "wandb"),
            resume="allow",
            dir=folder.path,
            config=json.loads(to_json(config)),
            settings=wandb.Settings(silent=True, console="off"),
        )
        self.run.define_metric("*", step_metric="step")

    def write(self, step: int, values: dict[str, float]) -> None:
        self.run.log({**values, "step": step})

    def close(self) -> None:
        self.run.finish()


class Trackio:
    """A run of trackio, in TRACKIO_DIR: `trackio show` opens it. TRACKIO_PROJECT names the project."""

    def __init__(self, folder: RunFolder, config: Config) -> None:
        import trackio

        self.trackio = trackio
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for results
            trackio.init(
                project=os.environ.get("TRACKIO_PROJECT", "flaxformer_lite"),
                name=tracker_id(folder, "trackio"),
                resume="allow",
                config=json.loads(to_json(config)),
            )

    def write(self, step: int, values: dict[str, float]) -> None:
        self.trackio.log(values, step=step)

    def close(self) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            self.trackio.finish()


TRACKERS: dict[str, Callable[[RunFolder, Config], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "trackio": Trackio,
}


def tracker_id(folder: RunFolder, tracker: Literal["wandb", "trackio"]) -> str:
    """Returns the name of the run at a tracker, which the run folder keeps."""
    path = folder.path / NAMES
    names = json.loads(path.read_bytes()) if path.is_file() else {}
    if tracker not in names:
        names[tracker] = f"{folder.path.name}-{secrets.token_hex(4)}"
        write_whole(path, json.dumps(names, indent=2) + "\n")
    return str(names[tracker])


class Trackers:
    """The trackers of a run. `write` passes a row of metrics.jsonl on to each; a failure costs that tracker, nothing else."""

    def __init__(
        self, names: Sequence[str], folder: RunFolder, config: Config, warn: Callable[[str], None] = warn
    ) -> None:
        self.names, self.folder, self.config = names if not folder.silent else (), folder, config
        self.warn = warn
        self.open: dict[str, Tracker] = {}

    def __enter__(self) -> "Trackers":
        for name in self.names:
            self._attempt(name, lambda name=name: self.open.__setitem__(name, TRACKERS[name](self.folder, self.config)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, tracker in list(self.open.items()):
            self._attempt(name, tracker.close)

    def write(self, row: dict[str, Any]) -> None:
        """Writes the finite numbers of a row as `train/loss`, `eval/bleu` and so on."""
        values = {
            f"{row['split']}/{name}": float(value)
            for name, value in row.items()
            if name not in ("step", "split") and isinstance(value, int | float) and math.isfinite(value)
        }
        for name, tracker in list(self.open.items()):
            self._attempt(name, lambda tracker=tracker: tracker.write(row["step"], values))

    def _attempt(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self.open.pop(name, None)
            remedy = f': pip install "flaxformer-lite[{name}]"' if isinstance(error, ImportError) else ""
            self.warn(
                f"train.trackers {name} failed, and training continues without it ({type(error).__name__}: {error}){remedy}"
            )
