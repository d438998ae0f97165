"""The variants of the package that settings choose between, by their kinds."""

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.core.model.config import SavedAs


def saved_as(hint: Any) -> Any:
    """Returns the union that config.json holds where a setting's type is a base class; any other type hint as it is."""
    return next((part.union for part in typing.get_args(hint) if isinstance(part, SavedAs)), hint)


def dataclasses_in(annotation: Any, seen: set[type]) -> Iterator[type]:
    """Yields the dataclass types that an annotation reaches, each once."""
    annotation = saved_as(annotation)
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type) and annotation not in seen:
        seen.add(annotation)
        yield annotation
        for hint in typing.get_type_hints(annotation, include_extras=True).values():
            yield from dataclasses_in(hint, seen)
    for argument in typing.get_args(annotation):
        yield from dataclasses_in(argument, seen)


TYPES = frozenset(dataclasses_in(Config, set()))
"""All dataclasses that a config is made of."""


def settings_of(annotation: Any, prefix: str = "") -> list[str]:
    """Returns the path of every setting below a dataclass type, all variants included."""
    paths, hints = [], typing.get_type_hints(annotation, include_extras=True)
    for field in dataclasses.fields(annotation):
        paths.append(prefix + field.name)
        for variant in variants_in(hints[field.name]).values():
            paths += settings_of(variant, f"{prefix}{field.name}.")
    return paths


def required(owner: Any) -> list[str]:
    """Returns the names of the settings of a dataclass type that have no default."""
    missing, fields = dataclasses.MISSING, dataclasses.fields(owner)
    return [field.name for field in fields if field.default is missing and field.default_factory is missing]


def variants_in(hint: Any) -> dict[str, Any]:
    """Returns the dataclass types that a field may have, by their kinds; "" for one without a kind."""
    hint = saved_as(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return {getattr(hint, "kind", ""): hint}
    return {kind: variant for part in typing.get_args(hint) for kind, variant in variants_in(part).items()}
