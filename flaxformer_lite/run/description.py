"""Description of a run in a few lines: the model, its data, its weights, its best score."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
from jaxtyping import PyTree

from flaxformer_lite.config import Config
from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.workdir import RunFolder


class BestScore(NamedTuple):
    """The best evaluation of a run, by `train.best_metric`."""

    metric: str
    value: float
    step: int


def best_score(folder: RunFolder, config: Config) -> BestScore | None:
    """Returns the best row of metrics.jsonl by `train.best_metric`; None without an evaluation."""
    name = config.train.best_metric
    best = config.train.best_row(folder.rows())
    return None if best is None else BestScore(name, best[name], best["step"])


def describe_run(folder: RunFolder, config: Config, params: PyTree, step: int | None) -> str:
    """Returns a line with the folder, and others: the model's shape, the training data, its teachers, the weights, the best score.

    step: that of the weights; None: the run has no checkpoint yet.
    """
    best = best_score(folder, config)
    data = "no data (data.train is None)" if config.data.train is None else config.data.train.kind
    score = "none" if best is None else f"{best.metric} {best.value:.4g} at step {best.step}"
    weights = f"step {step} of {config.train.steps}" if step else "imported, not trained here"
    if step is None:
        newest = max((row["step"] for row in folder.rows()), default=0)
        weights = f"no checkpoint yet; the last row of metrics.jsonl is step {newest} of {config.train.steps}"
    teachers = describe_teachers(folder)
    lines = [
        f"Run {folder.name}",
        f"  model: {describe_model(config.model, params)}",
        f"  trained on: {data}, objective {config.objective.kind}",
    ]
    if teachers:
        lines.append(f"  taught by: {teachers}")
    lines += [f"  weights: {weights}", f"  best score: {score}"]
    return "\n".join(lines)


def describe_teachers(folder: RunFolder) -> str:
    """Returns the names and licences of the models whose translations a run learns from."""
    return ", ".join(f"{one['name']} (licence {one['license'] or 'unknown'})" for one in folder.teachers)


def describe_model(model: ModelConfig, params: PyTree) -> str:
    """Returns the shape of a model in a line, with the number of its parameters."""
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    return f"{describe_stacks(model)}, d_model {model.d_model}, num_heads {model.num_heads}, {count:,} parameters"


def describe_stacks(model: ModelConfig) -> str:
    """Returns the stacks of a model with their numbers of layers, such as `encoder of 2 layers and decoder of 1 layer`."""
    stacks = {"encoder": model.num_encoder_layers, "decoder": model.num_decoder_layers}
    return " and ".join(f"{name} of {n} layer{'s'[: n > 1]}" for name, n in stacks.items() if n)


def run_names(folders: Sequence[RunFolder]) -> list[str]:
    """Returns a name for each run that no other has: the last part of its path, or the whole path."""
    short = [folder.title for folder in folders]
    names = [name if short.count(name) == 1 else f.name for name, f in zip(short, folders, strict=True)]
    return [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names, 1)]
