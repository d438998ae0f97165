"""Legal values of settings: written in the annotation of a field, checked by the base class of all dataclasses of settings.

A bound is `Annotated[int, Ge(1)]`; choices are a `Literal`. pydantic knows both, so config files are held to them too. A whole
number without an upper bound has `LARGEST`. A text in an annotation is a remedy for the message, for fields without a default.
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable
from operator import ge, gt, le, lt
from typing import Annotated, Any, ClassVar

import annotated_types
from annotated_types import Ge, Gt, Lt

LARGEST = 2**31 - 1
"""The largest whole number: arrays count sizes, ids and steps in 32 bits."""

PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0), Lt(math.inf)]
FiniteFloat = Annotated[float, Gt(-math.inf), Lt(math.inf)]
NonNegativeFloat = Annotated[float, Ge(0), Lt(math.inf)]
Fraction = Annotated[float, Gt(0), Lt(1)]
Rate = Annotated[float, Ge(0), Lt(1)]
"""A probability, or the weight of the old value in a moving average; 1 is excluded."""

WEIGHTS_DTYPES = ("float32", "bfloat16")
"""The types in which `load` and `--weights-dtype` keep kernels and embedding tables; the first by default."""

SHOWN = 100
"""Characters of a value in a message."""


def cut(text: str) -> str:
    """Returns a value as messages show it: its first characters, and their number if there are more."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text):,} characters)"


LIMITS: dict[type, tuple[str, Callable[[Any, Any], bool], str]] = {
    annotated_types.Ge: ("ge", ge, "at least"),
    annotated_types.Gt: ("gt", gt, "above"),
    annotated_types.Le: ("le", le, "at most"),
    annotated_types.Lt: ("lt", lt, "below"),
}


class Checked:
    """Base of the dataclasses of settings, whose fields are checked: `class Pooler(Checked, at="model.pooler")`.

    `at` is the path in the experiment's config; a subclass has that of its base if it names none.
    """

    _path: ClassVar[str]

    def __init_subclass__(cls, at: str | None = None) -> None:
        super().__init_subclass__()
        cls._path = cls._path if at is None else at

    def __post_init__(self) -> None:
        """Checks every field. Raises: ValueError with the setting, its value, the legal values and the default."""
        for name in (field.name for field in dataclasses.fields(self)):  # type: ignore[arg-type]  # of a subclass
            if message := violation(type(self), name, getattr(self, name), f"{self._path}.{name}"):
                raise ValueError(message)


def violation(owner: type, name: str, value: Any, setting: str) -> str | None:
    """Returns the message on an illegal value of the field `name` of a dataclass type; None if the value is legal."""
    hint = _hints(owner)[name]
    accepted = _accepts(hint, value)
    if accepted and (not isinstance(value, float) or in_float32(value)):
        return None
    default = owner.__dataclass_fields__[name].default  # type: ignore[attr-defined]
    annotations = [data for part in (hint, *typing.get_args(hint)) for data in getattr(part, "__metadata__", ())]
    remedies = [data for data in annotations if isinstance(data, str)]
    if default is not dataclasses.MISSING:
        remedies.append(f"the default is {default!r}")
    legal = "a finite number of float32's range" if accepted else legal_values(hint)
    if _beyond(value) and "below" not in legal and "at most" not in legal:
        legal += f" and at most {LARGEST}"
    return "; ".join([f"{setting} is {cut(repr(value))}: it must be {legal}", *remedies])


def in_float32(value: float) -> bool:
    """Returns whether float32 has such a number: a larger one would be infinite there, a smaller one 0."""
    return value == 0 or 1e-38 <= abs(value) <= 3.4e38


def _beyond(value: Any) -> bool:
    """Returns whether a value, or one in a tuple, is too large for 32 bits."""
    return any(map(_beyond, value)) if isinstance(value, tuple) else isinstance(value, int) and abs(value) > LARGEST


@functools.cache
def _hints(owner: type) -> dict[str, Any]:
    return typing.get_type_hints(owner, include_extras=True)


def _limits(hint: Any) -> list[tuple[Callable[[Any, Any], bool], str, Any]]:
    """Returns comparison, words and limit of every bound in an `Annotated`."""
    found = []
    for bound in getattr(hint, "__metadata__", ()):
        if (limit := LIMITS.get(type(bound))) is not None:
            attribute, compare, words = limit
            found.append((compare, words, getattr(bound, attribute)))
    return found


def _accepts(hint: Any, value: Any) -> bool:
    """Returns whether a value is within the bounds and choices of an annotation; other types are not checked here."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        limits = _limits(hint)
        try:
            if not all(compare(value, limit) for compare, _, limit in limits):
                return False
        except TypeError:  # a text or None where a number belongs
            return False
        return any(compare in (le, lt) for compare, *_ in limits) or _accepts(arguments[0], value)
    if origin in (typing.Union, types.UnionType):
        return any(_accepts(argument, value) for argument in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is tuple and isinstance(value, tuple):
        return all(_accepts(arguments[0], item) for item in value)
    if hint is int:
        return not _beyond(value)
    if hint in (bool, type(None)):
        return isinstance(value, hint)
    return True


def legal_values(hint: Any) -> str:
    """Returns the legal values of an annotation, in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        limits = [f"{words} {limit}" for _, words, limit in _limits(hint) if limit not in (-math.inf, math.inf)]
        finite = ["finite"] * any(limit == math.inf for *_, limit in _limits(hint))
        return " and ".join(limits + finite) or legal_values(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return ", or ".join(legal_values(argument) for argument in arguments)
    if origin is typing.Literal:
        return " or ".join(map(repr, arguments))
    if origin is tuple:
        return f"values that are each {legal_values(arguments[0])}"
    return {bool: "True or False", type(None): "None"}.get(hint, getattr(hint, "__name__", str(hint)))
