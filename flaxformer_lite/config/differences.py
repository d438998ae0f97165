"""Differences between two configs."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.config.variants import TYPES

MAY_CHANGE = (
    *("train.steps", "train.log_every", "train.eval_every", "train.checkpoint_every", "train.sample_prompts"),
    *("train.trackers", "train.hooks", "train.profile", "train.keep_latest", "train.keep_best", "train.mirror"),
    *("train.max_skipped_steps", "train.max_rollbacks", "train.runner", "train.mesh.", "train.compiler_options."),
    *("data.store", "weights"),
)
"""Settings that a resumed run may change: its length, its reports, trackers and hooks, its devices and their compilers, its
mirror, the place of its tokens and the weights that commands use, nothing that alters a step."""

ON_REQUEST = (
    *("optimizer.schedule.", "optimizer.clip_norm", "optimizer.weight_decay", "optimizer.ema_decay"),
    *("optimizer.algorithm.b1", "optimizer.algorithm.b2", "optimizer.algorithm.eps"),
    *(f"model.dropout.{place}_rate" for place in ("embedding", "attention", "feed_forward", "residual")),
    *("model.dtype", "model.matmul_dtype", "model.remat", "model.scan_unroll", "model.head.loss_chunk"),
    *("model.attention.implementation", "model.attention.splash."),
    *("train.num_micro_batches", "train.patience", "train.text_metrics", "train.init_from"),
)
"""Settings that may change with --continue-with-changes: they alter steps, but neither shapes, nor the order of the data, nor
the form of the optimizer's state; and the place of the run that a run started from."""


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the value of every leaf of a tree of dataclasses, by setting path."""
    if not dataclasses.is_dataclass(config):
        return {prefix[:-1]: config}
    flat: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        flat |= flatten(getattr(config, field.name), f"{prefix}{field.name}.")
    return flat if type(config) in TYPES else {**flat, f"{prefix}kind": type(config).__qualname__}


def changed(before: Mapping[str, Any], after: Mapping[str, Any], absent: Any = None) -> dict[str, tuple[Any, Any]]:
    """Returns (value before, value after) of every key whose values differ, in order; `absent` stands for a missing one."""
    pairs = {key: (before.get(key, absent), after.get(key, absent)) for key in sorted(before.keys() | after.keys())}
    return {key: (old, new) for key, (old, new) in pairs.items() if old != new}


def differences(old: Config, new: Config, *, on_request: bool = False) -> dict[str, tuple[Any, Any]]:
    """Returns (old value, new value) of every setting that differs and may not change when a run is resumed.

    on_request: leave out the settings that may change with --continue-with-changes.
    """
    all_changes = changed(flatten(old), flatten(new))
    different = {path: pair for path, pair in all_changes.items() if not path.startswith(MAY_CHANGE)}
    return fixed(different) if on_request else different


def fixed(different: Mapping[str, tuple[Any, Any]]) -> dict[str, tuple[Any, Any]]:
    """Returns the differences that even --continue-with-changes refuses."""
    return {
        path: pair
        for path, pair in different.items()
        # An average that is added or dropped changes the form of the state.
        if not path.startswith(ON_REQUEST) or (path == "optimizer.ema_decay" and None in pair)
    }


def describe_differences(different: Mapping[str, tuple[Any, Any]]) -> str:
    """Returns the settings with their old and new values, in one line."""
    return "; ".join(f"{setting} was {old!r} and is now {new!r}" for setting, (old, new) in different.items())
