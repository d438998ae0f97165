"""The loop: trains the experiment of a config in a run folder, from the step that the folder has reached."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from flaxformer_lite.base.console import COMPILING, Failure, Progress, no_alarm
from flaxformer_lite.config.experiment import Config
from flaxformer_lite.config.outside import import_options
from flaxformer_lite.model import kernels
from flaxformer_lite.objectives import Batch
from flaxformer_lite.training.evaluation import Evaluator
from flaxformer_lite.training.finite import is_finite
from flaxformer_lite.training.loop_state import LoopState
from flaxformer_lite.training.multihost.agreement import current_processes
from flaxformer_lite.training.profile import Profiler
from flaxformer_lite.training.setup import Setup, set_up
from flaxformer_lite.training.signals import Interrupted, StopRequest
from flaxformer_lite.training.throughput import Throughput, compiling_seconds
from flaxformer_lite.training.view import TrainView, metrics_in_words, speed_in_words
from flaxformer_lite.workdir import Checkpoints, RunFolder, mirroring, open_checkpoints
from flaxformer_lite.workdir.trackers import Trackers

RowCallback = Callable[[dict[str, Any]], None]
"""Called with a copy of each row of metrics.jsonl once it is written; docs/training.md lists what a row holds."""


def train(
    config: Config, workdir: str | Path, on_row: RowCallback | None = None, *, with_changes: bool = False
) -> None:
    """Trains `config` in the folder `workdir`, or continues the run that is there.

    An exception in `on_row` stops the run as a signal does, with a checkpoint, and is then raised. `with_changes` continues a run
    with other settings (`ON_REQUEST` in config/differences.py).

    Raises: ValueError for a mistake of the user's.
    """
    processes = current_processes()
    folder = RunFolder(workdir, silent=not processes.is_first, with_changes=with_changes)
    stop = processes.stop_request()
    with (
        processes.exit_on_error(),
        processes.lock(folder, config),
        stop.listening(),
        Progress(config.train.steps, folder.path / "train.log", silent=not processes.is_first) as progress,
        mirroring(config, folder, progress),  # its last copy has what the trackers write at their end
        Trackers(config.train.trackers, folder, config, progress.warn) as trackers,
        open_checkpoints(config, folder, read_only=False) as checkpoints,
        processes.exit_on_error(),  # before the checkpoints are closed, which would wait for the other processes
    ):
        finished = why_finished(config, checkpoints)
        if finished is not None:
            kept = "; config.json keeps its settings" if folder.keep_config(config) else ""
            progress.say(f"nothing to do in {folder.path}: {finished}{kept}")
            return
        try:
            setup = set_up(config, folder, checkpoints, progress, processes, stop)
        except Interrupted:
            progress.say(f"{stop.signal}: before the first step; the same command continues from there")
            return
        evaluator = None
        if setup.data.eval is not None:
            evaluator = Evaluator(config, setup.data.eval, setup.data.tokenizers, setup.runner, folder, processes)
        with kernels.report_choices(progress.say):
            trainer = Trainer(config, setup, evaluator, folder, checkpoints, progress, stop, trackers, on_row)
            with contextlib.closing(trainer.profiler):
                trainer.run()
        finished = why_finished(config, checkpoints)
        if finished is None:
            step = checkpoints.latest()
            saved = "before the first step" if step is None else f"saved after step {step}"
            reason = stop.signal or "a signal to another process"
            progress.say(f"{reason}: {saved}; the same command continues from there")
        else:
            summarize(config, folder, checkpoints, finished, progress)
        if trainer.row_error is not None:
            raise trainer.row_error


class RollBack(Exception):
    """The steps from `first` to `last` went wrong: the run returns to the checkpoint before them and leaves out their batches."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last


