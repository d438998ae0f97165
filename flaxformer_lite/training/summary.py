"""The lines on a run at its start, and at its end, once it has no step left."""

from collections.abc import Iterator

import jax
from jax.sharding import Mesh

from flaxformer_lite.base import hardware
from flaxformer_lite.base.console import Progress, counted
from flaxformer_lite.config import Config
from flaxformer_lite.config.differences import describe_differences
from flaxformer_lite.config.outside import import_options
from flaxformer_lite.core.base.accelerators import AMPERE
from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.model.kernels import compute_capability
from flaxformer_lite.core.optim.selection import trained_layers
from flaxformer_lite.core.step import TrainState
from flaxformer_lite.tasks.commands import use_command
from flaxformer_lite.training.data import RunData
from flaxformer_lite.training.setup import Setup
from flaxformer_lite.workdir import Checkpoints, RunFolder

# The start --------------------------------------------------------------------------------------------------------------


def announce(typed: Config, setup: Setup, num_processes: int, progress: Progress) -> None:
    """Prints the data, the origin of the parameters, other settings than before, the devices, and what makes them slow."""
    config = setup.config
    lines = [describe_data(config, setup.data), setup.origin]
    if typed.train.epochs is not None:
        lines.append(f"train.epochs {typed.train.epochs:g} is train.steps {config.train.steps}")
    if setup.changes:
        lines.append(f"from step {int(setup.state.step) + 1} on: {describe_differences(setup.changes)}")
    devices = describe_devices(config.train.runner, setup.runner.mesh, num_processes)
    lines.append(f"{describe_parameters(setup.state, config.trainable)} on {devices}")
    for line in filter(None, lines):
        progress.say(line)
    for warning in device_warnings(config.model.dtype):
        progress.warn(warning)


def describe_data(config: Config, data: RunData) -> str:
    plan, dropped = data.train.plan, data.train.dropped
    held = config.data.held_out
    held_out = held and config.data.eval is None and data.eval
    return (
        f"{len(data.records):,} training {config.objective.unit} in {counted(plan.batches_per_epoch, 'batch')} an epoch, "
        f"{counted(len(plan.buckets), 'shape')}, {data.train.padding:.1%} padding"
        + (f"; {counted(dropped, 'longer pair')} dropped" if dropped else "")
        + (f"; {len(held_out.pairs):,} held out for data.eval" if held_out else "")
        + (f"; a share of {held:g} held out for data.test" if held and config.data.test is None else "")
    )


def describe_parameters(state: TrainState, trainable: tuple[str, ...]) -> str:
    leaves = leaves_by_path(state.params)
    number = sum(x.size for x in leaves.values())
    masks = {path: trained_layers(path, x, trainable) for path, x in leaves.items()}
    trained = sum(x.size // masks[path].size * int(masks[path].sum()) for path, x in leaves.items())
    return f"{number:,} parameters" + (f", {number - trained:,} of them frozen," if trained < number else "")


def describe_devices(runner: str, mesh: Mesh, num_processes: int) -> str:
    """Returns the number and kind of the devices, and how the work is divided over them."""
    text = f"{mesh.size} {mesh.devices.flat[0].platform} device{'s' if mesh.size > 1 else ''}"
    text += f" in {num_processes} processes" if num_processes > 1 else ""
    axes = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items() if size > 1)
    return text + (f": {runner}, {axes}" if axes else "")


def device_warnings(dtype: str) -> Iterator[str]:
    """Yields the reasons why the training is slower than the machine allows: an unused accelerator, a slow type."""
    unused = "a TPU" if hardware.has_tpu() else None
    if hardware.has_nvidia_device():
        unused = "an NVIDIA GPU"
    if unused and jax.default_backend() == "cpu" and not jax.config.jax_platforms:  # type: ignore[attr-defined]
        yield f"this machine has {unused}, but JAX computes on the CPU: `flaxformer-lite doctor` says why"
    capability = compute_capability()
    if dtype == "bfloat16" and jax.default_backend() == "gpu" and 0 < capability < AMPERE:
        yield (
            f"model.dtype is 'bfloat16', but this GPU has compute capability {capability} and no units for it, which come with "
            f"{AMPERE}: set model.dtype to 'float32'"
        )


# The end ----------------------------------------------------------------------------------------------------------------


def why_finished(config: Config, checkpoints: Checkpoints) -> str | None:
    """Returns why the run has no step left to train, or None if it has."""
    if checkpoints.latest() is None:
        return None
    step = checkpoints.latest_whole()
    origin = checkpoints.meta(step)["parameters_only"]
    if origin:
        return f"it holds parameters only, {origin}"
    steps = config.train.most_steps
    if step > steps:
        return f"{step} steps are done already, and train.steps is {steps}; --train.steps can be raised to train on"
    if step == steps:
        if not checkpoints.is_regular(step) or (
            config.data.source("eval") is not None and checkpoints.metrics(step) is None
        ):
            return None
        return f"all {step} steps are done; --train.steps can be raised to train on"
    train = config.train
    since = checkpoints.meta(step)["evaluations_since_best"]
    if train.patience is not None and since >= train.patience:
        return f"stopped early at step {step}, after {train.patience} evaluations without a better {train.best_metric}"
    return None


def summarize(config: Config, folder: RunFolder, checkpoints: Checkpoints, reason: str, progress: Progress) -> None:
    """Prints the metrics of the last and the best checkpoint, the weights in use, the files of the run, and the next commands."""
    progress.say(f"\n{reason}.")
    for name, step in (("last", checkpoints.latest()), ("best", checkpoints.best())):
        metrics = None if step is None else checkpoints.metrics(step)
        if metrics:
            progress.say(f"  {name} (step {step}): " + ", ".join(f"{k} {v:.4f}" for k, v in metrics.items()))
    run = f"{folder.name}{import_options(config)}"
    progress.say(f"  {describe_weights(config, checkpoints)}")
    progress.say(
        f"  the run is in {folder.name}: metrics.jsonl, {'samples/, ' if config.objective.translates else ''}checkpoints/\n"
        f"  use it:     flaxformer-lite {use_command(config)} {run}\n"
        f"  look at it: flaxformer-lite inspect {run}"
    )


def describe_weights(config: Config, checkpoints: Checkpoints) -> str:
    """Returns a line on the weights that commands use by the config, and on the step that is the best, if it is another one."""
    weights = config.weights
    last = checkpoints.latest()
    best = checkpoints.best()
    if weights == "best" and best is None:
        return "commands use weights 'best', but no checkpoint was evaluated: --weights last uses the last one"
    used = f"step {best if weights == 'best' else last}"
    if weights.startswith("average:"):
        steps = sorted(checkpoints.newest_regular(int(weights.removeprefix("average:"))))
        used = f"the mean of steps {', '.join(map(str, steps))}" if len(steps) > 1 else used
    line = f"commands use weights {weights!r}: {'the moving average at ' if weights == 'ema' else ''}{used}"
    if best is None or weights == "best":
        return line
    if best == last and weights == "last":
        return f"{line}, also the best by {config.train.best_metric}"
    hint = ", which --weights best uses" if config.train.keep_best else ""
    return f"{line}; the best by {config.train.best_metric} is step {best}{hint}"
