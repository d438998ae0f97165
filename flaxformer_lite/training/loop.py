"""The loop: restores a run, takes a step for each batch, evaluates, saves and stops. All else are hooks (`hooks.py`)."""

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from flaxformer_lite.base.console import Failure
from flaxformer_lite.config import Config
from flaxformer_lite.core.data.dataset import Dataset
from flaxformer_lite.core.model import kernels
from flaxformer_lite.core.objectives import Batch
from flaxformer_lite.core.runners import Runner
from flaxformer_lite.training.ahead import batches_ahead
from flaxformer_lite.training.evaluation import Evaluator
from flaxformer_lite.training.hooks import Hook, Hooks, TrainingRun
from flaxformer_lite.training.loop_state import all_finite
from flaxformer_lite.training.rollback import RollBack, judge, kept_before, roll_back
from flaxformer_lite.training.session import Session, session
from flaxformer_lite.training.setup import Setup, set_up
from flaxformer_lite.training.signals import Interrupted, StopRequest
from flaxformer_lite.training.summary import announce, summarize, why_finished
from flaxformer_lite.training.throughput import Throughput, compiling_seconds


def train(config: Config, workdir: str | Path, hooks: Sequence[Hook] = (), *, with_changes: bool = False) -> int:
    """Trains `config` in the folder `workdir`, or continues the run in it.

    Calls the hooks of the settings, those of `train.hooks`, and `hooks`. `with_changes` continues a run with other settings
    (those with the mark `Resume.ON_REQUEST`).

    Returns the number of the signal that came meanwhile, the same in all processes; 0: none came, and no step is left.

    Raises: ValueError for a mistake of the user's; what a hook raised, once the run is saved.
    """
    with session(config, workdir, hooks, with_changes=with_changes) as run:
        train_in(run)
    return run.stop.agreed


