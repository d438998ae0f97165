"""The tree of settings, dataclasses within dataclasses: one walk over its types, one over its values, and the marks by path."""

import dataclasses
import typing
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.core.base.annotations import Mark, alternatives, declared_hints, marks_of, type_hints


class Setting(NamedTuple):
    path: str
    hint: Any
    marks: frozenset[Mark]
    """Its own marks, and those of the groups that it is in."""


def settings_in(owner: type, prefix: str = "", marks: frozenset[Mark] = frozenset()) -> Iterator[Setting]:
    """Yields every setting below a dataclass type, all variants included, each group before the settings in it."""
    hints = type_hints(owner)
    for name, declared in declared_hints(owner).items():
        setting = Setting(prefix + name, hints[name], marks.union(marks_of(declared)))
        yield setting
        for variant in variants_in(setting.hint).values():
            yield from settings_in(variant, f"{setting.path}.", setting.marks)


def variants_in(hint: object) -> dict[str, Any]:
    """Returns the dataclass types that a value of an annotation may be, by their kinds; "" for one without a kind."""
    types = [choice for choice in alternatives(hint) if isinstance(choice, type) and dataclasses.is_dataclass(choice)]
    return {getattr(variant, "kind", ""): variant for variant in types}


def item_type(hint: object) -> Any:
    """Returns the type hint of the items of a tuple, or of a tuple or None; None for any other type."""
    if typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    tuples = [choice for choice in (hint, *typing.get_args(hint)) if typing.get_origin(choice) is tuple]
    return typing.get_args(tuples[0])[0] if tuples else None


def required_settings(owner: type) -> list[str]:
    """Returns the names of the settings of a dataclass type that have no default."""
    missing = dataclasses.MISSING
    fields = dataclasses.fields(owner)
    return [field.name for field in fields if field.default is missing and field.default_factory is missing]


class Node(NamedTuple):
    path: str
    value: Any
    hint: Any
    """The annotation of the field that holds the value; None at the root."""
    default: Any
    """The value that the default of the group has here: of a field in another variant its own default."""


def walk(value: object, path: str = "", hint: object = None, default: object = dataclasses.MISSING) -> Iterator[Node]:
    """Yields a tree of settings: its root, then every setting, each group before the settings in it."""
    yield Node(path, value, hint, default)
    if not dataclasses.is_dataclass(value):
        return
    owner = type(value)
    for field in dataclasses.fields(value):
        name = field.name
        below = getattr(default, name) if owner is type(default) else field.default
        yield from walk(getattr(value, name), f"{path}.{name}".lstrip("."), type_hints(owner)[name], below)


SETTINGS = tuple(settings_in(Config))
"""Every setting of a config, all variants included; variants may share a path."""

TYPES = frozenset([Config, *(variant for setting in SETTINGS for variant in variants_in(setting.hint).values())])
"""All dataclasses that a config is made of."""

MARKS = {setting.path: setting.marks for setting in SETTINGS}
"""The marks of every setting by its path: those of its group included."""


def has_mark(path: str, mark: Mark) -> bool:
    """Returns whether a setting has a mark; a setting that only a variant from outside the package has takes its group's."""
    while path and path not in MARKS:
        path = path.rpartition(".")[0]
    return path in MARKS and mark in MARKS[path]
