"""Setup: everything a run needs before its first step. Data is read, tokenizers are trained, the state is restored or new."""

import concurrent.futures
import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from jax.sharding import Mesh

from flaxformer_lite.config import Config, differences
from flaxformer_lite.core.model import check_attention
from flaxformer_lite.core.parallel.mesh import check_rows, make_mesh
from flaxformer_lite.core.runners import Runner, make_runner
from flaxformer_lite.core.step import TrainState
from flaxformer_lite.training.data import RunData, read_data
from flaxformer_lite.training.evaluation import Evaluator
from flaxformer_lite.training.loop_state import LoopState, all_finite
from flaxformer_lite.training.multihost.meeting import SharedError
from flaxformer_lite.training.session import Session
from flaxformer_lite.training.task import train_task
from flaxformer_lite.workdir import Checkpoints, RunFolder, open_run, warm_start
from flaxformer_lite.workdir.manifest import sealed_config


class Setup(NamedTuple):
    """A run that is ready to train."""

    config: Config
    """The settings in steps."""
    data: RunData
    evaluator: Evaluator | None
    runner: Runner
    state: TrainState
    loop_state: LoopState
    origin: str
    """A line on what the run starts from: its checkpoint, or the run of `train.init_from`; empty for a run from nothing."""
    changes: Mapping[str, tuple[Any, Any]]
    """The old and the new value of settings with which the run continues, if that was asked for."""


def set_up(run: Session) -> Setup:
    """Makes the runner, reads and checks the data, and restores the newest checkpoint or initializes the state.

    Raises: ValueError if the config, the data or the folder do not fit each other or the devices; Interrupted.
    """
    config, folder, checkpoints, processes = run.config.concrete, run.folder, run.checkpoints, run.processes
    is_new = checkpoints.latest() is None
    if is_new and folder.with_changes:
        raise SharedError(
            f"--continue-with-changes: {folder.name} has no checkpoint to continue from: leave it out, or name the run's folder by "
            "--workdir"
        )
    model = config.model.for_decoder if config.model.num_decoder_layers else config.model
    decodes = model.num_decoder_layers > 0
    processes.on_all(lambda: check_attention(model.attention, model.d_model, model.num_heads, decodes=decodes))
    measures = run.hooks.measures

    def runner_of(config: Config) -> Runner:
        task = dataclasses.replace(train_task(config), measures=measures)
        return processes.on_all(lambda: make_runner(config.train.runner, task, mesh_for(config)))

    runner = runner_of(config)
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as background:
        if is_new and config.train.init_from is None:
            background.submit(lambda: runner.compiled_init)  # XLA compiles while Python reads
        data = processes.first_then_others(lambda: read_data_of(run))
    processes.agree(data.texts, "Give all hosts the same data, and the same versions of the packages that read it")
    tokens = {"data.train as tokens": data.train.fingerprint, "data.bucket_lengths": repr(data.train.bucket_lengths)}
    processes.agree(lambda: tokens, "Install the same version of tokenizers on all hosts")
    if config.train.epochs is not None:  # the rates of its optimizer need the steps
        runner = runner_of(data.config.concrete)
    config = data.config.concrete
    run.progress.total = config.train.steps
    folder.settle(data.config)
    evaluator = None
    if data.eval is not None:
        evaluated = data.eval
        evaluator = made = processes.on_all(
            lambda: Evaluator(config, evaluated, data.tokenizers, runner, folder, processes)
        )
        processes.agree(lambda: {"the layout of answers": made.layout}, "Start all on devices of the same memory")
    if is_new:
        state, origin = first_state(config, runner)
        if config.train.init_from is not None:
            folder.keep_origin(open_run(config.train.init_from))
        folder.truncate_metrics(0)
        loop_state = LoopState(data.train.fingerprint, eval_data=data.eval_fingerprint)
        return Setup(config, data, evaluator, runner, state, loop_state, origin, {})
    state, loop_state = restore_state(folder, checkpoints, data, runner)
    step = int(state.step)
    before = (sealed_config(folder.checkpoints) or config).concrete
    folder.truncate_metrics(
        step,
        evaluated=checkpoints.metrics(step) is not None,
        log_every=max(config.train.log_every, before.train.log_every),
    )
    changes = differences(before, config)
    if changes:
        most = config.train.patience
        loop_state.stopped_early = most is not None and loop_state.evaluations_since_best >= most
    origin = f"resuming after step {step}{describe_length(before, config, step)}"
    return Setup(config, data, evaluator, runner, state, loop_state, origin, changes)


def read_data_of(run: Session) -> RunData:
    """Reads the data of a run; other processes find the tokenizers that the first one has trained."""
    run.folder.receive()
    data = read_data(run.config, run.folder, run.progress, run.stop.raise_if_agreed)
    run.folder.hand_on()
    return data


def mesh_for(config: Config) -> Mesh:
    """Returns the mesh of all devices. Raises: ValueError if they do not divide the batches."""
    mesh = make_mesh(config.train.mesh)
    check_rows(*config.data.rows_divisor, mesh, config.train.num_micro_batches)
    return mesh


def first_state(config: Config, runner: Runner) -> tuple[TrainState, str]:
    """Returns the state before the first step, and the origin of its parameters; without `train.init_from` that is empty."""
    if config.train.init_from is None:
        return runner.init(), ""
    params, origin = warm_start(runner.abstract_state.params, config, runner.mesh)
    known = {path: x for path, x in flatten_dict(params, sep="/").items() if isinstance(x, jax.Array)}
    return runner.init(known), origin


def restore_state(
    folder: RunFolder, checkpoints: Checkpoints, data: RunData, runner: Runner
) -> tuple[TrainState, LoopState]:
    """Returns the state of the newest whole checkpoint whose numbers are finite, on the runner's devices.

    Raises: SharedError if the run was trained or evaluated on other data.
    """
    step, state, meta = checkpoints.restore(runner.abstract_state)
    while not all_finite(state):
        checkpoints.set_damaged(step, "it has a NaN or an infinity")
        step, state, meta = checkpoints.restore(runner.abstract_state)
    loop_state = read_loop_state(meta, step, folder, data)
    if loop_state.eval_data not in ("", data.eval_fingerprint):
        raise SharedError(
            f"the evaluation data is not the data that {folder.name} was evaluated on up to step {step}, so scores could not be "
            "compared: restore the old data, or train in another --workdir"
        )
    loop_state.eval_data = data.eval_fingerprint
    return state, loop_state


def read_loop_state(meta: dict[str, Any], step: int, folder: RunFolder, data: RunData) -> LoopState:
    """Returns the loop's numbers in the meta of checkpoint `step`. Raises: SharedError if the run was trained on other data."""
    loop_state = LoopState(**meta)
    if loop_state.data != data.train.fingerprint:
        raise SharedError(
            f"the training data is not the data that {folder.name} was trained on up to step {step}: restore the old data, or "
            "train in another --workdir"
        )
    return loop_state


def describe_length(before: Config, config: Config, step: int) -> str:
    """Returns the end of a line on a run that continues after `step`, if another number of steps changes its learning rates."""
    if before.train.steps == config.train.steps:
        return ""
    old, new = (c.optimizer.rate(total_steps=c.train.steps, d_model=c.model.d_model) for c in (before, config))
    counts = np.linspace(step, max(config.train.steps, step + 1) - 1, 10).astype(int).tolist()
    if all(float(old(count)) == float(new(count)) for count in counts):
        return ""
    return (
        f"; train.steps was {before.train.steps} and is now {config.train.steps}: the learning rate continues with "
        f"{float(new(step)):.2e}, on a schedule of that length"
    )
