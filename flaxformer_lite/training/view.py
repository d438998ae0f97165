"""The view of a training: its lines, and the facts below the bar: loss, speed, the last evaluation and the best one."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from flaxformer_lite.base.console import curve
from flaxformer_lite.training.hooks import Hook, TrainingRun


class View(Hook):
    """Shows each step, and each row of metrics.jsonl as a line and as facts."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.curve = ""

    def on_start(self, run: TrainingRun) -> None:
        """Shows the rows from before, in place of what was shown."""
        self.losses = []
        for label in ("loss", "speed", "eval", "best"):  # in this order
            run.progress.show(label, "")
        state, metric = run.loop_state, run.config.train.best_metric
        best = {name: x for name, x in ((metric, state.best), ("loss", state.best_loss)) if x is not None}
        for row in run.folder.rows():
            if row["split"] == "train":
                self.losses.append(row.get("loss") or math.nan)
            elif row["split"] == "eval":
                self.show_evaluation(run, row, metric in best and best.items() <= row.items())
        self.curve = curve(self.losses)
        run.progress.update("training", run.step)

    def on_rollback(self, run: TrainingRun, step: int) -> None:
        self.on_start(run)

    def on_step(self, run: TrainingRun, step: int, measured: Mapping[str, float]) -> None:
        run.progress.show("loss", f"{measured['loss']:.4f}", self.curve)
        run.progress.update("training", step)

    def on_row(self, run: TrainingRun, row: dict[str, Any]) -> None:
        step = f"step {row['step']:>6}"
        if row["split"] == "train":
            loss = row["loss"]
            rate = f"rate {row['learning_rate']:.2e}"
            words = "loss none" if loss is None else f"loss {loss:.4f}"
            run.progress.say(f"{step}  epoch {row['epoch']:.2f}  {words}  {speed_in_words(row)}  {rate}")
            self.losses.append(math.nan if loss is None else loss)
            self.curve = curve(self.losses)
            facts = [speed_in_words(row)]
            if "mfu" in row:
                facts.append(f"MFU {row['mfu']:.1%}")
            if "peak_memory_bytes" in row:
                facts.append(f"peak memory {row['peak_memory_bytes'] / 2**30:.2f} GiB")
            run.progress.show("speed", "  ".join([*facts, rate]))
        elif row["split"] == "eval":
            best = " * best so far" if run.is_best else ""
            run.progress.say(f"{step}  eval  {metrics_in_words(row)}{best}")
            self.show_evaluation(run, row, run.is_best)

    def show_evaluation(self, run: TrainingRun, row: dict[str, Any], is_best: bool) -> None:
        """Shows an `eval` row, which may be the best one so far."""
        run.progress.show("eval", f"step {row['step']:,}  {metrics_in_words(row)}")
        if is_best:
            best = metrics_in_words(row, [run.config.train.best_metric])
            run.progress.show("best", f"step {row['step']:,}  {best}")


def speed_in_words(row: dict[str, Any]) -> str:
    """Returns the speed in a `train` row, such as `1,234 tokens/s`."""
    name = next(name for name in row if name.endswith("_per_second"))
    speed = math.nan if row[name] is None else row[name]  # tokens of a batch whose weights are not finite
    return f"{speed:,.0f} {name.removesuffix('_per_second')}/s"


def metrics_in_words(row: dict[str, Any], names: Iterable[str] | None = None) -> str:
    names = [name for name in row if name not in ("step", "split")] if names is None else names
    return "  ".join(f"{name} {row[name]:.4f}" for name in names if isinstance(row.get(name), int | float))
