"""A training in a given time: the speed of this machine, the part of the time that is for steps, and messages on too little."""

import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Int

from flaxformer_lite.base.console import note, quiet
from flaxformer_lite.config import Config
from flaxformer_lite.core.data.batch_plan import BatchPlan, batch_shapes
from flaxformer_lite.core.data.dataset import plan_training
from flaxformer_lite.files.tokenizers import FromRun
from flaxformer_lite.training import loop
from flaxformer_lite.training.hooks import EachRow
from flaxformer_lite.training.seconds import cost_of

MEASURED_STEPS = 24
TRAINING_SHARE, OTHER_SECONDS = 0.85, 90
"""The share of the time that is left for training; the rest evaluates, scores and exports, in at least `OTHER_SECONDS`."""


def deadline_of(hours: float | None) -> float | None:
    """Returns the time, by `time.monotonic`, at which the hours are over; None without hours.

    Raises: ValueError for hours in which no training fits.
    """
    if hours is None:
        return None
    if not 0.05 <= hours < math.inf:
        raise ValueError(f"--hours is {hours}: it must be at least 0.05; only compiling and scoring takes two minutes")
    return time.monotonic() + 3600 * hours


def plan_of(config: Config, lengths: Int[np.ndarray, "N 2"]) -> BatchPlan:
    """Returns the batches of a training on rows of these lengths."""
    return plan_training(lengths, config.objective, config.data, config.train.seed, cost_of(config))[1]


def training_seconds(left: float) -> float:
    """Returns the seconds for steps, of those that are left."""
    return min(TRAINING_SHARE * left, left - OTHER_SECONDS)


def steps_within(left: float, speed: float, worth: float) -> float:
    """Returns the steps for which `left` seconds are enough, scores and export included.

    speed: steps per second. worth: the steps of a whole training, for the message.

    Raises: ValueError if the seconds are too few for `MEASURED_STEPS`.
    """
    steps = training_seconds(left) * speed
    if steps >= MEASURED_STEPS:
        return steps
    fewest, whole = MEASURED_STEPS / speed, worth / speed
    missing = (more_hours(max(one / TRAINING_SHARE, one + OTHER_SECONDS) - left) for one in (fewest, whole))
    raise ValueError(
        f"--hours is too short: {max(left, 0):,.0f} seconds are left, and {fewest:,.0f} of training, {OTHER_SECONDS} of scores and "
        f"export are needed at least: add {', or '.join(missing)} for all that the text is worth"
    )


def more_hours(seconds: float) -> str:
    """Returns seconds in hours, rounded up to two digits."""
    return f"{math.ceil(seconds / 36) / 100:.2f}"


def positions_per_second(config: Config, folder: str) -> float:
    """Returns the speed of training on this machine, in positions of a `BatchPlan`, of a run with one shape that is thrown away.

    config: its steps are measured, only the second half of them. folder: that of its tokenizer.
    """
    times = list[float]()
    half = config.train.steps // 2
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

    def on_row(row: dict[str, object]) -> None:
        times.append(time.perf_counter())

    note("measuring the speed of training on this machine")
    with quiet(), tempfile.TemporaryDirectory() as scratch:
        stopped = loop.train(config, Path(scratch, "run"), [EachRow(on_row)])
    if stopped:
        note("interrupted while the speed was measured; the same command continues from there")
        raise KeyboardInterrupt
    shape = batch_shapes(config.objective, config.data)[-1]
    return half * shape.rows * sum(shape.lengths) / (times[1] - times[0])
