"""The loop: from a config and a run folder to a trained model, from whatever step the folder knows."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.console import Progress
from flaxformer_lite.data.dataset import zero_batch
from flaxformer_lite.inference.decoder import Decoder
from flaxformer_lite.inference.metrics import text_metrics
from flaxformer_lite.inference.translation import translate
from flaxformer_lite.model import kernels
from flaxformer_lite.model.transformer import Transformer
from flaxformer_lite.parallel.mesh import check_rows, make_mesh
from flaxformer_lite.training import multihost
from flaxformer_lite.training.data import read_data
from flaxformer_lite.training.evaluation import mean_metrics
from flaxformer_lite.training.runners import make_runner
from flaxformer_lite.training.signals import Interrupted, StopRequest
from flaxformer_lite.training.step import TrainState, TrainTask
from flaxformer_lite.workdir.checkpoints import Checkpoints
from flaxformer_lite.workdir.folder import NUM_SAMPLES, RunFolder
from flaxformer_lite.workdir.weights import open_checkpoints, warm_start


@dataclass
class LoopState:
    """What the loop remembers from step to step beside the state; part of every checkpoint."""

    data: str
    """Fingerprint of the training data."""
    loss_sum: float = 0.0
    """Loss times tokens since the last `train` row."""
    tokens: float = 0.0
    """Tokens since the last `train` row."""
    best: float | None = None
    """The best value of `train.best_metric` so far."""
    evaluations_since_best: int = 0
    """Evaluations in a row without a new best."""
    stopped_early: bool = False
    """There were `train.patience` of those."""
    parameters_only: str = ""
    """Where the parameters come from, if they were not trained here; there is no optimizer state then."""


class Trainer:
    """One run, opened: everything is loaded and checked when this exists."""

    def __init__(
        self, config: Config, folder: RunFolder, checkpoints: Checkpoints, progress: Progress, stop: StopRequest
    ):
        self.config, self.folder, self.checkpoints = config, folder, checkpoints
        self.progress, self.stop = progress, stop
        mesh = multihost.on_all_processes(lambda: mesh_for(config))
        found = read_data(config, folder, progress)
        self.tokenizers, self.data, self.eval = found.tokenizers, found.train, found.eval
        plan = self.data.plan
        progress.say(
            f"{len(found.pairs):,} training {config.objective.unit} in {plan.batches_per_epoch} batches an epoch, "
            f"{len(plan.buckets)} shapes, {self.data.padding:.1%} padding"
            + (f"; {self.data.dropped:,} longer pairs dropped" if self.data.dropped else "")
        )
        task = TrainTask.of(config)
        eval_shapes = len(self.eval.dataset.plan.buckets) if self.eval else 0
        self.runner = multihost.on_all_processes(
            lambda: make_runner(
                config.train.runner, task, mesh, train_shapes=len(plan.buckets), eval_shapes=eval_shapes
            )
        )
        # Decoding while training is greedy: quick, and close enough to tell checkpoints apart.
        greedy = replace(config.decode, beam_size=1, num_hypotheses=1)
        self.decoder = Decoder(Transformer(config.model.for_use), greedy) if config.objective.translates else None
        self.rate = config.optimizer.rate(total_steps=config.train.steps, d_model=config.model.d_model)
        self.memory = LoopState(self.data.fingerprint)
        self.vote, self.told_to_stop = multihost.StopConsensus() if multihost.several() else None, False
        self.state = self.first_state()
        self.pending: list[dict[str, jax.Array]] = []
        self.row_started, self.row_tokens = time.perf_counter(), 0.0

    def first_state(self) -> TrainState:
        """The newest checkpoint's state, or a fresh one. What was reported after that step is forgotten."""
        batch = zero_batch(self.config.objective, self.data.plan.buckets[0])
        if self.checkpoints.latest() is None:
            state = self.runner.init(batch)
            if self.config.train.init_from is not None:
                params, origin = warm_start(state.params, self.config, self.runner.mesh)
                state = state._replace(params=params, ema=None if state.ema is None else jax.tree.map(jnp.copy, params))
                self.progress.say(origin)
            forget_after = 0, True
        else:
            step, state, meta = self.checkpoints.restore(self.runner.abstract_state)
            self.memory = LoopState(**meta)
            if self.memory.data != self.data.fingerprint:
                raise multihost.SharedError(
                    f"the training data is not what {self.folder.path} was trained on up to step {step}: bring back the old "
                    "data, or train in another --workdir"
                )
            forget_after = step, self.checkpoints.metrics(step) is not None
            self.progress.say(f"resuming after step {step}")
        if multihost.is_first():
            self.folder.truncate_metrics(forget_after[0], evaluated=forget_after[1])
        parameters = sum(x.size for x in jax.tree.leaves(state.params))
        devices = f"{self.runner.mesh.size} {jax.devices()[0].platform} device" + "s" * (self.runner.mesh.size > 1)
        devices += f" in {jax.process_count()} processes" if multihost.several() else ""
        axes = ", ".join(f"{axis} {size}" for axis, size in self.runner.mesh.shape.items() if size > 1)
        devices += f": {self.config.train.runner}, {axes}" if axes else ""
        self.progress.say(f"{parameters:,} parameters on {devices}")
        return state

    # The loop --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Trains to the last step, an early stop or a signal; the last thing done is always a checkpoint."""
        train = self.config.train
        step = int(self.state.step)
        if step and self.save_owed(step):
            self.evaluate_and_save(step)
        self.progress.update("compiling", step)
        batches = self.data.batches(step, train.steps, self.runner.local_rows)
        while step < train.steps and not self.memory.stopped_early and not self.stopped:
            self.state, measured = self.runner.train_step(self.state, self.runner.shard_batch(next(batches)))
            step += 1
            self.pending.append(measured)
            self.show(step)
            if self.vote is not None:
                self.told_to_stop = self.vote.ask(self.stop.signal is not None)
            if step % train.log_every == 0 or step == train.steps:
                self.write_train_row(step, measured)
            if self.evaluation_due(step) or self.checkpoint_due(step) or self.stopped:
                self.evaluate_and_save(step)
        self.checkpoints.wait()

    @property
    def stopped(self) -> bool:
        """Whether somebody asked the run to stop; several processes must have heard of it after the same step."""
        return self.stop.signal is not None if self.vote is None else self.told_to_stop

    def evaluation_due(self, step: int) -> bool:
        return self.eval is not None and (step % self.config.train.eval_every == 0 or step == self.config.train.steps)

    def checkpoint_due(self, step: int) -> bool:
        return step % self.config.train.checkpoint_every == 0 or step == self.config.train.steps

    def save_owed(self, step: int) -> bool:
        """Whether the checkpoint of `step` is not what it would be had the run not been stopped there."""
        unevaluated = self.evaluation_due(step) and self.checkpoints.metrics(step) is None
        return unevaluated or (self.checkpoint_due(step) and self.checkpoints.interim(step))

    def settle(self) -> None:
        """Waits for the steps under way and adds up what they measured."""
        first = int(self.state.step) - len(self.pending) + 1
        for step, measured in enumerate(jax.device_get(self.pending), first):
            if not (math.isfinite(measured["loss"]) and math.isfinite(measured["gradient_norm"])):
                raise multihost.SharedError(
                    f"the loss is {measured['loss']} and the gradient's norm {measured['gradient_norm']} at step {step}: lower "
                    "optimizer.schedule.peak_rate or lengthen its warm-up; the checkpoints before it are untouched"
                )
            self.memory.loss_sum += float(measured["loss"]) * float(measured["tokens"])
            self.memory.tokens += float(measured["tokens"])
            self.row_tokens += float(measured["tokens"])
        self.pending = []

    def show(self, step: int) -> None:
        """Moves the bar; at most one step is under way at a time behind the one that is shown."""
        if len(self.pending) > 1:
            loss = float(self.pending[-2]["loss"])
            tokens = self.row_tokens + sum(float(measured["tokens"]) for measured in self.pending[:-1])
            speed = tokens / (time.perf_counter() - self.row_started)
            self.progress.update(
                "training", step, f"loss {loss:.3f}  {speed:,.0f} tokens/s  rate {float(self.rate(step - 1)):.2e}"
            )

    def write_train_row(self, step: int, measured: dict[str, jax.Array]) -> None:
        self.settle()
        memory, seconds = self.memory, time.perf_counter() - self.row_started
        row = {
            "step": step,
            "split": "train",
            "loss": memory.loss_sum / memory.tokens,
            "learning_rate": float(self.rate(step - 1)),
            "gradient_norm": float(measured["gradient_norm"]),
            "epoch": step / self.data.plan.batches_per_epoch,
            "tokens_per_second": self.row_tokens / seconds,
        }
        if multihost.is_first():
            self.folder.append(row)
        self.progress.say(
            f"step {step:>6}  epoch {row['epoch']:.2f}  loss {row['loss']:.4f}  {row['tokens_per_second']:,.0f} tokens/s  "
            f"rate {row['learning_rate']:.2e}"
        )
        memory.loss_sum = memory.tokens = self.row_tokens = 0.0
        self.row_started = time.perf_counter()

    # Evaluations and checkpoints ---------------------------------------------------------------------------------------

    def evaluate_and_save(self, step: int) -> None:
        """A checkpoint, with metrics where an evaluation is due; without them where a signal does not leave the time."""
        started = time.perf_counter()
        self.settle()
        metrics = None
        if self.evaluation_due(step):
            with contextlib.suppress(Interrupted):
                metrics = self.evaluate(step)
        interim = not (self.evaluation_due(step) or self.checkpoint_due(step))
        self.checkpoints.save(step, self.state, dataclasses.asdict(self.memory), metrics, interim=interim)
        self.row_started += time.perf_counter() - started

    def evaluate(self, step: int) -> dict[str, float]:
        """The metrics at `step`, also written as an `eval` row, with the translations. Raises: Interrupted."""
        assert self.eval is not None
        self.tick("evaluating")
        metrics = mean_metrics(
            self.runner,
            self.config.objective,
            self.state.params,
            self.eval.dataset,
            lambda *_: self.tick("evaluating"),
        )
        if self.decoder is not None:
            metrics |= self.translate(self.decoder, f"eval-step-{step:08}")
        star = " *" if self.is_best(metrics) else ""
        if multihost.is_first():
            self.folder.append({"step": step, "split": "eval", **metrics})
        self.progress.say(f"step {step:>6}  eval  " + "  ".join(f"{k} {v:.4f}" for k, v in metrics.items()) + star)
        return metrics

    def translate(self, decoder: Decoder, name: str) -> dict[str, float]:
        """Writes translations of the evaluation data, under that name; the text metrics of all of them. Raises: Interrupted.

        Of several processes the first one translates.
        """
        names, params = self.config.train.text_metrics, multihost.local_replica(self.state.params)
        metrics = self.translations(decoder, params, name) if multihost.is_first() else dict.fromkeys(names, 0.0)
        values = multihost.from_first(np.array([metrics[name] for name in names]))
        return dict(zip(names, values.tolist(), strict=True))

    def translations(self, decoder: Decoder, params: PyTree, name: str) -> dict[str, float]:
        assert self.eval is not None
        names = self.config.train.text_metrics
        few = slice(None if names else NUM_SAMPLES)  # enough to look at
        pairs, sources = self.eval.pairs[few], [record.source for record in self.eval.records[few]]
        answers = translate(decoder, params, sources, self.tokenizers, lambda i, n: self.tick(f"translating {i}/{n}"))
        texts = [best[0].text for best in answers]
        if not names:
            self.folder.write_samples(name, pairs, texts)
            return {}
        self.folder.write_hypotheses(name, pairs, texts)
        return text_metrics(names, texts, [pair.target for pair in pairs], tokenized=self.config.data.tokenized)

    def tick(self, what: str) -> None:
        """Says what is going on. Raises: Interrupted once a signal has come, where there is nobody else to wait for."""
        if self.stop.signal is not None and self.vote is None:
            raise Interrupted
        self.progress.update(what)

    def is_best(self, metrics: dict[str, float]) -> bool:
        """Whether these metrics are a new best; counts towards stopping early where they are not."""
        train, memory = self.config.train, self.memory
        value = metrics[train.best_metric]
        better = memory.best is None or (value < memory.best if train.best_mode == "min" else value > memory.best)
        if better:
            memory.best, memory.evaluations_since_best = value, 0
        else:
            memory.evaluations_since_best += 1
            memory.stopped_early = train.patience is not None and memory.evaluations_since_best >= train.patience
        return better


