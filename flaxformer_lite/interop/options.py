"""The options in another system's config file, read one by one, so that none is skipped in silence.

A reader asks for the options it knows. At the end `finish` refuses every option that nobody asked for. "Options" always are those
of the other system; "settings" are ours.
"""

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from flaxformer_lite.base.bounds import cut

T = TypeVar("T")


class Options:
    """The options of one JSON object. A getter's `default` stands for an option that is absent or null.

    A wrong type or value is a ValueError that names the option, its value and the values allowed.
    """

    def __init__(self, values: Mapping[str, Any], where: str = "config.json: ") -> None:
        self._values = dict(values)
        self._where = where
        self._asked: set[str] = set()
        self._groups: dict[str, Options] = {}

    def has(self, name: str) -> bool:
        """Returns whether the option is present and not null."""
        return self._values.get(name) is not None

    def raw(self, name: str, absent: Any = None) -> Any:
        """Returns the value whatever it is, and `absent` where the option is missing."""
        self._asked.add(name)
        return self._values.get(name, absent)

    def integer(self, name: str, default: int | None = None) -> int:
        return int(self._value(name, (int,), default))

    def number(self, name: str, default: float | None = None) -> float:
        value = self._value(name, (int, float), default)
        if abs(value) > sys.float_info.max:  # a whole number may have any size
            raise self.wrong(name, "it should be a finite number")
        return float(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        return bool(self._value(name, (bool,), default))

    def text(self, name: str, default: str | None = None, among: Collection[str] = ()) -> str:
        """Returns a string, one of `among` unless that is empty."""
        value = str(self._value(name, (str,), default))
        if among and value not in among:
            raise self.wrong(name, f"it should be one of {', '.join(among)}")
        return value

    def one_of(self, name: str, among: Sequence[T], default: T) -> T:
        """Returns one of the values `among`, which may be of several types."""
        value: T | None = self.raw(name)
        value = default if value is None else value
        if not any(equal(value, known) for known in among):
            raise self.wrong(name, f"it should be {' or '.join(map(json.dumps, among))}")
        return value

    def optional_integer(self, name: str, absent: int | None = None) -> int | None:
        """Returns an integer, None for null, and `absent` where the option is missing."""
        self._asked.add(name)
        return self.integer(name) if self.has(name) else None if name in self._values else absent

    def optional_number(self, name: str, absent: float | None = None) -> float | None:
        """Returns a number, None for null, and `absent` where the option is missing."""
        self._asked.add(name)
        return self.number(name) if self.has(name) else None if name in self._values else absent

    def items(self, name: str) -> list[Any]:
        """Returns a list, empty where the option is absent or null."""
        return list(self._value(name, (list, tuple), []))

    def mapping(self, name: str) -> dict[str, Any]:
        """Returns an object whatever its names are, empty where the option is absent or null."""
        return dict(self._value(name, (dict,), {}))

    def group(self, name: str) -> "Options":
        """Returns the options of a nested object; none where the object is absent or null."""
        if name not in self._groups:
            self._groups[name] = Options(self._value(name, (dict,), {}), f"{self._where}{name}.")
        return self._groups[name]

    def only(self, name: str, *allowed: Any) -> None:
        """Refuses the option where it has another value than these. Null is always allowed."""
        self._asked.add(name)
        if self.has(name) and not any(equal(self._values[name], value) for value in allowed):
            values = " or ".join(json.dumps(value) for value in allowed)
            raise self.wrong(name, f"only {values} is implemented" if values else "that is not implemented")

    def ignore(self, *names: str) -> None:
        """Accepts options with any value: they change nothing in this family."""
        self._asked.update(names)

    def finish(self, harmless: Collection[str] = (), only: Mapping[str, Any] | None = None) -> None:
        """Refuses the options that nobody asked for and that are not harmless.

        Args:
            harmless: Names of options that may have any value.
            only: Options that may have one value alone.

        Raises: ValueError that names the option and its value.
        """
        for name, value in (only or {}).items():
            if name not in self._asked:
                self.only(name, value)
        for group in self._groups.values():
            group.finish()
        for name in sorted(self._values.keys() - self._asked - set(harmless)):
            if self.has(name):
                raise self.wrong(name, "this option is not implemented here, and the model may differ by it")

    def wrong(self, name: str, rule: str) -> ValueError:
        """Returns the error to raise for an option: its name, its value and the rule."""
        return ValueError(f"{self._where}{cut(name)} is {cut(json.dumps(self._values.get(name)))}: {rule}")

    def _value(self, name: str, kinds: tuple[type, ...], default: Any) -> Any:
        self._asked.add(name)
        if not self.has(name):
            if default is None:
                raise ValueError(f"{self._where}{cut(name)} is missing: this system needs it")
            return default
        value = self._values[name]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
            names |= {list: "a list", dict: "an object"}
            raise self.wrong(name, f"it should be {names[[kind for kind in kinds if kind in names][-1]]}")
        return value


def equal(a: Any, b: Any) -> bool:
    """Returns whether two JSON values are the same; true is not 1."""
    return bool(a == b and isinstance(a, bool) == isinstance(b, bool))
