"""Legal values of settings: written in the annotation of a field, checked by the base class of all dataclasses of settings.

A bound is `Annotated[int, Ge(1)]`; choices are a `Literal`. A whole number without an upper bound has `LARGEST`. A text in an
annotation is a remedy for the message, for fields without a default.
"""

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from operator import ge, gt, le, lt
from typing import Annotated, Any, ClassVar

import annotated_types
from annotated_types import Ge, Gt, Le, Lt

from flaxformer_lite.core.base.annotations import alternatives, type_hints
from flaxformer_lite.core.base.mistake import Mistake
from flaxformer_lite.core.base.suggest import suggest

LARGEST = 2**31 - 1
"""The largest whole number: arrays count sizes, ids and steps in 32 bits."""

PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
Width = Annotated[int, Ge(1), Le(2**24)]
"""Width of a layer. The limit keeps data that is built before any array, such as rows of sines, within memory."""
PositiveFloat = Annotated[float, Gt(0), Lt(math.inf)]
FiniteFloat = Annotated[float, Gt(-math.inf), Lt(math.inf)]
NonNegativeFloat = Annotated[float, Ge(0), Lt(math.inf)]
Fraction = Annotated[float, Gt(0), Lt(1)]
Share = Annotated[float, Ge(0), Le(1)]
PositiveShare = Annotated[float, Gt(0), Le(1)]
Rate = Annotated[float, Ge(0), Lt(1)]
"""A probability, or the weight of the old value in a moving average; 1 is excluded."""

WEIGHTS_DTYPES = ("float32", "bfloat16")
"""The types in which `load` and `--weights-dtype` keep kernels and embedding tables; the first by default."""

PLACE = re.compile(r"\{(\w*)\}")
"""A place in the text of a setting."""

SHOWN_CHARACTERS = 100
"""Characters of a value in a message."""


def cut(text: str) -> str:
    """Returns a value as messages show it: its first characters, and their number if there are more."""
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}… ({len(text):,} characters)"


LIMITS: dict[type, tuple[str, Callable[[Any, Any], bool], str]] = {
    annotated_types.Ge: ("ge", ge, "at least"),
    annotated_types.Gt: ("gt", gt, "above"),
    annotated_types.Le: ("le", le, "at most"),
    annotated_types.Lt: ("lt", lt, "below"),
}


def check_places(setting: str, text: str, places: Collection[str]) -> None:
    """Raises: ValueError if the text of a setting has a place, such as {text}, that `places` does not list."""
    unknown = [place for place in PLACE.findall(text) if place not in places]
    if unknown:
        listed = ", ".join(f"{{{place}}}" for place in places)
        raise ValueError(f"{setting} is {text!r}, with the place {{{unknown[0]}}}: it may have {listed}")


def with_places(text: str, values: Mapping[str, str]) -> str:
    """Returns the text of a setting with its places filled."""
    return PLACE.sub(lambda place: values[place[1]], text)


class Checked:
    """Base of the dataclasses of settings, whose fields are checked: `class Pooler(Checked, at="model.pooler")`.

    `at` is the path in the experiment's config; a subclass has that of its base if it names none.
    """

    _path: ClassVar[str]

    def __init_subclass__(cls, at: str | None = None) -> None:
        super().__init_subclass__()
        cls._path = cls._path if at is None else at

    def __post_init__(self) -> None:
        """Checks every field. Raises: Mistake with the setting, its value, the legal values and the default."""
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # of a subclass
            setting = f"{self._path}.{field.name}".lstrip(".")
            check_value(type(self), field.name, getattr(self, field.name), setting)