def mesh_for(config: Config) -> Mesh:
    """All devices. Raises: ValueError where they do not divide the batches."""
    mesh = make_mesh(config.train.mesh)
    check_rows(config.data.rows_multiple, mesh, config.train.num_micro_batches)
    return mesh


# From outside ----------------------------------------------------------------------------------------------------------


def why_finished(config: Config, checkpoints: Checkpoints) -> str | None:
    """Why there is nothing left to train, or None if there is."""
    if checkpoints.latest() is None:
        return None
    step = checkpoints.latest_valid()
    if origin := checkpoints.meta(step)["parameters_only"]:
        return f"it holds parameters only, {origin}"
    steps = config.train.steps
    if step > steps:
        return f"{step} steps are done already, and train.steps is {steps}; --train.steps can be raised to train on"
    if step == steps:
        if checkpoints.interim(step) or (config.data.eval is not None and checkpoints.metrics(step) is None):
            return None
        return f"all {step} steps are done; --train.steps can be raised to train on"
    if checkpoints.meta(step)["stopped_early"]:
        train = config.train
        return f"stopped early at step {step}, after {train.patience} evaluations without a better {train.best_metric}"
    return None


@contextlib.contextmanager
def lock(folder: RunFolder, config: Config) -> Iterator[None]:
    """Holds the run folder for all processes, once they are known to have the same settings and the same folder.

    Raises: ValueError where they have not, or where it is no folder for this run.
    """
    multihost.agree_on_command(config)
    with contextlib.ExitStack() as held:
        mark = multihost.on_all_processes(
            lambda: held.enter_context(folder.lock(config)) if multihost.is_first() else ""
        )
        mark = multihost.allgather_text(mark)[0]
        multihost.on_all_processes(lambda: folder.check_mark(mark))
        yield


