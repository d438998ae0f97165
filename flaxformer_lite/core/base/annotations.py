"""Annotations of a setting besides its type and its bounds: marks, and the variants that config.json holds."""

import dataclasses
import functools
import typing
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Annotated, Any


class Resume(Enum):
    """Mark of a setting that a resumed run may change. The mark of a group holds for all settings in it."""

    FREE = "free"
    """The setting alters no step: a report, a device, the length of the run."""
    ON_REQUEST = "on request"
    """The setting alters steps, but neither shapes, nor the order of the data, nor the form of the optimizer's state. It needs
    --continue-with-changes."""


class Answers(Enum):
    """Mark of a setting that may differ where a trained run is used. The mark of a group holds for all settings in it."""

    SAME = "same"
    """The setting decides no answer of a trained model."""
    CHOSEN = "chosen"
    """A user may edit the setting in the `config.json` of a trained run: an edit is reported and holds."""


Mark = Resume | Answers


@dataclasses.dataclass(frozen=True)
class SavedAs:
    """Annotation of a setting whose type is a base class: config.json holds a variant of `union`, Python takes any value."""

    union: Any


def marks_of(hint: object) -> list[Mark]:
    return [data for data in getattr(hint, "__metadata__", ()) if isinstance(data, Mark)]


def without_marks(hint: Any) -> object:
    if not marks_of(hint):
        return hint
    kept = tuple(data for data in hint.__metadata__ if not isinstance(data, Mark))
    return Annotated[hint.__origin__, *kept] if kept else hint.__origin__


def declared_hints(owner: type) -> dict[str, object]:
    """Returns the annotation of every field of a dataclass type as it is written."""
    hints = typing.get_type_hints(owner, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(owner)}


type_hints: Callable[[Any], dict[str, Any]] = functools.cache(
    lambda owner: {name: without_marks(hint) for name, hint in declared_hints(owner).items()}
)
"""Returns the annotation of every field of a dataclass type, bounds included and marks left out."""


def saved_as(hint: object) -> object:
    """Returns the union that config.json holds where a setting's type is a base class; any other type hint as it is."""
    return next((data.union for data in getattr(hint, "__metadata__", ()) if isinstance(data, SavedAs)), hint)


def alternatives(hint: object) -> Iterator[object]:
    """Yields the types and the choices that a value of an annotation, or an item of it, may be."""
    hint = saved_as(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        yield from arguments
    elif arguments:
        for argument in arguments[:1] if origin is Annotated else arguments:
            yield from alternatives(argument)
    elif hint is not ...:
        yield hint