@dataclasses.dataclass(eq=False, repr=False)
class Trainer:
    """The loop of one run: steps, evaluations, checkpoints and signals.

    Step n + 1 is dispatched while step n still computes; the loop fetches the numbers of a step one step later.
    """

    config: Config
    setup: dataclasses.InitVar[Setup]
    evaluator: Evaluator | None
    folder: RunFolder
    checkpoints: Checkpoints
    progress: Progress
    stop: StopRequest
    trackers: Trackers
    on_row: RowCallback | None

    def __post_init__(self, setup: Setup) -> None:
        config = self.config
        self.data, self.runner = setup.data.train, setup.runner
        self.state, self.loop_state, self.changes = setup.state, setup.loop_state, setup.changes
        self.view = TrainView(config.train, self.progress)
        self.profiler = Profiler(config.train.profile, self.folder.path / "profile")
        self.row_error: Exception | None = None
        """The exception of the last call of `on_row`."""
        self.rate = config.optimizer.rate(total_steps=config.train.steps, d_model=config.model.d_model)
        self.compiled: set[tuple[tuple[int, ...], ...]] = set()
        """The shapes of batches that were compiled."""
        self.pending: list[dict[str, jax.Array]] = []
        """Measurements of the newest steps, not yet fetched from the devices."""
        devices, params = self.runner.mesh.devices, self.runner.abstract_state.params
        self.throughput = Throughput(config, params, self.data.plan, devices)

    def run(self) -> None:
        """Trains to the last step, an early stop or a signal. The last action is always a checkpoint."""
        train = self.config.train
        step = int(self.state.step)
        if self.changes:
            self.write_row({"step": step, "split": "change", "settings": dict(self.changes)})
            # The checkpoint holds the new settings from now on: the same command continues, and needs not ask again.
            meta = dataclasses.asdict(self.loop_state)
            self.checkpoints.save(step, self.state, meta, interim=self.checkpoints.interim(step))
        if step and self.must_save_again(step):
            self.evaluate_and_save(step)
        self.view.show_history(self.folder.rows(), self.loop_state.best)
        self.progress.update("training", step)
        batches = self.batches_after(step)
        while step < train.steps and not self.loop_state.stopped_early and not self.stop.agreed:
            self.profiler.before(step)
            with jax.profiler.StepTraceAnnotation("train", step_num=step + 1):
                measured = self.train_step(step, self.runner.shard_batch(next(batches)))
            step += 1
            self.pending.append(measured)
            if self.profiler.after(step, lambda: jax.block_until_ready(self.state)):
                self.progress.say(f"step {step:>6}  a trace is in {self.profiler.folder}")
            self.show_progress(step)
            self.stop.exchange()
            try:
                if step % train.log_every == 0 or step == train.steps:
                    self.write_train_row(step, measured)
                if self.evaluation_due(step) or self.checkpoint_due(step) or self.stop.agreed:
                    self.evaluate_and_save(step)
            except RollBack as wrong:
                step = self.roll_back(wrong)
                batches = self.batches_after(step)
        self.checkpoints.wait()

    def train_step(self, step: int, batch: Batch) -> dict[str, jax.Array]:
        """Starts the step after `step` and returns its measurements.

        The time of compiling a new shape counts for no speed and no time left.
        """
        shape = tuple(x.shape for x in jax.tree.leaves(batch))
        if is_new := shape not in self.compiled:
            self.compiled.add(shape)
            jax.block_until_ready(self.pending[-1:])  # a step that computes meanwhile would be one without a time
            self.progress.within(COMPILING)
        started = time.perf_counter()
        with no_alarm() if is_new else contextlib.nullcontext():
            self.state, measured = self.runner.train_step(self.state, batch)
        if is_new:
            seconds = time.perf_counter() - started
            self.throughput.leave_out(seconds)
            self.progress.leave_out(seconds)
            self.progress.update("training", step)
        return measured

    def batches_after(self, step: int) -> Iterator[Batch]:
        """Returns the batches of all steps after `step`."""
        start, stop = map(self.loop_state.batch_of, (step + 1, self.config.train.steps + 1))
        return self.data.batches(start, stop, self.runner.local_rows)

    def evaluation_due(self, step: int) -> bool:
        """Returns whether `step` is one that the run evaluates."""
        due = step % self.config.train.eval_every == 0 or step == self.config.train.steps
        return self.evaluator is not None and due

    def checkpoint_due(self, step: int) -> bool:
        """Returns whether `step` is one that the run saves, evaluated or not."""
        return step % self.config.train.checkpoint_every == 0 or step == self.config.train.steps

    def must_save_again(self, step: int) -> bool:
        """Returns whether the checkpoint at `step` must be written again: it lacks an evaluation, or is an interim one."""
        unevaluated = self.evaluation_due(step) and self.checkpoints.metrics(step) is None
        return unevaluated or (self.checkpoint_due(step) and self.checkpoints.interim(step))

    def keeps(self, step: int) -> bool:
        """Returns whether a checkpoint at `step` counts, and its evaluation: it is due, and the step was an update, or is the last.

        While steps are skipped nothing changes: checkpoints of them would push out the good ones.
        """
        due = self.evaluation_due(step) or self.checkpoint_due(step)
        return due and (not self.loop_state.skipped_in_a_row or step == self.config.train.steps)

    # Rollbacks

    def can_roll_back(self, first: int) -> bool:
        """Returns whether a rollback is left, and there is a checkpoint from before step `first`."""
        left = len(self.loop_state.rollbacks) < self.config.train.max_rollbacks
        return left and self.checkpoints.latest_regular(first) is not None

    def roll_back(self, wrong: RollBack) -> int:
        """Returns the run to the checkpoint before the wrong steps, and writes into it which batches are left out from now on.

        A run that is killed in between repeats the wrong steps, and then this.

        Raises: Failure if another process trains in the folder.
        """
        self.folder.keep_lock()
        start = self.checkpoints.latest_regular(wrong.first)  # an interim one depends on when the run was stopped
        assert start is not None
        self.pending = []
        self.checkpoints.delete_after(start)
        _, self.state, meta = self.checkpoints.restore(self.runner.abstract_state, start)
        self.loop_state = LoopState(**meta)
        first, last = self.loop_state.batch_of(start + 1), self.loop_state.batch_of(wrong.last)
        self.loop_state.rollbacks.append([start, wrong.last - start])
        self.checkpoints.save(start, self.state, dataclasses.asdict(self.loop_state))
        self.folder.truncate_metrics(start, evaluated=self.checkpoints.metrics(start) is not None)
        self.progress.say(
            f"step {wrong.last:>6}  returned to the checkpoint of step {start}; batches {first} to {last} are left out "
            f"(rollback {len(self.loop_state.rollbacks)} of {self.config.train.max_rollbacks})"
        )
        self.view.show_history(self.folder.rows(), self.loop_state.best)
        self.throughput.reset()
        return start

    # Evaluations and checkpoints

    def evaluate_and_save(self, step: int) -> None:
        """Evaluates if that is due and saves a checkpoint, without metrics if a signal or a mistake ends the evaluation.

        Saves none while steps are skipped, unless the run stops here.

        Raises: what the evaluation raised, after the step is saved; Failure if another process trains in the folder, or if the
            state has a NaN or an infinity: it would push out a checkpoint that can be used.
        """
        self.folder.keep_lock()
        self.fetch_measurements()
        started = time.perf_counter()  # now that the steps are done that the measurements count
        if not is_finite(self.state):
            raise Failure(
                f"the parameters or the optimizer's state are not finite after step {step}, which was not saved: lower "
                f"optimizer.schedule.peak_rate or lengthen its warm-up; {self.kept_before(step)}"
            )
        metrics, mistake = self.try_to_evaluate(step) if self.evaluation_due(step) else (None, None)
        if (keeps := self.keeps(step)) or self.stop.agreed or mistake is not None:
            self.folder.keep_lock()  # an evaluation may take hours
            self.checkpoints.save(step, self.state, dataclasses.asdict(self.loop_state), metrics, interim=not keeps)
        if mistake is not None:
            self.checkpoints.wait()
            raise mistake
        self.throughput.leave_out(time.perf_counter() - started)

    def try_to_evaluate(self, step: int) -> tuple[dict[str, float] | None, Exception | None]:
        """Returns the metrics, None if a signal or a mistake ended the evaluation, and the mistake.

        Raises: the mistake with several processes, where saving would wait for the others; Failure.
        """
        try:
            return self.evaluate(step), None
        except Interrupted:
            return None, None
        except Failure:
            raise
        except Exception as error:
            if jax.process_count() > 1:
                raise
            return None, error

    def evaluate(self, step: int) -> dict[str, float]:
        """Evaluates, writes the `eval` row and updates the best value. Raises: Interrupted."""
        assert self.evaluator is not None
        train = self.config.train
        before = compiling_seconds()
        metrics = self.evaluator.evaluate(step, self.state.params, self.show_evaluation)
        self.progress.leave_out(compiling_seconds() - before)
        best = self.keeps(step) and self.loop_state.update_best(
            metrics[train.best_metric], train.best_mode, train.patience
        )
        row = {"step": step, "split": "eval", **metrics}
        self.write_row(row)
        self.progress.say(f"step {step:>6}  eval  {metrics_in_words(row)}" + " * best so far" * best)
        self.view.show_evaluation(row, best=best)
        return metrics

    def show_evaluation(self, activity: str, done: int, total: int) -> None:
        """Shows what an evaluation does now. Raises: Interrupted if the run is to stop."""
        self.stop.raise_if_agreed()
        self.progress.within(activity, done / total, f"{done:,}/{total:,}")

    # Reports on training

    def fetch_measurements(self) -> None:
        """Waits for the steps in progress and adds their measurements to the sums of the next `train` row.

        Raises: RollBack if one of them went wrong.
        """
        first = int(self.state.step) - len(self.pending) + 1
        pending, self.pending = jax.device_get(self.pending), []
        for step, measured in enumerate(pending, first):
            self.throughput.add(self.loop_state.batch_of(step), float(measured["tokens"]))
            if not self.loop_state.add_step(step, measured):
                self.report_skipped(step, measured)
            elif spike := self.loop_state.spike(float(measured["loss"])):
                batch = self.loop_state.batch_of(step)
                self.progress.say(f"step {step:>6}  a loss spike on batch {batch}: {spike}")
                if self.can_roll_back(step):
                    raise RollBack(step, step)

    def report_skipped(self, step: int, measured: dict[str, Any]) -> None:
        """Reports a step without an update.

        Raises: RollBack after `train.max_skipped_steps` of them in a row, or Failure if none is left.
        """
        numbers = f"the loss is {measured['loss']} and the gradient's norm {measured['gradient_norm']} at step {step}"
        in_a_row, count = self.loop_state.skipped_in_a_row, len(self.loop_state.skipped_steps)
        if in_a_row >= self.config.train.max_skipped_steps:
            if self.can_roll_back(step - in_a_row + 1):
                self.progress.warn(f"{numbers}, the last of {in_a_row} steps in a row without an update")
                raise RollBack(step - in_a_row + 1, step)
            raise Failure(
                f"{numbers}, the last of {in_a_row} steps in a row without an update: lower optimizer.schedule.peak_rate or "
                f"lengthen its warm-up; {self.kept_before(step - in_a_row + 1)}. The same command with --debug-step {step} finds "
                "the first NaN"
            )
        batch = self.loop_state.batch_of(step)
        self.progress.warn(f"{numbers}: its update was skipped (batch {batch}; {count} skipped so far)")

    def kept_before(self, step: int) -> str:
        """Returns the end of a message on steps that went wrong from `step` on."""
        return (
            f"the checkpoints before step {step} are untouched" if self.checkpoints.steps() else "none was saved before"
        )

    def show_progress(self, step: int) -> None:
        """Moves the progress bar. Waits for the step before `step`, so that at most one step is in progress behind it."""
        if len(self.pending) > 1:
            self.view.show_step(step, float(self.pending[-2]["loss"]))

    def write_train_row(self, step: int, measured: dict[str, jax.Array]) -> None:
        """Writes the `train` row at `step`: the mean loss and the speed since the row before."""
        self.fetch_measurements()
        loss = self.loop_state.mean_loss()
        skipped = len(self.loop_state.skipped_steps)
        row = {
            "step": step,
            "split": "train",
            "loss": loss,
            "learning_rate": float(self.rate(step - 1 - skipped)),
            "gradient_norm": float(measured["gradient_norm"]),
            "update_norm": float(measured["update_norm"]),
            "epoch": self.loop_state.batch_of(step + 1) / self.data.plan.batches_per_epoch,
            **self.throughput.row(),
        }
        counts = {"skipped_steps": skipped, "rollbacks": len(self.loop_state.rollbacks)}
        self.write_row(row | {name: count for name, count in counts.items() if count})
        self.progress.say(
            f"step {step:>6}  epoch {row['epoch']:.2f}  loss {'none' if loss is None else f'{loss:.4f}'}  "
            f"{speed_in_words(row)}  rate {row['learning_rate']:.2e}"
        )
        self.view.show_row(row)
        self.throughput.reset()

    def write_row(self, row: dict[str, Any]) -> None:
        """Adds a row to metrics.jsonl and calls `on_row` in the process that writes; an exception there asks the run to stop."""
        row = self.folder.append(row)
        self.trackers.write(row)
        if self.on_row is None or self.folder.silent or self.row_error is not None:
            return
        try:
            self.on_row(dict(row))
        except Exception as error:  # a mistake in a plot costs no trained step
            self.row_error, self.stop.signal = error, f"on_row raised {type(error).__name__}"