def check_value(owner: type, name: str, value: object, setting: str) -> None:
    """Checks a value of the field `name` of a dataclass type. Raises: Mistake with the legal values and the default."""
    hint = type_hints(owner)[name]
    accepted = accepts(hint, value)
    if accepted and (not isinstance(value, int | float) or in_float32(value)):
        return
    parts = list(alternatives(hint))
    kinds = {choice for choice in parts if isinstance(choice, type)}
    items = value if isinstance(value, tuple) else (value,)
    if not isinstance(value, tuple):  # a text such as "auto" may replace the tuple; it is not an item
        kinds |= {type(choice) for choice in parts if not isinstance(choice, type)}
    if float in kinds:
        kinds.add(int)
    other_type = {int, float} <= {*parts} or any(type(item) not in kinds for item in items)
    too_large = any(isinstance(item, int) and abs(item) > LARGEST for item in items)
    legal = legal_values(hint, name_types=other_type, name_largest=too_large)
    if accepted:
        legal = "a finite number of float32's range"
    default = owner.__dataclass_fields__[name].default  # type: ignore[attr-defined]
    remedies = list[str]()
    for annotated in (hint, *typing.get_args(hint)):
        remedies += [data for data in getattr(annotated, "__metadata__", ()) if isinstance(data, str)]
    if default is not dataclasses.MISSING:
        remedies.append(f"the default is {default!r}")
    words = [item for item in items if isinstance(item, str)]
    near = suggest(words[0], [choice for choice in parts if isinstance(choice, str)]) if words else ""
    sentence = "; ".join([f"{setting} is {cut(repr(value))}: it must be {legal}", *remedies]) + near
    raise Mistake(sentence, setting=setting)


def in_float32(value: float) -> bool:
    """Returns whether float32 can represent the number, with neither overflow nor underflow."""
    return value == 0 or 1e-38 <= abs(value) <= 3.4e38


def _limits(hint: object) -> list[tuple[Callable[[Any, Any], bool], str, Any]]:
    """Returns comparison, words and limit of every bound in an `Annotated`."""
    limits = []
    for bound in getattr(hint, "__metadata__", ()):
        if type(bound) in LIMITS:
            attribute, compare, words = LIMITS[type(bound)]
            limits.append((compare, words, getattr(bound, attribute)))
    return limits


def accepts(hint: object, value: object, most: float = LARGEST) -> bool:
    """Returns whether a value has the type, the bounds and the choices of an annotation; a class is not compared here.

    most: the largest whole number.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        limits = _limits(hint)
        most = math.inf if any(compare in (le, lt) for compare, *_ in limits) else most
        return accepts(arguments[0], value, most) and all(compare(value, limit) for compare, _, limit in limits)
    if origin in (typing.Union, types.UnionType):
        return any(accepts(argument, value, most) for argument in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and all(accepts(arguments[0], item) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(accepts(arguments[1], item) for item in value.values())
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= most
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return not isinstance(hint, type) or hint not in NAMES_OF_TYPES or isinstance(value, hint)


NAMES_OF_TYPES = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", type(None): "None"}


def legal_values(hint: Any, *, name_types: bool = False, name_largest: bool = False) -> str:
    """Returns the legal values of an annotation, in words.

    name_types: the types of bounded numbers too. name_largest: the upper limit of whole numbers that have none of their own.
    """
    inner = functools.partial(legal_values, name_types=name_types, name_largest=name_largest)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        bounds = _limits(hint)
        limits = [f"{words} {limit}" for _, words, limit in bounds if limit not in (-math.inf, math.inf)]
        if any(limit == math.inf for *_, limit in bounds):
            limits.append("finite")
        if name_largest and arguments[0] is int and not any(compare in (le, lt) for compare, *_ in bounds):
            limits.append(f"at most {LARGEST}")
        named = [legal_values(arguments[0], name_types=name_types)] if name_types or not limits else []
        return ", ".join([*named, " and ".join(limits)] if limits else named)
    if origin in (typing.Union, types.UnionType):
        return ", or ".join(map(inner, arguments))
    if origin is typing.Literal:
        return " or ".join(map(repr, arguments))
    if origin is tuple:
        return f"values that are each {inner(arguments[0])}"
    if origin is dict:
        return f"a dict whose values are each {inner(arguments[1])}"
    if hint is int and name_largest:
        return f"{NAMES_OF_TYPES[int]} and at most {LARGEST}"
    return NAMES_OF_TYPES.get(hint, getattr(hint, "__name__", str(hint)))
