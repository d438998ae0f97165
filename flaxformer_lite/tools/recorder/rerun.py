"""Repeats steps of a run twice, with all rows and without one: exact leave-one-out. Writes nothing.

Both start from the newest checkpoint before the step. Only the weights of what is left out differ, so dropout, the other rows and
their division over micro-batches are the same.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from flaxformer_lite.base.console import Progress
from flaxformer_lite.config import Config
from flaxformer_lite.objectives import Batch, LossTerm
from flaxformer_lite.parallel.mesh import MeshConfig
from flaxformer_lite.run import Run
from flaxformer_lite.run.recording import Recording
from flaxformer_lite.training import Runner, TrainState, TrainTask, make_runner, mean_metrics
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
            own = [found == record for found, _ in train.pieces_read(example, number, row)]
            inputs = batch.inputs
            segments = inputs.target_segments if inputs.source_segments is None else inputs.source_segments
            if all(own) or segments is None or segments[row].max() < len(own):
                batch = without_row(step, row)(step, batch)
                continue
            of_weights = np.asarray(segments[row])
            if inputs.predict_positions is not None:
                of_weights = of_weights[inputs.predict_positions[row]]
            weights = np.array(batch.weights)
            weights[row, np.isin(of_weights, np.flatnonzero(own) + 1)] = 0
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
    config, last = recording.config, step + steps - 1
    if not 1 <= step <= last <= recording.reached:
        raise ValueError(
            f"the steps {step} to {last} are not all of a run that has taken {recording.reached}: choose others"
        )
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, mesh=MeshConfig()))
    runner = make_runner(config.train.runner, TrainTask.of(config), mesh_for(config))
    start, state = state_before(recording, config, runner, step)
    late = [row["step"] for row in recording.folder.rows() if row["split"] == "change" and row["step"] > start]
    if late:
        raise ValueError(
            f"other settings since step {late[-1]}, and no checkpoint from then to step {step}: choose a later step"
        )
    if texts:
        run_of(recording, state).check_direction()  # before any step
    for number in range(start + 1, step):
        state, _ = runner.train_step(state, runner.shard_batch(local(runner, recording.batch(number))))
        progress.update("repeating the steps before", number)
    pair, losses, changed = [state, jax.tree.map(jnp.copy, state)], dict[int, tuple[float, float]](), list[int]()
    for number in range(step, last + 1):
        whole = recording.batch(number)
        less = without(number, whole)
        changed += [number] * (less is not whole)
        found = [runner.train_step(pair[i], runner.shard_batch(local(runner, b))) for i, b in enumerate((whole, less))]
        pair = [after for after, _ in found]
        losses[number] = float(found[0][1]["loss"]), float(found[1][1]["loss"])
        progress.update("repeating with and without", number)
    if not changed:
        raise ValueError(
            f"no row of the steps {step} to {last} has it: `flaxformer-lite seen` names the steps that read it"
        )
    progress.update("evaluating both")
    metrics = [evaluate(recording, config, runner, after.params) for after in pair]
    answers = [answer(recording, after, texts) for after in pair]
    return Rerun(
        start,
        changed,
        losses,
        {name: (value, metrics[1][name]) for name, value in metrics[0].items()},
        dict(zip(texts, zip(*answers, strict=True), strict=True)),
    )


def state_before(recording: Recording, config: Config, runner: Runner, step: int) -> tuple[int, TrainState]:
    """Returns the newest checkpoint before a step and its state; without one 0, and the state before the first step."""
    with open_checkpoints(recording.config, recording.folder, read_only=True) as checkpoints:
        before = checkpoints.newest_regular(1, before=step)
        if not before:
            return 0, first_state(config, runner)[0]
        return before[0], checkpoints.restore(runner.abstract_state, before[0])[1]


def local(runner: Runner, batch: Batch) -> Batch:
    """Returns the rows of a batch in the order of the runner's devices."""
    rows = runner.local_rows(len(batch.weights))
    return jax.tree.map(lambda x: x[rows], batch)


def evaluate(recording: Recording, config: Config, runner: Runner, params: PyTree) -> dict[str, float]:
    """Returns the objective's metrics on `data.eval`; none without it."""
    data = recording.data.eval
    if data is None:
        return {}
    return mean_metrics(runner, config.objective, params, data.datasets, data.parts, lambda done, total: None)


def run_of(recording: Recording, state: TrainState) -> Run:
    """Returns the run as it would be with another state."""
    run = Run(recording.folder, recording.config, state.params, recording.data.tokenizers, int(state.step))
    return run.in_own_direction()


def answer(recording: Recording, state: TrainState, texts: Sequence[str]) -> list[str]:
    """Returns the translation or the continuation of each text."""
    return ["" if target is None else target for target in run_of(recording, state).own_targets(texts)] if texts else []


def row_losses(config: Config) -> Callable[[PyTree, Batch], Float[np.ndarray, "B"]]:
    """Returns a function of parameters and a batch: the loss of each row by itself, without dropout, in nats a counted token.

    It is NaN for a row without such a token. Raises: ValueError if the loss of a row depends on the others.
    """
    objective = config.objective
    task = TrainTask.of(dataclasses.replace(config, model=config.model.for_use))
    if not objective.rows_independent:
        raise ValueError(f"objective.kind is '{objective.kind}': the loss of a row depends on the others of its batch")

    @jax.jit
    def terms(params: PyTree, batch: Batch) -> LossTerm:
        def of_row(row: Batch) -> LossTerm:
            rows = jax.tree.map(lambda x: x[None], row)
            outputs: Any = task.model.apply({"params": params}, task.inputs(rows))
            found = objective.metrics(outputs, rows)["loss"]
            assert isinstance(found, LossTerm)
            return found

        return jax.lax.map(of_row, batch)

    def losses(params: PyTree, batch: Batch) -> Float[np.ndarray, "B"]:
        found = jax.device_get(terms(params, batch))
        return np.float64(found.sum) / np.where(found.count > 0, found.count, np.nan)

    return losses


def newest_row_losses(recording: Recording) -> tuple[int, Callable[[Batch], Float[np.ndarray, "B"]]]:
    """Returns the step of the newest checkpoint, and the function of `row_losses` with its parameters."""
    losses = row_losses(recording.config)
    with open_checkpoints(recording.config, recording.folder, read_only=True) as checkpoints:
        step, params = restore_weights(checkpoints, recording.config, "last", None)
    return step, functools.partial(losses, params)


def place_of(text: str) -> tuple[str, int] | None:
    """Returns the file and the line of `FILE:LINE`; None for another text."""
    found = re.fullmatch(r"(.+):(\d+)", text)
    return None if found is None else (found[1], int(found[2]))
