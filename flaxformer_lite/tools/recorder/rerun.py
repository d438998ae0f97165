"""Repeats steps of a run twice, with all rows and without one: exact leave-one-out. Writes nothing.

Both start from the newest checkpoint before the step. Only the weights of what is left out differ, so dropout, the other rows and
their division over micro-batches are the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from flaxformer_lite.base.console import Progress
from flaxformer_lite.config import Config
from flaxformer_lite.core.objectives import Batch
from flaxformer_lite.core.objectives.losses import Counts
from flaxformer_lite.core.parallel import MeshConfig
from flaxformer_lite.core.runners import Runner, make_runner
from flaxformer_lite.core.step import TrainState
from flaxformer_lite.engine.texts import in_own_direction
from flaxformer_lite.run import Run
from flaxformer_lite.run.attention import own_targets
from flaxformer_lite.run.recording import Recording
from flaxformer_lite.tools.recorder.seen import find_line
from flaxformer_lite.training import mean_metrics, train_task
from flaxformer_lite.training.setup import first_state, mesh_for
from flaxformer_lite.workdir import open_checkpoints, restore_weights

Without = Callable[[int, Batch], Batch]
"""Returns the batch of a step without what is left out."""


@dataclass(frozen=True)
class Rerun:
    """Each figure with all rows, and without what is left out."""

    start: int
    """The step of the checkpoint that both start from; 0 is the state before the first step."""
    changed: list[int]
    """The steps from which something was left out."""
    losses: dict[int, tuple[float, float]]
    """The loss of each step."""
    metrics: dict[str, tuple[float, float]]
    """The metrics of the last state on `data.eval`; empty without it."""
    answers: dict[str, tuple[str, str]]
    """The translations or continuations of each text by the last state."""

    def in_words(self) -> str:
        """Returns a table of the figures, and the answers below it."""
        origin = f"checkpoint {self.start}" if self.start else "the beginning"
        lines = [
            f"from {origin}; left out in step {', '.join(map(str, self.changed))}",
            f"{'':<24}{'with':>12}{'without':>12}{'difference':>12}",
        ]
        figures = {f"loss of step {step}": pair for step, pair in self.losses.items()}
        figures |= {f"eval {name}": pair for name, pair in self.metrics.items()}
        lines += [
            f"{name:<24}{whole:>12.6f}{less:>12.6f}{less - whole:>+12.6f}" for name, (whole, less) in figures.items()
        ]
        for text, (before, after) in self.answers.items():
            lines += [text, f"  with     {before}", f"  without  {after if after != before else 'the same'}"]
        return "\n".join(lines)


def without_typed(recording: Recording, step: int, typed: str) -> Without:
    """Leaves out a row of `step` by its number, or the record of the training data that has a line, FILE:LINE.

    Raises: ValueError if the line is not one of one record.
    """
    file, _, number = typed.rpartition(":")
    if not file:
        return without_row(step, int(number))
    records = [place.record for place, _ in find_line(recording, file, int(number))["train"]]
    if len(records) != 1:
        raise ValueError(
            f"--without is {typed!r}: it must be a line of one record of data.train, but {len(records)} have "
            "it; give the number of a row"
        )
    return without_record(recording, records[0])


def without_row(step: int, row: int) -> Without:
    """Leaves a row out of the batch of `step`: all of it is zero, as in a row that only fills up."""

    def without(now: int, batch: Batch) -> Batch:
        rows = len(batch.weights)
        if not 0 <= row < rows:
            raise ValueError(f"--without is {row}: the batch of step {step} has the rows 0 to {rows - 1}")
        if now != step:
            return batch
        keep = np.arange(rows) != row
        return jax.tree.map(lambda x: x * keep.reshape(-1, *[1] * (x.ndim - 1)).astype(x.dtype), batch)

    return without


def without_record(recording: Recording, record: int) -> Without:
    """Leaves a record out of all steps: rows with nothing else are zero; in others its positions get the weight 0."""
    readings: dict[int | None, list[int]] = {}
    for reading in recording.readings([record]):
        readings.setdefault(reading.step, []).append(reading.row)
    train = recording.data.train

    def without(step: int, batch: Batch) -> Batch:
        number = recording.loop_state.batch_of(step)
        for row in readings.get(step, ()):
            example = int(train.plan.batch(number).examples[row])
            is_record = [one == record for one in train.records_read(example, number, row)]
            inputs = batch.inputs
            segments = inputs.target_segments if inputs.source_segments is None else inputs.source_segments
            if all(is_record) or segments is None or segments[row].max() < len(is_record):
                batch = without_row(step, row)(step, batch)
                continue
            of_weights = np.asarray(segments[row])
            if inputs.predict_positions is not None:
                of_weights = of_weights[inputs.predict_positions[row]]
            weights = np.array(batch.weights)
            weights[row, np.isin(of_weights, np.flatnonzero(is_record) + 1)] = 0
            batch = batch._replace(weights=weights)  # type: ignore[arg-type]
        return batch

    return without


def rerun(
    recording: Recording, step: int, steps: int, without: Without, texts: Sequence[str], progress: Progress
) -> Rerun:
    """Repeats `steps` steps from `step` on, with and without what is left out, on the devices of this machine.

    Raises: ValueError if a step is not one that the run has taken, if nothing is left out, or if the run changed its settings
        since the checkpoint.
    """
    config = recording.config
    last = step + steps - 1
    if not 1 <= step <= last <= recording.reached:
        raise ValueError(
            f"the steps {step} to {last} are not all of a run that has taken {recording.reached}: choose others"
        )
    if texts:
        run_with(recording).translator.form.check_languages()  # before any step
    config = replace(config, train=replace(config.train, mesh=MeshConfig()))
    runner, start, state = before_step(recording, config, step, progress)
    pair = [state, jax.tree.map(jnp.copy, state)]
    losses = dict[int, tuple[float, float]]()
    changed = list[int]()
    for number in range(step, last + 1):
        whole = recording.batch(number)
        less = without(number, whole)
        if less is not whole:
            changed.append(number)
        results = [runner.train_step(pair[i], placed_batch(runner, batch)) for i, batch in enumerate((whole, less))]
        pair = [after for after, _ in results]
        losses[number] = float(results[0][1]["loss"]), float(results[1][1]["loss"])
        progress.update("repeating with and without", number)
    if not changed:
        raise ValueError(
            f"no row of the steps {step} to {last} has it: `flaxformer-lite seen` names the steps that read it"
        )
    data = recording.data.eval
    metrics = [
        mean_metrics(runner, config.objective, after.params, data.datasets, data.parts, progress.within)
        for after in pair
        if data is not None
    ] or [{}, {}]
    answers = [own_targets(run_with(recording, after.params), texts) if texts else [] for after in pair]
    return Rerun(
        start,
        changed,
        losses,
        {name: (value, metrics[1][name]) for name, value in metrics[0].items()},
        {text: (whole or "", less or "") for text, whole, less in zip(texts, *answers, strict=True)},
    )


def before_step(recording: Recording, config: Config, step: int, progress: Progress) -> tuple[Runner, int, TrainState]:
    """Returns the runner of a config's devices, the newest checkpoint before a step, and the state right before the step.

    The steps since the checkpoint are repeated; it is 0 without one, and they are all steps.

    Raises: ValueError if the run changed its settings since the checkpoint.
    """
    runner = make_runner(config.train.runner, train_task(config), mesh_for(config))
    with open_checkpoints(recording.config, recording.folder, read_only=True) as checkpoints:
        start = next(iter(checkpoints.newest_regular(1, before=step)), 0)
        if start:
            _, state, _ = checkpoints.restore(runner.abstract_state, start)
        else:
            state, origin = first_state(config, runner)
            if origin:
                progress.say(origin)
    late = [row["step"] for row in recording.folder.rows() if row["split"] == "change" and row["step"] > start]
    if late:
        raise ValueError(
            f"other settings since step {late[-1]}, and no checkpoint from then to step {step}: choose a later step"
        )
    for number in range(start + 1, step):
        state, _ = runner.train_step(state, placed_batch(runner, recording.batch(number)))
        progress.update("repeating the steps before", number)
    return runner, start, state


def placed_batch(runner: Runner, batch: Batch) -> Batch:
    """Returns a batch on the runner's devices."""
    rows = runner.local_rows(len(batch.weights))
    return runner.shard_batch(jax.tree.map(lambda x: x[rows], batch))


def run_with(recording: Recording, params: PyTree = None) -> Run:
    """Returns the run as it would be with other parameters."""
    return in_own_direction(Run(recording.folder, recording.config, params, recording.data.tokenizers, 0))


def row_loss(recording: Recording) -> tuple[int, Callable[[Batch], float]]:
    """Returns the step of the newest checkpoint, and the loss of a row by itself with its parameters, without dropout.

    The loss is that of an evaluation: of tokens in nats a counted token, and NaN for a row without such a token.

    Raises: ValueError if the loss of a row depends on the others.
    """
    config, objective = recording.config, recording.config.objective
    if not objective.rows_independent:
        raise ValueError(f"objective.kind is '{objective.kind}': the loss of a row depends on the others of its batch")
    task = train_task(replace(config, model=config.model.for_use))
    with open_checkpoints(config, recording.folder, read_only=True) as checkpoints:
        step, params = restore_weights(checkpoints, config, "last", None)

    @jax.jit
    def counts(params: PyTree, row: Batch) -> Counts:
        rows = jax.tree.map(lambda x: x[None], row)
        outputs: Any = task.model.apply({"params": params}, task.inputs(rows))
        return objective.metrics(outputs, rows)

    return step, lambda row: objective.report(counts(params, row))["loss"]
