"""A config as JSON and back."""

import contextlib
import dataclasses
import difflib
import json
import typing
from collections.abc import Iterator
from typing import Any

import pydantic

from flaxformer_lite.bounds import violation
from flaxformer_lite.config.experiment import Config
from flaxformer_lite.config.old_names import modernize


def dataclasses_in(annotation: Any, seen: set[type]) -> Iterator[type]:
    """The dataclass types that an annotation reaches, each once."""
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type) and annotation not in seen:
        seen.add(annotation)
        yield annotation
        for hint in typing.get_type_hints(annotation).values():
            yield from dataclasses_in(hint, seen)
    for argument in typing.get_args(annotation):
        yield from dataclasses_in(argument, seen)


TYPES = list(dataclasses_in(Config, set()))
for _type in TYPES:
    _type.__pydantic_config__ = pydantic.ConfigDict(extra="forbid", strict=True)  # type: ignore[attr-defined]


KINDS = {_type.kind for _type in TYPES if hasattr(_type, "kind")}
"""The names of all variants, which pydantic puts into the paths of its errors."""


ADAPTER = pydantic.TypeAdapter(Config)


def to_json(config: Config) -> str:
    """The whole config, every default written out."""
    return ADAPTER.dump_json(config, indent=2, warnings="error").decode() + "\n"


def from_json(text: str | bytes, name: str = "config.json") -> Config:
    """Returns the config that `to_json` wrote, in this release or an older one.

    Raises: ValueError naming the setting, its value, and the possible names or values.
    """
    try:
        with contextlib.suppress(ValueError):  # text that is not JSON: pydantic says where
            if isinstance(tree := json.loads(text), dict):
                text = json.dumps(modernize(tree, name))
        return ADAPTER.validate_json(text)
    except pydantic.ValidationError as error:
        raise ValueError("; ".join(dict.fromkeys(f"{name}: {explain(e)}" for e in error.errors()))) from None


OUT_OF_BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")


def explain(error: Any) -> str:
    """Returns one pydantic error in one line: setting, value, legal values."""
    setting = ".".join(str(part) for part in error["loc"] if part not in KINDS)
    if error["type"] == "unexpected_keyword_argument":
        known = [leaf for leaf in settings_of(Config) if leaf.count(".") == setting.count(".")]
        near = difflib.get_close_matches(setting, known, 3)
        return f"there is no setting {setting}" + (f"; perhaps you meant {' or '.join(near)}" if near else "")
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    names, owner, rest = field_at(error["loc"])
    if names and (error["type"] in OUT_OF_BOUNDS or any(isinstance(part, str) for part in rest)):
        value = (error["input"],) if rest and isinstance(rest[0], int) else error["input"]
        if message := violation(owner, names[-1], value, ".".join(names)):
            return message
    return f"{setting} is {error['input']!r}: {error['msg']}" if setting else f"{error['msg']}"


def field_at(location: tuple[str | int, ...]) -> tuple[list[str], type, list[str | int]]:
    """Returns the names in pydantic's path to a field, the dataclass type that has the field, and the path's end.

    That end is an index in a tuple, or the member of a union.
    """
    names, owner, variants, rest = [], Config, {"": Config}, list(location)
    while rest and (rest[0] in variants or len(variants) == 1):
        owner = variants[str(rest.pop(0))] if rest[0] in variants else next(iter(variants.values()))
        hints = typing.get_type_hints(owner)
        if not rest or rest[0] not in hints:
            break
        names.append(str(rest.pop(0)))
        hint = hints[names[-1]]
        found = [hint, *typing.get_args(hint)]
        variants = {getattr(t, "kind", ""): t for t in found if dataclasses.is_dataclass(t) and isinstance(t, type)}
    return names, owner, rest


def settings_of(annotation: Any, prefix: str = "") -> list[str]:
    """Every setting's path below a dataclass type, all variants included."""
    paths = []
    hints = typing.get_type_hints(annotation)
    for name in (field.name for field in dataclasses.fields(annotation)):
        paths.append(prefix + name)
        hint = hints[name]
        for variant in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(variant):
                paths += settings_of(variant, f"{prefix}{name}.")
    return paths
