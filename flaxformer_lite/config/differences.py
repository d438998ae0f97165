"""Differences between two configs."""

import dataclasses
from typing import Any

from flaxformer_lite.config.experiment import Config

MAY_CHANGE = frozenset(
    f"train.{name}"
    for name in (
        *("steps", "log_every", "eval_every", "checkpoint_every", "keep_latest", "keep_best"),
        *("join_seconds", "runner", "mesh.data", "mesh.fsdp", "mesh.tensor"),
    )
)
"""Settings that a resumed run may change: how long it goes on, how often it reports and on which devices; nothing that alters
what a step means."""


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Setting path → value, for every leaf of the tree."""
    if not dataclasses.is_dataclass(config):
        return {prefix[:-1]: config}
    flat: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        flat |= flatten(getattr(config, field.name), f"{prefix}{field.name}.")
    return flat


def differences(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """Setting path → (old value, new value) for every setting that differs and may not change on resuming."""
    before, after = flatten(old), flatten(new)
    return {
        path: (before.get(path), after.get(path))
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path) and path not in MAY_CHANGE
    }
