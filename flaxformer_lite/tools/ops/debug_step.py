"""Repeats one step of a run exactly and finds where its numbers stop being finite. Nothing of the run is changed."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import PyTree

from flaxformer_lite.base.console import Progress
from flaxformer_lite.config import Config
from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.objectives import Batch
from flaxformer_lite.core.parallel.sharding import within_mesh
from flaxformer_lite.core.runners import Runner
from flaxformer_lite.core.step import TrainState, gradient, random_key
from flaxformer_lite.run.recording import open_recording
from flaxformer_lite.tools.recorder.rerun import before_step, placed_batch
from flaxformer_lite.workdir import open_run


def debug_step(config: Config, workdir: str | Path, step: int) -> list[str]:
    """Returns lines on step `step` of the run in `workdir`: its loss and gradient, and the first operation that made a NaN.

    The steps from the newest checkpoint before it are repeated, with the run's data, dropout and devices.

    Raises: ValueError if there is no such run or step, or if the run needs several processes or `pmap`; as `open_recording`.
    """
    if config.train.runner != "mesh" or jax.process_count() > 1:
        raise ValueError("--debug-step repeats a step in one process with train.runner 'mesh': start it so")
    with Progress(step) as progress:
        folder = open_run(workdir)
        folder.silent = True
        recording = open_recording(folder, progress, config)
        number = recording.batch_of(step)  # before the steps are repeated: there may be no such step
        runner, start, state = before_step(recording, config, step, progress)
        progress.update("looking for a NaN", step)
        name = f"step {step}, from checkpoint {start}, reads batch {number}"
        return describe_step(runner, state, placed_batch(runner, recording.batch(step)), name)


def describe_step(runner: Runner, state: TrainState, batch: Batch, name: str) -> list[str]:
    """Returns lines on one step: its numbers, and what is not finite."""

    def step(params: PyTree, batch: Batch) -> Any:
        with within_mesh(runner.mesh):
            loss, _, grads = gradient(runner.task, params, batch, random_key(runner.task.seed, "dropout", state.step))
        return loss, optax.tree.norm(grads), grads

    loss, norm, grads = jax.jit(step)(state.params, batch)
    lines = [f"{name}: loss {float(loss)}, norm of the gradient {float(norm)}"]
    for what, tree in (("parameters before it", state.params), ("gradients", grads)):
        wrong = [path for path, x in leaves_by_path(tree).items() if not np.isfinite(np.asarray(x, np.float64)).all()]
        more = f" and {len(wrong) - 8} more" if len(wrong) > 8 else ""
        lines.append(f"{what} that are not finite: {', '.join(wrong[:8]) or 'none'}{more}")
    if np.isfinite(float(loss)) and np.isfinite(float(norm)):
        return lines
    return [*lines, f"the first NaN: {first_nan(lambda: step(state.params, batch))}"]


def first_nan(function: Callable[[], object]) -> str:
    """Runs a function operation by operation; returns the first one whose result has a NaN, and its line in this package."""
    try:
        with jax.debug_nans(True), jax.disable_jit():
            function()
    except FloatingPointError as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "flaxformer_lite" in frame.filename]
        line = frames[-1]
        return f"{str(error).splitlines()[0]} ({line.filename}:{line.lineno}: {line.line})"
    return "none when each operation runs by itself, so an infinity or an overflow in a fused one"
