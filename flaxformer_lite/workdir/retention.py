"""Retention: which checkpoints of a run are kept, by age and by metric."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from flaxformer_lite.base.console import counted


@dataclass
class Retention:
    """The rules of `Checkpoints`, with the facts on each step that they need.

    Args:
        keep_latest: number of newest checkpoints to keep, at least 1.
        keep_best: number of best checkpoints to keep besides.
        best_metric: the name in `metrics` that ranks checkpoints; None ranks none.
        best_mode: whether the smallest ("min") or the largest ("max") value is the best.

    Raises: ValueError for counts out of range, or `keep_best` without `best_metric`.
    """

    keep_latest: int
    keep_best: int
    best_metric: str | None
    best_mode: Literal["min", "max"]
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    interim: set[int] = field(default_factory=set)
    damaged: dict[int, str] = field(default_factory=dict)
    """Why a step is damaged."""

    def __post_init__(self) -> None:
        if self.keep_latest < 1:
            raise ValueError(f"keep_latest is {self.keep_latest}: must be at least 1")
        if self.keep_best < 0 or (self.keep_best > 0 and self.best_metric is None):
            raise ValueError(f"keep_best is {self.keep_best}: must be at least 0, and above 0 a best_metric is needed")

    def record(self, step: int, content: dict[str, Any]) -> None:
        """Records the metrics of a checkpoint, and whether it is interim, from its `meta.json`."""
        self.metrics.pop(step, None)
        if content["metrics"] is not None:
            self.metrics[step] = content["metrics"]
        (self.interim.add if content.get("interim") else self.interim.discard)(step)

    def regular(self, steps: Iterable[int]) -> list[int]:
        """Returns the steps that are not interim, ascending."""
        return sorted(step for step in steps if step not in self.interim)

    def describe(self, steps: Sequence[int], there: Iterable[int]) -> str:
        """Returns a message of how many valid regular checkpoints a run has, and of which steps, of all that are there."""
        listed = f" ({'step' if len(steps) == 1 else 'steps'} {', '.join(map(str, sorted(steps)))})" if steps else ""
        interim = self.interim.intersection(there)
        apart = f", without that of step {max(interim)}, saved because the run was stopped" if interim else ""
        return f"the run has {counted(len(steps), 'valid checkpoint')}{listed}{apart}"

    def ranked(self, steps: Iterable[int]) -> list[int]:
        """Returns the regular steps that have the metric, the best first."""
        sign = 1 if self.best_mode == "min" else -1
        values = {
            step: self.metrics.get(step, {}).get(self.best_metric or "", math.nan) for step in self.regular(steps)
        }
        ranked = [step for step, value in values.items() if not math.isnan(value)]
        return sorted(ranked, key=lambda step: sign * values[step])

    def kept(self, steps: Iterable[int]) -> set[int]:
        """Returns which of all steps to keep. Orbax calls it after each save."""
        steps = sorted(step for step in steps if step not in self.damaged)
        regular = self.regular(steps)
        return {*steps[-1:], *regular[-self.keep_latest :], *self.ranked(regular)[: self.keep_best]}
