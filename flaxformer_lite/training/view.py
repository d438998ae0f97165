"""The facts that the live view of a training shows below its bar: loss, speed, the last evaluation and the best one."""

import math
from collections.abc import Iterable
from typing import Any

from flaxformer_lite.base.console import Curve, Progress
from flaxformer_lite.config import TrainConfig


class TrainView:
    """Shows the rows of metrics.jsonl, and the loss of each step."""

    def __init__(self, train: TrainConfig, progress: Progress) -> None:
        self.train, self.progress, self.curve = train, progress, Curve()

    def show_history(self, rows: Iterable[dict[str, Any]], best: float | None) -> None:
        """Shows the rows from before, in place of what was shown; `best` is the best value of `train.best_metric` in them."""
        self.curve = Curve()
        for label in ("loss", "speed", "eval", "best"):  # in this order
            self.progress.show(label, "")
        for row in rows:
            if row["split"] == "train":
                self.curve.add(row.get("loss") or math.nan)
            elif row["split"] == "eval":
                self.show_evaluation(row, best=best is not None and row.get(self.train.best_metric) == best)

    def show_step(self, step: int, loss: float) -> None:
        """Shows a step and the loss of the one before."""
        self.progress.show("loss", f"{loss:.4f}", str(self.curve))
        self.progress.update("training", step)

    def show_row(self, row: dict[str, Any]) -> None:
        """Shows a `train` row."""
        self.curve.add(math.nan if row["loss"] is None else row["loss"])
        words = [speed_in_words(row)]
        if "mfu" in row:
            words.append(f"MFU {row['mfu']:.1%}")
        if "peak_memory_bytes" in row:
            words.append(f"peak memory {row['peak_memory_bytes'] / 2**30:.2f} GiB")
        self.progress.show("speed", "  ".join([*words, f"rate {row['learning_rate']:.2e}"]))

    def show_evaluation(self, row: dict[str, Any], *, best: bool) -> None:
        """Shows an `eval` row, which may be the best one so far."""
        self.progress.show("eval", f"step {row['step']:,}  {metrics_in_words(row)}")
        if best:
            self.progress.show("best", f"step {row['step']:,}  {metrics_in_words(row, [self.train.best_metric])}")


def speed_in_words(row: dict[str, Any]) -> str:
    """Returns the speed in a `train` row, such as `1,234 tokens/s`."""
    name = next(name for name in row if name.endswith("_per_second"))
    return f"{row[name]:,.0f} {name.removesuffix('_per_second')}/s"


def metrics_in_words(row: dict[str, Any], names: Iterable[str] | None = None) -> str:
    """Returns the metrics of an `eval` row, or those named."""
    names = [name for name in row if name not in ("step", "split")] if names is None else names
    return "  ".join(f"{name} {row[name]:.4f}" for name in names if isinstance(row.get(name), int | float))
