"""Trainings in this process that are stopped or crash in a step, by programs that are compiled once for all of them."""

import dataclasses
import functools
import os
import signal
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import numpy as np
import pytest

from flaxformer_lite.config import TrainConfig
from flaxformer_lite.core.data.dataset import Dataset, draw_by_example
from flaxformer_lite.core.objectives import Batch
from flaxformer_lite.core.runners import make_runner
from flaxformer_lite.training import loop, setup, train_task
from tests.support.experiments import use_one_device

runner_once = functools.cache(make_runner)
task_once = functools.cache(train_task)


def share_programs(patch: pytest.MonkeyPatch, settings: TrainConfig) -> None:
    """Runs train on one device, with steps compiled once for all of them: their tasks are those of these settings of training."""
    use_one_device(patch)
    patch.setattr(setup, "train_task", lambda config: task_once(dataclasses.replace(config, train=settings)))
    patch.setattr(setup, "make_runner", runner_once)


def during_step(patch: pytest.MonkeyPatch, step: int, action: Callable[[loop.Loop], Any]) -> None:
    """Has `action` happen while the train step number `step` is under way, before anything is written for it."""
    original = loop.Loop.start_step

    def start(self: loop.Loop, batch: Batch) -> dict[str, jax.Array]:
        measured = original(self, batch)
        if self.step == step:
            action(self)
        return measured

    patch.setattr(loop.Loop, "start_step", start)


class Crash(Exception):
    pass


def crash(_: loop.Loop) -> NoReturn:
    raise Crash


def terminate(_: loop.Loop) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def poison(monkeypatch: pytest.MonkeyPatch, *batches: int) -> None:
    """Gives these batches weights that are not finite, so that the steps that read them are skipped."""
    original = Dataset.batch

    def spoilt(self: Dataset, number: int, *rest: Any) -> Any:
        batch = original(self, number, *rest)
        if self.draw is draw_by_example or number not in batches:  # not the evaluation's
            return batch
        return batch._replace(weights=np.where(batch.weights > 0, np.float32("nan"), batch.weights))

    monkeypatch.setattr(Dataset, "batch", spoilt)
