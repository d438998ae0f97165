"""A training in a given time: the speed of this machine, the part of the time that is for steps, and messages on too little."""

import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from flaxformer_lite.base.console import note, quiet
from flaxformer_lite.config import Config
from flaxformer_lite.core.data.batch_plan import batch_shapes, bucket_indices
from flaxformer_lite.files.tokenizers import FromRun
from flaxformer_lite.training import loop
from flaxformer_lite.training.hooks import EachRow

MEASURED_STEPS = 24
TRAINING_SHARE, OTHER_SECONDS = 0.85, 90
"""The share of the time that is left for training; the rest evaluates, scores and exports, in at least `OTHER_SECONDS`."""


def epoch_of(config: Config, lengths: Int[np.ndarray, "N 2"]) -> tuple[int, float]:
    """Returns the batches of an epoch of rows of these lengths, and their padded positions."""
    shapes = batch_shapes(config.objective, config.data)
    counts = np.bincount(bucket_indices(lengths, shapes), minlength=len(shapes))[: len(shapes)]
    rows, longest = (np.array(column) for column in zip(*((s.rows, max(s.lengths)) for s in shapes), strict=True))
    return max(1, math.ceil(sum(counts / rows))), float(sum(counts * longest))


def training_seconds(left: float) -> float:
    """Returns the seconds for steps, of those that are left."""
    return min(TRAINING_SHARE * left, left - OTHER_SECONDS)


def too_short(left: float, fewest: float, all_steps: float) -> str:
    """Returns the message for seconds that are left; fewest, all_steps: seconds of the shortest training and of a whole one."""

    def missing(training: float) -> str:
        return more_hours(max(training / TRAINING_SHARE, training + OTHER_SECONDS) - left)

    return (
        f"--hours is too short: {max(left, 0):,.0f} seconds are left, and {fewest:,.0f} of training, {OTHER_SECONDS} of scores and "
        f"export are needed at least: add {missing(fewest)}, or {missing(all_steps)} for all that the text is worth"
    )


def more_hours(seconds: float) -> str:
    """Returns seconds in hours, rounded up to two digits."""
    return f"{math.ceil(seconds / 36) / 100:.2f}"


def positions_per_second(config: Config, folder: str) -> float:
    """Returns the speed of training on this machine, in padded positions, of a run with one shape that is thrown away.

    config: its steps are measured, the second half alone. folder: that of its tokenizer.
    """
    times, half = list[float](), config.train.steps // 2
    longest = config.data.max_source_length
    data = replace(
        config.data, eval=None, test=None, held_out=0.0, tokenizer=FromRun(path=folder), bucket_lengths=(longest,)
    )
    train = replace(
        config.train,
        log_every=half,
        best_metric="loss",
        text_metrics=(),
        patience=None,
        checkpoint_every=config.train.steps,
    )
    config = replace(config, data=data, train=train, weights="last")

    def on_row(row: dict[str, Any]) -> None:
        times.append(time.perf_counter())

    note("measuring the speed of training on this machine")
    with quiet(), tempfile.TemporaryDirectory() as scratch:
        stopped = loop.train(config, Path(scratch, "run"), [EachRow(on_row)])
    if stopped:
        note("interrupted while the speed was measured; the same command continues from there")
        raise KeyboardInterrupt
    rows = batch_shapes(config.objective, config.data)[-1].rows
    return half * rows * longest / (times[1] - times[0])
