"""Hooks: actions beside a training, at its start, after each step, evaluation and checkpoint, and at its end.

A hook changes no number of a run. Only the loop decides which steps are taken and saved, and how a run continues (`loop.py`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from flaxformer_lite.base.console import Progress
from flaxformer_lite.config import Config
from flaxformer_lite.config.train import BaseHook, MissingHook
from flaxformer_lite.core.step import TrainState
from flaxformer_lite.training.loop_state import LoopState
from flaxformer_lite.training.signals import StopRequest
from flaxformer_lite.workdir import Checkpoints, RunFolder


@dataclass(kw_only=True, eq=False, repr=False)
class TrainingRun:
    """A run that is being trained, as hooks see it. Hooks only read it."""

    config: Config
    folder: RunFolder
    checkpoints: Checkpoints
    progress: Progress
    """The live view and train.log: `progress.say(line)`, `progress.warn(line)`."""
    state: TrainState
    """Step, parameters, optimizer state and average, on the devices, which may still compute them."""
    loop_state: LoopState
    """The best metric so far, skipped steps, rollbacks."""
    step: int
    """Number of steps that were started."""
    is_best: bool = False
    """Whether the last evaluation is the best so far."""


class Hook(BaseHook):
    """Base of all hooks; each method does nothing. A hook in `train.hooks` is a frozen dataclass, whose fields are settings.

    An exception in a hook stops the run as a signal does: a checkpoint is saved after the step in progress, and then the exception
    is raised. Until then, no method of this hook is called except `on_end`.
    """

    all_processes: ClassVar[bool] = False
    """Whether all processes of a run call the hook; else only the first process does. Hooks must not communicate."""

    def measure(self, gradient: object) -> Mapping[str, jax.Array]:
        """Returns scalars of a step's gradient by name: `on_step` and the rows of steps have each as `gradient/NAME`.

        JAX traces it into the step, in all processes. gradient: unclipped, of the parameters that train; layers of a stack are one
        array `[L, …]`.
        """
        return {}

    def on_start(self, run: TrainingRun) -> None:
        """Called before the first step, new or continued: `run.step` steps are done. A finished run does not start."""

    def before_step(self, run: TrainingRun, step: int) -> None:
        """Called before `step` is started, while the step before it may still compute."""

    def on_step(self, run: TrainingRun, step: int, measured: Mapping[str, float]) -> None:
        """Called once `step` is computed, usually while the next one computes.

        measured: loss, tokens, gradient_norm, update_norm (on one CPU only in steps that write a row), and what hooks `measure`.
        """

    def on_row(self, run: TrainingRun, row: dict[str, Any]) -> None:
        """Called with each row of metrics.jsonl once it is written. The row is a copy."""

    def on_evaluation(self, run: TrainingRun, step: int, metrics: Mapping[str, float]) -> None:
        """Called with the metrics of an evaluation once its row is written, before `step` is saved."""

    def on_save(self, run: TrainingRun, step: int) -> None:
        """Called once the checkpoint of `step` is complete on disk, which may be some steps later."""

    def on_rollback(self, run: TrainingRun, step: int) -> None:
        """Called when the run has returned to the checkpoint of `step`: the steps after it come again, with other batches."""

    def on_end(self, run: TrainingRun) -> None:
        """Called at the end: the run is finished, was stopped, or has failed."""


class EachRow(Hook):
    """Calls a function with each row of metrics.jsonl: the argument `on_row` of `flaxformer_lite.train`."""

    def __init__(self, function: Callable[[dict[str, Any]], None]) -> None:
        self.function = function

    def on_row(self, run: TrainingRun, row: dict[str, Any]) -> None:
        self.function(row)


class Hooks(Hook):
    """The hooks of a run in this process, called one after the other. The first exception asks the run to stop."""

    def __init__(self, hooks: Iterable[Hook], is_first: bool, stop: StopRequest) -> None:
        hooks = list(hooks)
        missing = [hook for hook in hooks if isinstance(hook, MissingHook)]
        if missing:
            raise ValueError(missing[0].reason)
        wrong = [hook for hook in hooks if not isinstance(hook, Hook)]
        if wrong:
            raise ValueError(f"hooks has {wrong[0]!r}: a hook must be a value of a class with the base Hook")
        self.measures = [hook.measure for hook in hooks if type(hook).measure is not Hook.measure] or ()
        self.hooks = [hook for hook in hooks if is_first or hook.all_processes]
        self.stop = stop
        self.failed: set[int] = set()
        self.error: Exception | None = None

    def on_start(self, run: TrainingRun) -> None:
        self.each("on_start", lambda hook: hook.on_start(run))

    def before_step(self, run: TrainingRun, step: int) -> None:
        self.each("before_step", lambda hook: hook.before_step(run, step))

    def on_step(self, run: TrainingRun, step: int, measured: Mapping[str, float]) -> None:
        self.each("on_step", lambda hook: hook.on_step(run, step, dict(measured)))

    def on_row(self, run: TrainingRun, row: dict[str, Any]) -> None:
        self.each("on_row", lambda hook: hook.on_row(run, dict(row)))

    def on_evaluation(self, run: TrainingRun, step: int, metrics: Mapping[str, float]) -> None:
        self.each("on_evaluation", lambda hook: hook.on_evaluation(run, step, dict(metrics)))

    def on_save(self, run: TrainingRun, step: int) -> None:
        self.each("on_save", lambda hook: hook.on_save(run, step))

    def on_rollback(self, run: TrainingRun, step: int) -> None:
        self.each("on_rollback", lambda hook: hook.on_rollback(run, step))

    def on_end(self, run: TrainingRun) -> None:
        self.each("on_end", lambda hook: hook.on_end(run), also_failed=True)

    def each(self, method: str, call: Callable[[Hook], None], *, also_failed: bool = False) -> None:
        """Calls every hook except those that have failed already. method: the name in a message."""
        for number, hook in enumerate(self.hooks):
            if number in self.failed and not also_failed:
                continue
            try:
                call(hook)
            except Exception as error:  # a mistake in a hook costs no trained step
                self.failed.add(number)
                self.error = self.error or error
                self.stop.ask(f"{type(hook).__name__}.{method} raised {type(error).__name__}")
