"""The loop's own numbers, saved in every checkpoint beside the train state; and whether a state's numbers are finite."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from flaxformer_lite.config import TrainConfig

SPIKE_WINDOW = 100
"""Number of steps that a loss is compared with."""
DEVIATIONS = 6.0
"""Smallest spike, in standard deviations of these steps' losses above their mean. By pure chance one in 10^9 steps is one."""
SMALLEST = 0.01
"""Smallest spike as a fraction of these losses' mean: nearly equal losses have almost no deviation."""


@dataclass
class LoopState:
    """Sums since the last `train` row, and counters for early stopping. The field names are those in checkpoints."""

    data: str
    """Fingerprint of the training data."""
    loss_sum: float = 0.0
    """Sum of loss times tokens since the last `train` row."""
    tokens: float = 0.0
    """Tokens since the last `train` row."""
    best: float | None = None
    """The best value of `train.best_metric` so far."""
    best_loss: float | None = None
    """The loss of that evaluation; None in checkpoints of older releases."""
    evaluations_since_best: int = 0
    """Evaluations in a row without a new best."""
    stopped_early: bool = False
    """Whether `evaluations_since_best` has reached `train.patience`."""
    eval_data: str = ""
    """Fingerprint of the evaluation data; empty without any, and in checkpoints of older releases."""
    skipped_steps: list[int] = field(default_factory=list)
    """Steps whose loss or gradient was not finite; step n reads batch n - 1."""
    skipped_in_a_row: int = 0
    """Number of the newest steps that were skipped, one after the other."""
    recent_losses: list[float] = field(default_factory=list)
    """Losses of the newest `SPIKE_WINDOW` updates, oldest first."""
    rollbacks: list[list[int]] = field(default_factory=list)
    """Returns to a checkpoint: its step, and the number of batches that are left out after it."""
    parameters_only: str = ""
    """The origin of parameters that were not trained in this run, which has no optimizer state; empty otherwise."""

    def batch_of(self, step: int) -> int:
        """Returns the number of the batch that a step reads: step - 1, plus the number of batches left out before it."""
        return step - 1 + sum(left_out for after, left_out in self.rollbacks if after < step)

    def add_step(self, step: int, measured: Mapping[str, float]) -> bool:
        """Adds what a step measured; returns whether it was an update: a step whose numbers are not finite was skipped."""
        if not (math.isfinite(measured["loss"]) and math.isfinite(measured["gradient_norm"])):
            self.skipped_steps.append(step)
            self.skipped_in_a_row += 1
            return False
        self.skipped_in_a_row = 0
        self.loss_sum += measured["loss"] * measured["tokens"]
        self.tokens += measured["tokens"]
        return True

    def spike(self, loss: float) -> str | None:
        """Adds the finite loss of an update to the recent losses. Returns in words how far a spike is above them; None: no spike.

        With fewer than `SPIKE_WINDOW` losses before it, no loss is a spike.
        """
        before = self.recent_losses
        self.recent_losses = [*before, loss][-SPIKE_WINDOW:]
        if len(before) < SPIKE_WINDOW:
            return None
        mean = math.fsum(before) / SPIKE_WINDOW
        deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in before) / SPIKE_WINDOW)
        if loss <= mean + max(DEVIATIONS * deviation, SMALLEST * abs(mean)):
            return None
        return f"{loss:.4f}, where the {SPIKE_WINDOW} steps before had {mean:.4f} ± {deviation:.4f}"

    def mean_loss(self) -> float | None:
        """Returns the loss per token since the last `train` row, None without any, and starts the next row's sums."""
        mean = self.loss_sum / self.tokens if self.tokens else None
        self.loss_sum = self.tokens = 0.0
        return mean

    def update_best(self, metrics: Mapping[str, float], train: TrainConfig) -> bool:
        """Compares an evaluation with the best one so far; returns whether it is better, else counts towards `train.patience`.

        NaN is never the best. A tie is decided by the lower loss.
        """
        before, now = train.standing({"loss": self.best_loss, train.best_metric: self.best}), train.standing(metrics)
        better = now is not None and (before is None or now > before)
        if better:
            self.best, self.best_loss = metrics[train.best_metric], metrics.get("loss")
            self.evaluations_since_best = 0
        else:
            self.evaluations_since_best += 1
            self.stopped_early = train.patience is not None and self.evaluations_since_best >= train.patience
        return better


def all_finite(tree: PyTree) -> bool:
    """Returns whether every number in a tree of arrays, on any devices, is finite.

    Arrays in this host's memory are read by NumPy, which compiles nothing. Other arrays have one small program for each shape: a
    program for the whole state takes longer to compile with every array.
    """
    numbers = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return all(bool(np.isfinite(x).all() if on_own_cpus(x) else _all_finite(x)) for x in numbers)


def on_own_cpus(x: Array) -> bool:
    return x.is_fully_addressable and all(device.platform == "cpu" for device in x.devices())


_all_finite = jax.jit(lambda x: jnp.isfinite(x).all())