def train(config: Config, workdir: str | Path) -> None:
    """Trains `config` in the folder `workdir`, or goes on where that folder stands.

    Raises: ValueError for what a user can mend.
    """
    folder = RunFolder(workdir)
    stop = StopRequest()
    with (
        multihost.all_or_none(),
        lock(folder, config),
        stop.listening(),
        Progress(config.train.steps, folder.path / "train.log", silent=not multihost.is_first()) as progress,
        open_checkpoints(config, folder, read_only=False) as checkpoints,
        multihost.all_or_none(),
    ):
        reason = why_finished(config, checkpoints)
        if reason is not None:
            progress.say(f"nothing to do in {folder.path}: {reason}")
            return
        trainer = Trainer(config, folder, checkpoints, progress, stop)
        with kernels.report_choices(progress.say):
            trainer.run()
        reason = why_finished(config, checkpoints)
        if reason is None:
            step = checkpoints.latest()
            done = "before the first step" if step is None else f"saved after step {step}"
            asked = stop.signal or "a signal to another process"
            progress.say(f"{asked}: {done}; the same command goes on from there")
        else:
            summarize(config, folder, checkpoints, reason, progress)


def summarize(config: Config, folder: RunFolder, checkpoints: Checkpoints, reason: str, progress: Progress) -> None:
    """Says how it went, where everything is, and what to type next."""
    progress.say(f"\n{reason}.")
    for name, step in (("last", checkpoints.latest()), ("best", checkpoints.best())):
        if step is not None and (metrics := checkpoints.metrics(step)):
            progress.say(f"  {name} (step {step}): " + ", ".join(f"{k} {v:.4f}" for k, v in metrics.items()))
    progress.say(
        f"  the run is in {folder.path}: metrics.jsonl, {'samples/, ' if config.objective.translates else ''}checkpoints/\n"
        f"  use it:     python -m flaxformer_lite {config.objective.command} {folder.path}\n"
        f"  look at it: python -m flaxformer_lite inspect {folder.path}"
    )
