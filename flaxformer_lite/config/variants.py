"""The variants that settings choose between, those that a user defines outside the package among them.

A variant of the package is named by its `kind`. Another one is named in config.json by its class, `module:Class`: such a file
can be read where that module has been imported.
"""

import dataclasses
import inspect
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.model.config import SavedAs


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

KINDS = {_type.kind for _type in TYPES if hasattr(_type, "kind")}
"""The names of all variants, which pydantic puts into the paths of its errors."""


def settings_of(annotation: Any, prefix: str = "") -> list[str]:
    """Returns the path of every setting below a dataclass type, all variants included."""
    paths, hints = [], typing.get_type_hints(annotation, include_extras=True)
    for field in dataclasses.fields(annotation):
        paths.append(prefix + field.name)
        for variant in variants_in(hints[field.name]).values():
            paths += settings_of(variant, f"{prefix}{field.name}.")
    return paths


def variants_in(hint: Any) -> dict[str, Any]:
    """Returns the dataclass types that a field may have, by their kinds; "" for one without a kind."""
    hint = saved_as(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return {getattr(hint, "kind", ""): hint}
    return {kind: variant for part in typing.get_args(hint) for kind, variant in variants_in(part).items()}


def outside_kind(value: Any, setting: str, hint: Any) -> str:
    """Returns the kind, `module:Class`, of a variant that is in no union of the package.

    Raises: ValueError if no file could name the class, or if it belongs to the package and was left out of its union.
    """
    owner = type(value)
    name = f"{owner.__module__}.{owner.__qualname__}"
    known = ", ".join(variant.__name__ for variant in variants_in(hint).values())
    if len(variants_in(hint)) < 2:
        raise ValueError(f"{setting} is of the class {name}: it must be of the class {known}")
    if owner.__module__.startswith("flaxformer_lite."):
        raise ValueError(
            f"{setting} is of the class {name}, which is not in {union_name(saved_as(hint))}: add it there, beside {known}"
        )
    if "<locals>" in owner.__qualname__:
        raise ValueError(
            f"{setting} is of the class {name}, which config.json cannot name: define the class at the top of a module, not in "
            "a function"
        )
    return f"{owner.__module__}:{owner.__qualname__}"


def outside_class(kind: str, setting: str) -> type:
    """Returns the class that `outside_kind` named. Raises: ValueError if its module has not been imported."""
    module, _, name = kind.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        how = (
            f"loading {module.removeprefix('config_')}.py by load_config"
            if module.startswith("config_")
            else f"importing {module}"
        )
        raise ValueError(
            f"{setting}.kind is {kind!r}: the class {name} is not part of flaxformer_lite, and no imported module {module} has it; "
            f"use this run from Python, after {how}"
        )
    return found


def union_name(hint: Any) -> str:
    """Returns the name of a union and the file that defines it."""
    package = Path(str(sys.modules["flaxformer_lite"].__file__)).parent
    for module in [module for name, module in sys.modules.items() if name.startswith("flaxformer_lite.")]:
        for name, value in vars(module).items():
            if type(value) is type(hint) and value == hint and f"\n{name} = " in inspect.getsource(module):
                return f"the union {name} in {Path(str(module.__file__)).relative_to(package.parent)}"
    return "its union"
