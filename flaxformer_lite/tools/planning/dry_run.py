"""Dry run of a training: shows what would be trained on what, and stops before the first step. Writes nothing."""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import jax

from flaxformer_lite.base.console import Progress
from flaxformer_lite.config import Config
from flaxformer_lite.config.settings import walk
from flaxformer_lite.core.data.dataset import zero_batch
from flaxformer_lite.core.parallel.sharding import shard_bytes
from flaxformer_lite.core.runners import Runner, make_runner
from flaxformer_lite.interop.exporting import exports_in_words
from flaxformer_lite.run.description import describe_model
from flaxformer_lite.run.recording import show_row
from flaxformer_lite.training import train_task
from flaxformer_lite.training.data import RunData, look_at_data
from flaxformer_lite.training.setup import mesh_for
from flaxformer_lite.training.summary import describe_data, describe_devices
from flaxformer_lite.workdir import RunFolder
from flaxformer_lite.workdir.bucket import bucket_to_train

MOST_SETTINGS = 20
"""The most settings of a group that are shown."""
MOST_TOKENS_SHOWN = 60
"""The most tokens of a text that are shown."""


def dry_run(config: Config, workdir: str | Path) -> list[str]:
    """Returns lines on the settings that are not the default ones, the model, the data, the memory of a step, and one example.

    Tokenizers and token stores that the run in `workdir` has are read; others are made, and the largest batch is compiled, as
    training does. The folder for all that, and for the small files of a run in a bucket, is removed at the end.

    Raises: ValueError if the data does not fit the config, or a batch does not fit the devices.
    """
    with tempfile.TemporaryDirectory() as scratch, Progress(3) as progress:
        mesh = mesh_for(config)
        typed = config
        if (bucket := bucket_to_train(workdir)) is not None:
            bucket.here = Path(scratch, "run")
            if bucket.reload().start:
                bucket.pull()
            else:
                bucket.check_empty()
        run = RunFolder(workdir, bucket=bucket)
        data = look_at_data(run.continued(config), run, Path(scratch), progress)
        config = data.config.concrete
        runner = make_runner(config.train.runner, train_task(config), mesh)
        progress.update("compiling the largest batch", 2)
        return [
            *describe_settings(typed),
            f"model       {describe_model(config.model, runner.abstract_state.params)}",
            f"exports to  {exports_in_words(config)}",
            f"devices     {describe_devices(config.train.runner, mesh, 1)}",
            f"data        {describe_data(config, data)}",
            f"batches     {'; '.join(shape_in_words(bucket.rows, *bucket.lengths) for bucket in data.train.plan.buckets)}",
            f"memory      {describe_memory(config, data, runner)}",
            "the first row of the first batch:",
            *show_row(
                config.model, jax.tree.map(lambda x: x[0], data.train.batch(0)), data.tokenizers, MOST_TOKENS_SHOWN
            ),
        ]


def describe_settings(config: Config) -> list[str]:
    """Returns a line on each group of settings that differ from the defaults, for a page: at most `MOST_SETTINGS` of a group."""
    groups: dict[str, list[str]] = {}
    for setting, value in changes_from_defaults(config).items():
        group, _, name = setting.partition(".")
        groups.setdefault(group, []).append(f"{name or group} {value!r}")
    lines = []
    for group, settings in groups.items():
        more = f", and {len(settings) - MOST_SETTINGS} more" if len(settings) > MOST_SETTINGS else ""
        lines.append(f"{group:<11} {', '.join(settings[:MOST_SETTINGS])}{more}")
    return lines


def changes_from_defaults(config: Config) -> dict[str, object]:
    """Returns the settings that differ from the defaults of their classes, by their paths."""
    changes: dict[str, Any] = {}
    for node in walk(config):
        if not dataclasses.is_dataclass(node.value):
            if node.value != node.default and not node.path.endswith(".kind"):
                changes[node.path] = node.value
        elif hasattr(node.value, "kind") and type(node.value) is not type(node.default):
            changes[f"{node.path}.kind"] = type(node.value).__name__
    return changes


def shape_in_words(rows: int, source: int, target: int) -> str:
    """Returns the shape of a batch, such as `128 x (16 + 16)`."""
    sides = " + ".join(str(length) for length in (source, target) if length)
    return f"{rows} x ({sides})"


def describe_memory(config: Config, data: RunData, runner: Runner) -> str:
    """Returns the bytes on each device: those of the state, and by the compiler those of a step of the largest batch."""
    state = shard_bytes(runner.abstract_state)
    bucket = max(data.train.plan.buckets, key=lambda bucket: bucket.rows * sum(bucket.lengths))
    batch = runner.shard_batch(zero_batch(config.objective, bucket))
    compiled: Any = runner.compiled_train_step.lower(runner.abstract_state, batch).compile().memory_analysis()
    shape = shape_in_words(bucket.rows, *bucket.lengths)
    words = f"{state / 2**20:,.0f} MiB for parameters, optimizer and averages"
    return f"{words}, and {compiled.temp_size_in_bytes / 2**20:,.0f} MiB for a step of {shape}"
