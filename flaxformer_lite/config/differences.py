"""Differences between two configs."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.config.settings import TYPES, has_mark, walk
from flaxformer_lite.core.base.annotations import Resume


def flatten(config: object, path: str = "") -> dict[str, Any]:
    """Returns the value of every leaf of a tree of dataclasses, by setting path; of a class from outside its name too."""
    values, names = dict[str, Any](), dict[str, Any]()
    for node in walk(config, path):
        if not dataclasses.is_dataclass(node.value):
            values[node.path] = node.value
        elif type(node.value) not in TYPES:
            names[f"{node.path}.kind".lstrip(".")] = type(node.value).__qualname__
    return values | names  # a class from outside may have inherited a kind


def changed(
    before: Mapping[str, object], after: Mapping[str, object], absent: object = None
) -> dict[str, tuple[Any, Any]]:
    """Returns (value before, value after) of every key whose values differ, in order; `absent` stands for a missing one."""
    differing = dict[str, tuple[Any, Any]]()
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key, absent), after.get(key, absent)
        if old != new:
            differing[key] = old, new
    return differing


def differences(old: Config, new: Config, *, on_request: bool = False) -> dict[str, tuple[Any, Any]]:
    """Returns (old value, new value) of every setting that differs and may not change when a run is resumed.

    on_request: leave out the settings that may change with --continue-with-changes.
    """
    all_changes = changed(flatten(old), flatten(new))
    different = {path: pair for path, pair in all_changes.items() if not has_mark(path, Resume.FREE)}
    return fixed(different) if on_request else different


def fixed(different: Mapping[str, tuple[object, object]]) -> dict[str, tuple[object, object]]:
    """Returns the differences that even --continue-with-changes refuses."""
    return {
        path: pair
        for path, pair in different.items()
        # An average that is added or dropped changes the form of the state.
        if not has_mark(path, Resume.ON_REQUEST) or (path == "optimizer.ema_decay" and None in pair)
    }


def describe_differences(different: Mapping[str, tuple[object, object]]) -> str:
    """Returns the settings with their old and new values, in one line."""
    return "; ".join(f"{setting} was {old!r} and is now {new!r}" for setting, (old, new) in different.items())
