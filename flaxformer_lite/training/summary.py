"""The end of a run: why it has no step left, and what is printed then."""

from flaxformer_lite.base.console import Progress
from flaxformer_lite.config import Config
from flaxformer_lite.config.outside import import_options
from flaxformer_lite.workdir import Checkpoints, RunFolder


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
