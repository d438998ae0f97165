"""The numbers that a run ends with, to compare it bit for bit with another one."""

import functools
from pathlib import Path

import jax
import numpy as np

from flaxformer_lite.core.parallel.mesh import make_mesh
from flaxformer_lite.core.runners import abstract_state
from flaxformer_lite.core.step import TrainState, TrainTask
from flaxformer_lite.training.task import train_task
from flaxformer_lite.workdir import Checkpoints, RunFolder, open_checkpoints
from tests.support.experiments import rows, saved


@functools.lru_cache(maxsize=2)
def shapes_of(task: TrainTask) -> TrainState:
    """The state on one device; tests that share a task trace it once."""
    return abstract_state(task, make_mesh(devices=jax.devices()[:1]))


def open_run(folder: Path) -> Checkpoints:
    run = RunFolder(folder)
    return open_checkpoints(run.config(), run, read_only=True)


def final_state(folder: Path) -> list[tuple[str, bytes]]:
    """By path, every array of the newest checkpoint (parameters, optimizer state, averages) and of the mean of the newest 3."""
    target = shapes_of(train_task(RunFolder(folder).config()))
    with open_run(folder) as checkpoints:
        state, average = checkpoints.restore(target)[1], checkpoints.average(target.params, 3)
    leaves = jax.tree_util.tree_leaves_with_path((state, average))
    return [(jax.tree_util.keystr(path), np.asarray(leaf).tobytes()) for path, leaf in leaves]


def assert_same_run(folder: Path, other: Path) -> None:
    """Bit for bit the same numbers, the same checkpoints, the same rows."""
    assert final_state(folder) == final_state(other)
    assert saved(folder) == saved(other)
    assert rows(folder) == rows(other)
