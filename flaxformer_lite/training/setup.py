"""Setup: everything a run needs before its first step. Data is read, tokenizers are trained, the state is restored or new."""

import concurrent.futures
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from flaxformer_lite.base import hardware
from flaxformer_lite.base.console import Progress, counted
from flaxformer_lite.config import Config
from flaxformer_lite.config.differences import describe_differences, differences
from flaxformer_lite.data.dataset import zero_batch
from flaxformer_lite.model.kernels import compute_capability
from flaxformer_lite.optim.selection import split
from flaxformer_lite.parallel.mesh import check_rows, make_mesh
from flaxformer_lite.training.data import RunData, read_data
from flaxformer_lite.training.loop_state import LoopState, is_finite
from flaxformer_lite.training.multihost.agreement import Processes
from flaxformer_lite.training.multihost.meeting import SharedError
from flaxformer_lite.training.runners import Runner, check_runner, make_runner
from flaxformer_lite.training.signals import StopRequest
from flaxformer_lite.training.step import TrainState, TrainTask
from flaxformer_lite.workdir import Checkpoints, RunFolder, warm_start
from flaxformer_lite.workdir.manifest import sealed_config


class Setup(NamedTuple):
    """A run that is ready to train."""

    data: RunData
    runner: Runner
    state: TrainState
    loop_state: LoopState
    changes: Mapping[str, tuple[Any, Any]]
    """The old and the new value of settings with which the run continues, if that was asked for."""


def set_up(
    config: Config,
    folder: RunFolder,
    checkpoints: Checkpoints,
    progress: Progress,
    processes: Processes,
    stop: StopRequest,
) -> Setup:
    """Makes the runner, reads the data, and restores the newest checkpoint or initializes the state.

    Raises: ValueError if the config, the data or the folder do not fit each other or the devices; Interrupted.
    """
    if config.train.max_rollbacks and not folder.shared:
        raise SharedError(
            f"train.max_rollbacks is {config.train.max_rollbacks}, but the hosts share no run folder, so only the first one has "
            "the checkpoints to return to: set it to 0"
        )
    runner = processes.on_all(lambda: make_runner(config.train.runner, TrainTask.of(config), mesh_for(config)))
    is_new, changes = checkpoints.latest() is None, dict[str, tuple[Any, Any]]()
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as background:
        if is_new:
            background.submit(lambda: runner.compiled_init)  # XLA compiles while Python reads
        data = processes.first_then_others(lambda: read_data(config, folder, progress, stop.raise_if_agreed))
    processes.agree(data.texts, "Give all hosts the same data, and the same versions of the packages that read it")
    tokens = {"data.train as tokens": data.train.fingerprint}
    processes.agree(lambda: tokens, "Install the same version of tokenizers on all hosts")
    progress.say(describe_data(config, data))
    example = zero_batch(config.objective, data.train.plan.buckets[0])
    config.objective.check_prompts(example, config.model)
    if is_new and folder.with_changes:
        raise SharedError(
            f"--continue-with-changes: {folder.path} has no checkpoint to continue from: leave it out, or name the run's folder by "
            "--workdir"
        )
    if is_new:
        state = first_state(config, runner, progress)
        loop_state = LoopState(data.train.fingerprint, eval_data=data.eval_fingerprint)
        folder.truncate_metrics(0)
    else:
        state, loop_state = restore_state(folder, checkpoints, data, runner)
        step = int(state.step)
        evaluated = checkpoints.metrics(step) is not None
        sealed = sealed_config(folder.checkpoints)
        log_every = max(config.train.log_every, sealed.train.log_every if sealed else 0)
        folder.truncate_metrics(step, evaluated=evaluated, log_every=log_every)
        progress.say(f"resuming after step {step}{describe_length(sealed, config, step)}")
        if sealed is not None and (changes := differences(sealed, config)):
            progress.say(f"from step {step + 1} on: {describe_differences(changes)}")
            most = config.train.patience
            loop_state.stopped_early = most is not None and loop_state.evaluations_since_best >= most
    parameters = sum(x.size for x in jax.tree.leaves(state.params))
    trained = sum(x.size for x in jax.tree.leaves(split(state.params, config.train.trainable)[0]))
    frozen = f", {parameters - trained:,} of them frozen," if trained < parameters else ""
    progress.say(
        f"{parameters:,} parameters{frozen} on {describe_devices(config.train.runner, runner.mesh, processes.count)}"
    )
    for warning in device_warnings(config.model.dtype):
        progress.warn(warning)
    return Setup(data, runner, state, loop_state, changes)