# The end of a run ------------------------------------------------------------------------------------------------------


def why_finished(config: Config, checkpoints: Checkpoints) -> str | None:
    """Returns why the run has no step left to train, or None if it has."""
    if checkpoints.latest() is None:
        return None
    step = checkpoints.latest_valid()
    if origin := checkpoints.meta(step)["parameters_only"]:
        return f"it holds parameters only, {origin}"
    steps = config.train.steps
    if step > steps:
        return f"{step} steps are done already, and train.steps is {steps}; --train.steps can be raised to train on"
    if step == steps:
        if checkpoints.interim(step) or (config.data.source("eval") is not None and checkpoints.metrics(step) is None):
            return None
        return f"all {step} steps are done; --train.steps can be raised to train on"
    train, since = config.train, checkpoints.meta(step)["evaluations_since_best"]
    if train.patience is not None and since >= train.patience:
        return f"stopped early at step {step}, after {train.patience} evaluations without a better {train.best_metric}"
    return None


def summarize(config: Config, folder: RunFolder, checkpoints: Checkpoints, reason: str, progress: Progress) -> None:
    """Prints the metrics of the last and the best checkpoint, the weights in use, the files of the run, and the next commands."""
    progress.say(f"\n{reason}.")
    for name, step in (("last", checkpoints.latest()), ("best", checkpoints.best())):
        if step is not None and (metrics := checkpoints.metrics(step)):
            progress.say(f"  {name} (step {step}): " + ", ".join(f"{k} {v:.4f}" for k, v in metrics.items()))
    run = f"{folder.path}{import_options(config)}"
    progress.say(f"  {describe_weights(config, checkpoints)}")
    progress.say(
        f"  the run is in {folder.path}: metrics.jsonl, {'samples/, ' if config.objective.translates else ''}checkpoints/\n"
        f"  use it:     flaxformer-lite {config.objective.command} {run}\n"
        f"  look at it: flaxformer-lite inspect {run}"
    )


def describe_weights(config: Config, checkpoints: Checkpoints) -> str:
    """Returns a line on the weights that commands use by the config, and on the step that is the best, if it is another one."""
    weights, last, best = config.weights, checkpoints.latest(), checkpoints.best()
    if weights == "best" and best is None:
        return "commands use weights 'best', but no checkpoint was evaluated: --weights last uses the last one"
    used = f"step {best if weights == 'best' else last}"
    if weights.startswith("average:"):
        steps = sorted(checkpoints.newest_regular(int(weights.removeprefix("average:"))))
        used = f"the mean of steps {', '.join(map(str, steps))}" if len(steps) > 1 else used
    line = f"commands use weights {weights!r}: {'the moving average at ' * (weights == 'ema')}{used}"
    if best is None or weights == "best":
        return line
    if best == last and weights == "last":
        return f"{line}, also the best by {config.train.best_metric}"
    hint = ", which --weights best uses" if config.train.keep_best else ""
    return f"{line}; the best by {config.train.best_metric} is step {best}{hint}"
