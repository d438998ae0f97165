"""Metrics over a whole dataset."""

from collections.abc import Callable, Sequence

import jax
import numpy as np
from jaxtyping import PyTree

from flaxformer_lite.data.dataset import Dataset
from flaxformer_lite.objectives.base import BaseObjective
from flaxformer_lite.objectives.losses import LossTerm, PerRowMetric
from flaxformer_lite.training.runners import Runner


def mean_metrics(
    runner: Runner, objective: BaseObjective, params: PyTree, dataset: Dataset, tick: Callable[[int, int], None]
) -> dict[str, float]:
    """The objective's metrics over a whole dataset, from float64 sums of what each batch counts."""
    batches = dataset.plan.batches_per_epoch
    counted: dict[str, list[LossTerm | PerRowMetric]] = {}
    for i in range(batches):
        found = runner.eval_step(params, runner.shard_batch(dataset.batch(i, runner.local_rows)))
        for name, of_batch in jax.device_get(found).items():
            counted.setdefault(name, []).append(of_batch)
        tick(i + 1, batches)
    return objective.report({name: merge_counts(parts) for name, parts in counted.items()})


def merge_counts(parts: Sequence[LossTerm | PerRowMetric]) -> LossTerm | PerRowMetric:
    """What was counted in all batches: sums of sums and counts, or all rows that weigh something."""
    if isinstance(parts[0], LossTerm):
        return LossTerm(*(np.sum([np.asarray(part[i], np.float64) for part in parts], 0) for i in (0, 1)))
    values, weights = (np.concatenate([np.asarray(part[i]) for part in parts]) for i in (0, 1))
    return PerRowMetric(values[weights > 0], weights[weights > 0])  # type: ignore[arg-type]  # NumPy's, on the host