def mesh_for(config: Config) -> Mesh:
    """Returns the mesh of all devices. Raises: ValueError if they do not divide the batches, or if JAX is too old."""
    check_runner(config.train.runner)
    mesh = make_mesh(config.train.mesh)
    check_rows(config.data.rows_multiple, mesh, config.train.num_micro_batches)
    return mesh


def first_state(config: Config, runner: Runner, progress: Progress) -> TrainState:
    """Returns the state before the first step, with the parameters of `train.init_from` if that is set."""
    state = runner.init()
    if config.train.init_from is None:
        return state
    params, origin = warm_start(state.params, config, runner.mesh)
    progress.say(origin)
    return state._replace(params=params, ema=None if state.ema is None else jax.tree.map(jnp.copy, params))


def restore_state(
    folder: RunFolder, checkpoints: Checkpoints, data: RunData, runner: Runner
) -> tuple[TrainState, LoopState]:
    """Returns the state of the newest valid checkpoint whose numbers are finite, on the runner's devices.

    Raises: SharedError if the run was trained or evaluated on other data.
    """
    step, state, meta = checkpoints.restore(runner.abstract_state)
    while not is_finite(state):
        checkpoints.reject(step, "it has a NaN or an infinity")
        step, state, meta = checkpoints.restore(runner.abstract_state)
    loop_state = read_loop_state(meta, step, folder, data)
    if loop_state.eval_data not in ("", data.eval_fingerprint):
        raise SharedError(
            f"the evaluation data is not the data that {folder.path} was evaluated on up to step {step}, so scores could not be "
            "compared: restore the old data, or train in another --workdir"
        )
    loop_state.eval_data = data.eval_fingerprint
    return state, loop_state


def read_loop_state(meta: dict[str, Any], step: int, folder: RunFolder, data: RunData) -> LoopState:
    """Returns the loop's numbers in the meta of checkpoint `step`. Raises: SharedError if the run was trained on other data."""
    loop_state = LoopState(**meta)
    if loop_state.data != data.train.fingerprint:
        raise SharedError(
            f"the training data is not the data that {folder.path} was trained on up to step {step}: restore the old data, or "
            "train in another --workdir"
        )
    return loop_state


def describe_data(config: Config, data: RunData) -> str:
    """Returns a line on the size of the training data."""
    plan, dropped = data.train.plan, data.train.dropped
    held_out = config.data.held_out and config.data.eval is None and data.eval
    return (
        f"{len(data.records):,} training {config.objective.unit} in {counted(plan.batches_per_epoch, 'batch')} an epoch, "
        f"{counted(len(plan.buckets), 'shape')}, {data.train.padding:.1%} padding"
        + (f"; {dropped:,} longer pairs dropped" if dropped else "")
        + (f"; {len(held_out.pairs):,} held out for data.eval" if held_out else "")
    )


def describe_length(before: Config | None, config: Config, step: int) -> str:
    """Returns the end of a line on a run that continues after `step`, if another number of steps changes its learning rates."""
    if before is None or before.train.steps == config.train.steps:
        return ""
    old, new = (c.optimizer.rate(total_steps=c.train.steps, d_model=c.model.d_model) for c in (before, config))
    counts = np.linspace(step, max(config.train.steps, step + 1) - 1, 10).astype(int).tolist()
    if all(float(old(count)) == float(new(count)) for count in counts):
        return ""
    return (
        f"; train.steps was {before.train.steps} and is now {config.train.steps}: the learning rate continues with "
        f"{float(new(step)):.2e}, on a schedule of that length"
    )


def describe_devices(runner: str, mesh: Mesh, num_processes: int) -> str:
    """Returns the number and kind of the devices, and how the work is divided over them."""
    text = f"{mesh.size} {mesh.devices.flat[0].platform} device" + "s" * (mesh.size > 1)
    text += f" in {num_processes} processes" if num_processes > 1 else ""
    axes = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items() if size > 1)
    return text + (f": {runner}, {axes}" if axes else "")


def device_warnings(dtype: str) -> Iterator[str]:
    """Yields what makes the training slower than the machine allows: an accelerator that JAX leaves alone, a slow type."""
    unused = "an NVIDIA GPU" if hardware.has_nvidia_device() else "a TPU" if hardware.has_tpu() else None
    if unused and jax.default_backend() == "cpu" and not jax.config.jax_platforms:  # type: ignore[attr-defined]
        yield f"this machine has {unused}, but JAX computes on the CPU: `flaxformer-lite doctor` says why"
    capability = compute_capability()
    if dtype == "bfloat16" and jax.default_backend() == "gpu" and 0 < capability < hardware.AMPERE:
        yield (
            f"model.dtype is 'bfloat16', but this GPU has compute capability {capability} and no units for it, which come with "
            f"{hardware.AMPERE}: set model.dtype to 'float32'"
        )
