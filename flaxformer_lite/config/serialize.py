"""A config as JSON and back."""

import dataclasses
import json
import math
from typing import Any

from flaxformer_lite.base.console import warn_once
from flaxformer_lite.config.experiment import Config
from flaxformer_lite.config.other_names import offer
from flaxformer_lite.config.outside import outside_class, outside_kind
from flaxformer_lite.config.renamed import GONE_SETTINGS
from flaxformer_lite.config.settings import MARKS, TYPES, item_type, required_settings, variants_in
from flaxformer_lite.config.train import BaseHook, MissingHook
from flaxformer_lite.core.base.annotations import alternatives, type_hints
from flaxformer_lite.core.base.bounds import accepts, check_value, cut
from flaxformer_lite.core.base.mistake import Mistake
from flaxformer_lite.core.base.suggest import suggest

FORMAT = 1
"""The format of `config.json`, which has it as `format`. It changes when an older release would read a file wrongly. A new setting
does not change it: an older release refuses the setting by name. Releases before it wrote none."""


def to_json(config: Config) -> str:
    """Returns the whole config, every default written out. Raises: ValueError if a value has no form in JSON."""
    return json.dumps({"format": FORMAT, **as_tree(config)}, indent=2, ensure_ascii=False) + "\n"


def as_tree(value: object, setting: str = "", hint: object = Config) -> Any:
    """Returns a setting's value as JSON has it; a variant from outside the package has its class in the place of its kind."""
    if isinstance(value, MissingHook):
        return value.saved
    if dataclasses.is_dataclass(value):
        hints = type_hints(type(value))
        paths = {field.name: f"{setting}.{field.name}".lstrip(".") for field in dataclasses.fields(value)}
        tree = {name: as_tree(getattr(value, name), path, hints[name]) for name, path in paths.items()}
        return tree if type(value) in TYPES else {**tree, "kind": outside_kind(value, setting, hint)}
    if isinstance(value, tuple):
        return [as_tree(item, f"{setting}[{i}]", item_type(hint)) for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {name: as_tree(item, f"{setting}[{name!r}]") for name, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{setting} is {value!r}: it must be finite, as JSON has no such number")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"{setting} is {value!r}: it must be a number, a text, None, a variant or a tuple of these")


def from_json(text: str | bytes, name: str = "config.json") -> Config:
    """Returns the config that `to_json` wrote, in this release or an older one.

    Raises: ValueError naming the setting, its value, and the possible names or values.
    """
    try:
        tree = json.loads(text)
        if not isinstance(tree, dict):
            raise ValueError(f"the file has {cut(repr(tree))}: it must be a JSON object of settings")
        number = tree.pop("format", FORMAT)
        if type(number) is not int or not 1 <= number <= FORMAT:
            raise ValueError(
                f"format is {number!r}, but this release reads format {FORMAT}: install a newer flaxformer_lite"
            )
        return from_tree(tree, Config)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON: {error}") from None
    except ValueError as error:
        raise Mistake.of(error, file=name) from None


def from_tree(tree: Any, hint: Any, setting: str = "") -> Any:
    """Returns the value of a setting with this type hint; each class checks the settings that depend on each other.

    Raises: ValueError naming the setting, its value, and the possible names or values.
    """
    item = item_type(hint)
    if item is not None and isinstance(tree, list | tuple):
        return tuple(from_tree(subtree, item, f"{setting}.{i}") for i, subtree in enumerate(tree))
    parts = list(alternatives(hint))
    variants = variants_in(hint)
    kind = tree.get("kind", "") if isinstance(tree, dict) else None
    if isinstance(kind, str) and ":" in kind:
        try:
            owner = outside_class(kind, setting)
        except ValueError as error:
            if hint is BaseHook:
                return MissingHook(tree, str(error))
            raise
        return build(owner, tree, setting)
    if not variants or item is not None or (tree is None and type(None) in parts):
        is_whole = isinstance(tree, int) and not isinstance(tree, bool) and int not in parts
        return float(tree) if is_whole and float in parts and accepts(hint, tree) and abs(tree) < 1e300 else tree
    if not isinstance(tree, dict) or (kind == "" and "" not in variants):
        form = f"have a kind, one of {', '.join(map(repr, variants))}" if "" not in variants else "be a JSON object"
        raise Mistake(f"{setting} is {cut(repr(tree))}: it must {form}", setting=setting)
    if str(kind) not in variants:
        known = f"one of {', '.join(map(repr, variants))}{suggest(str(kind), variants)}"
        raise Mistake(f"{setting}.kind is {cut(repr(kind))}: it must be {known}", setting=f"{setting}.kind")
    return build(variants[str(kind)], tree, setting)


def build(owner: type, tree: dict[str, Any], setting: str) -> Any:
    """Returns a dataclass of these settings. Raises: ValueError for a setting that is unknown, missing or illegal."""
    hints = type_hints(owner)
    values = {}
    for name, subtree in tree.items():
        if name == "kind":
            continue
        path = f"{setting}.{name}".lstrip(".")
        if name not in hints and name in GONE_SETTINGS:
            if subtree is not None:
                warn_once(f"{path} is {cut(repr(subtree))}, a setting that is gone: {GONE_SETTINGS[name]}")
            continue
        if name not in hints:
            near = offer(path, list(MARKS))
            raise Mistake(
                f"there is no setting {cut(path)}; {near or 'the settings there are ' + ', '.join(hints)}", setting=path
            )
        values[name] = from_tree(subtree, hints[name], path)
        check_value(owner, name, values[name], path)
    for name in required_settings(owner):
        if name not in values:
            path = f"{setting}.{name}".lstrip(".")
            raise Mistake(f"there is no {path}: it has no default, set it", setting=path)
    return owner(**values)