def train_in(run: Session) -> None:
    """Trains in a session until no step is left or a signal comes, and says which it was."""
    config, folder, checkpoints, progress = run.config.concrete, run.folder, run.checkpoints, run.progress
    finished = why_finished(config, checkpoints)
    if finished is not None:
        kept = "; config.json keeps its settings" if folder.keep_config(config) else ""
        progress.say(f"nothing to do in {folder.name}: {finished}{kept}")
        return
    try:
        setup = set_up(run)
    except Interrupted:
        progress.say(f"{run.stop.signal}: before the first step; the same command continues from there")
        return
    config = setup.config
    announce(run.config, setup, run.processes.count, progress)
    with kernels.report_choices(progress.say):
        Loop.of(run, setup).run(setup.changes)
    finished = why_finished(config, checkpoints)
    if finished is not None:
        summarize(config, folder, checkpoints, finished, progress)
    else:
        step = checkpoints.latest()
        saved = "before the first step" if step is None else f"saved after step {step}"
        reason = run.stop.signal or "a signal to another process"
        progress.say(f"{reason}: {saved}; the same command continues from there")
    if run.hooks.error is not None:
        raise run.hooks.error


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class Loop(TrainingRun):
    """The steps of a run. Step n + 1 is started while step n still computes; the numbers of step n are fetched then."""

    data: Dataset
    runner: Runner
    evaluator: Evaluator | None
    stop: StopRequest
    hooks: Hooks

    @classmethod
    def of(cls, run: Session, setup: Setup) -> "Loop":
        """Returns the loop of a run that is set up."""
        return cls(
            config=setup.config,
            folder=run.folder,
            checkpoints=run.checkpoints,
            progress=run.progress,
            state=setup.state,
            loop_state=setup.loop_state,
            step=int(setup.state.step),
            data=setup.data.train,
            runner=setup.runner,
            evaluator=setup.evaluator,
            stop=run.stop,
            hooks=run.hooks,
        )

    def __post_init__(self) -> None:
        train, model = self.config.train, self.config.model
        self.rate = self.config.optimizer.rate(total_steps=train.steps, d_model=model.d_model)
        self.throughput = Throughput(
            self.config, self.runner.abstract_state.params, self.data.plan, self.runner.mesh.devices
        )
        self.started: tuple[int, dict[str, jax.Array]] | None = None
        """The step whose numbers are not fetched yet, and these numbers."""
        self.measured: dict[str, float] = {}
        """The numbers of the newest step that is computed."""
        self.saving: int | None = None
        """The step whose checkpoint may still be written in the background."""
        self.compiled: set[tuple[tuple[int, ...], ...]] = set()
        """The shapes of batches that were compiled."""

    def run(self, changes: Mapping[str, tuple[Any, Any]]) -> None:
        """Trains to the last step, an early stop or a signal. The last action is always a checkpoint."""
        try:
            self.hooks.on_start(self)
            self.begin(changes)
            batches = self.batches()
            stopping = self.stop.agreed
            while self.step < self.config.train.steps and not self.loop_state.stopped_early and not stopping:
                self.hooks.before_step(self, self.step + 1)
                with jax.profiler.StepTraceAnnotation("train", step_num=self.step + 1):
                    measured = self.start_step(self.runner.shard_batch(next(batches)))
                try:
                    self.finish_step()  # the one before
                    self.started = self.step, measured
                    self.stop.exchange()
                    if self.row_due(self.step):
                        self.write_train_row()
                    if self.evaluation_due() or self.checkpoint_due() or self.stop.agreed:
                        # A request that comes after the save is granted after the next step: a step that is done is saved.
                        stopping = self.evaluate_and_save() and self.stop.agreed
                except RollBack as wrong:
                    self.started = self.saving = None
                    roll_back(self, wrong, self.runner)
                    self.throughput.reset()
                    self.hooks.on_rollback(self, self.step)
                    batches = self.batches()
                self.report_saved()
            self.checkpoints.wait()
            self.report_saved()
        finally:
            self.hooks.on_end(self)

    def begin(self, changes: Mapping[str, tuple[Any, Any]]) -> None:
        """Writes other settings into the checkpoint that the run continues from, and repeats an evaluation that it lacks."""
        if changes:
            self.write_row({"step": self.step, "split": "change", "settings": dict(changes)})
            # The same command continues with the new settings from now on, and needs not ask again.
            self.save(regular=self.checkpoints.is_regular(self.step))
        if self.step:
            unevaluated = self.evaluation_due() and self.checkpoints.metrics(self.step) is None
            if unevaluated or (self.checkpoint_due() and not self.checkpoints.is_regular(self.step)):
                self.evaluate_and_save()

    # Steps

    def batches(self) -> Iterator[Batch]:
        first, stop = map(self.loop_state.batch_of, (self.step + 1, self.config.train.steps + 1))
        return batches_ahead(self.data, first, stop, self.runner.local_rows)

    def start_step(self, batch: Batch) -> dict[str, jax.Array]:
        """Starts a step and returns its measurements. The time of compiling a new shape counts for no speed and no time left."""
        shape = tuple(x.shape for x in jax.tree.leaves(batch))
        is_new = shape not in self.compiled
        if is_new:
            self.compiled.add(shape)
            jax.block_until_ready(self.started)  # a step that computes meanwhile would be one without a time
            self.progress.within("compiling")
        before = time.perf_counter()
        self.state, measured = self.runner.train_step(self.state, batch, with_norm=self.row_due(self.step + 1))
        if is_new:
            seconds = time.perf_counter() - before
            self.throughput.leave_out(seconds)
            self.progress.leave_out(seconds)
            self.progress.update("training", self.step)
            left = len(self.data.plan.buckets) - len(self.compiled)
            self.progress.show("programs", f"up to {left} more to compile" if left > 0 else "")
        self.step += 1
        return measured

    def finish_step(self) -> None:
        """Waits for the step that was started last, and counts it. Raises: RollBack or Failure if it went wrong."""
        if self.started is None:
            return
        (step, measured), self.started = jax.device_get(self.started), None
        self.measured = {name: float(value) for name, value in measured.items()}
        self.throughput.add(self.loop_state.batch_of(step), self.measured["tokens"])
        judge(self, step, self.measured)
        self.hooks.on_step(self, step, self.measured)

    # Rows of metrics.jsonl

    def row_due(self, step: int) -> bool:
        return step % self.config.train.log_every == 0 or step == self.config.train.steps

    def write_train_row(self) -> None:
        """Writes the `train` row: the mean loss and the speed since the row before."""
        self.finish_step()
        skipped = len(self.loop_state.skipped_steps)
        row = {
            "step": self.step,
            "split": "train",
            "loss": self.loop_state.mean_loss(),
            "learning_rate": float(self.rate(self.step - 1 - skipped)),
            **{name: value for name, value in self.measured.items() if name not in ("loss", "tokens")},
            "epoch": self.loop_state.batch_of(self.step + 1) / self.data.plan.batches_per_epoch,
            **self.throughput.row(),
        }
        counts = {"skipped_steps": skipped, "rollbacks": len(self.loop_state.rollbacks)}
        self.write_row(row | {name: count for name, count in counts.items() if count})
        self.throughput.reset()

    def write_row(self, row: dict[str, object]) -> None:
        self.hooks.on_row(self, self.folder.append(row))

    # Evaluations and checkpoints

    def evaluation_due(self) -> bool:
        due = self.step % self.config.train.eval_every == 0 or self.step == self.config.train.steps
        return self.evaluator is not None and due

    def checkpoint_due(self) -> bool:
        return self.step % self.config.train.checkpoint_every == 0 or self.step == self.config.train.steps

    def counts(self) -> bool:
        """Returns whether a checkpoint now counts, and its evaluation: it is due, and the step was an update, or is the last.

        While steps are skipped nothing changes: checkpoints of them would push out the good ones.
        """
        due = self.evaluation_due() or self.checkpoint_due()
        return due and (not self.loop_state.skipped_in_a_row or self.step == self.config.train.steps)

    def evaluate_and_save(self) -> bool:
        """Evaluates if that is due and saves a checkpoint, without metrics if a signal or a mistake ends the evaluation.

        Saves none while steps are skipped, unless the run stops here. Returns whether it saved one.

        Raises: what the evaluation raised, after the step is saved; Failure if another process trains in the folder, or if the
            state has a NaN or an infinity: it would push out a checkpoint that can be used.
        """
        self.folder.check_lock()
        self.finish_step()
        before = time.perf_counter()
        if not all_finite(self.state):
            raise Failure(
                f"the parameters or the optimizer's state are not finite after step {self.step}, which was not saved: lower "
                f"optimizer.schedule.peak_rate or lengthen its warm-up; {kept_before(self, self.step)}"
            )
        metrics, mistake = None, None
        if self.evaluation_due():
            try:
                metrics = self.evaluate()
            except Interrupted:
                pass  # the run repeats the evaluation when it continues
            except Exception as error:
                # Another process trains in the folder, or one of several has failed: saving would wait for the others.
                if isinstance(error, Failure) or jax.process_count() > 1:
                    raise
                mistake = error
        saves = self.counts() or bool(self.stop.agreed) or mistake is not None
        if saves:
            self.folder.check_lock()  # an evaluation may take hours
            self.save(metrics, regular=self.counts())
        if mistake is not None:
            self.checkpoints.wait()
            raise mistake
        self.throughput.leave_out(time.perf_counter() - before)
        return saves

    def evaluate(self) -> dict[str, float]:
        """Evaluates, writes the `eval` row and updates the best value. Raises: Interrupted."""
        assert self.evaluator is not None
        before = compiling_seconds()
        metrics = self.evaluator.evaluate(self.step, self.state.params, self.show_evaluation)
        self.progress.leave_out(compiling_seconds() - before)
        self.is_best = self.counts() and self.loop_state.update_best(metrics, self.config.train)
        self.write_row({"step": self.step, "split": "eval", **metrics})
        self.hooks.on_evaluation(self, self.step, metrics)
        return metrics

    def show_evaluation(self, activity: str, done: int, total: int) -> None:
        """Shows what an evaluation does now; all processes call it equally often. Raises: Interrupted if the run is to stop."""
        self.stop.exchange(now=True)
        self.stop.raise_if_agreed()
        self.progress.within(activity, done, total)

    def save(self, metrics: dict[str, float] | None = None, *, regular: bool) -> None:
        """Starts to save the run as it is; one that is not regular is saved only because the run stops."""
        meta = dataclasses.asdict(self.loop_state)
        self.checkpoints.save(self.step, self.state, meta, metrics, regular=regular)
        self.report_saved()  # the one before, for which this one has waited
        self.saving = self.step

    def report_saved(self) -> None:
        """Tells the hooks once the newest checkpoint is complete."""
        if self.saving is not None and (self.folder.checkpoints / str(self.saving)).exists():
            step, self.saving = self.saving, None
            self.hooks.on_save(self, step)
