"""Two-way tables of options: another system's options, our settings, and both directions from one list.

Most entries are one line, `option("hidden_size", "d_model")`: the name of an option, and the path of the setting that it decides.
A template, which is a config of ours, holds the constants of the family and the values of options that a file leaves out:

    options  →  `read_table`:  each entry sets settings of a draft of the template  →  our config
    our config  →  `write_table`:  each entry returns options  →  options

"Options" always are those of the other system; "settings" are ours. At the end `Options.finish` refuses every option that no entry
asked for, so that none is skipped in silence; of a system whose options are listed, it returns those that are not in the list.
"""

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from flaxformer_lite.core.base.bounds import cut

T = TypeVar("T")
UNKNOWN = "this option is not implemented here, and the model may differ by it"


class Options:
    """The options of one JSON object. A getter's `default` stands for an option that is absent or null.

    A wrong type or value is a ValueError that names the option, its value and the values allowed.
    """

    def __init__(self, values: Mapping[str, object], where: str = "config.json: ") -> None:
        self._values = dict(values)
        self._where = where
        self._asked: set[str] = set()
        self.read: set[str] = set()
        """The options whose values were read, and not only compared or ignored."""
        self._groups: dict[str, Options] = {}

    def has(self, name: str) -> bool:
        """Returns whether the option is present and not null."""
        return self._values.get(name) is not None

    def raw(self, name: str, absent: object = None) -> Any:
        """Returns the value whatever it is, and `absent` where the option is missing."""
        self._asked.add(name)
        self.read.add(name)
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
        return self.integer(name) if self.has(name) else self.raw(name, absent)

    def optional_number(self, name: str, absent: float | None = None) -> float | None:
        """Returns a number, None for null, and `absent` where the option is missing."""
        return self.number(name) if self.has(name) else self.raw(name, absent)

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

    def only(self, name: str, *allowed: object) -> None:
        """Refuses the option where it has another value than these. Null is always allowed."""
        self._asked.add(name)
        if self.has(name) and not any(equal(self._values[name], value) for value in allowed):
            values = " or ".join(json.dumps(value) for value in allowed)
            raise self.wrong(name, f"only {values} is implemented" if values else "that is not implemented")

    def ignore(self, *names: str) -> None:
        """Accepts options with any value: they change nothing in this family."""
        self._asked.update(names)

    def finish(
        self,
        harmless: Collection[str] = (),
        only: Mapping[str, object] | None = None,
        rules: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Refuses the options that no reader asked for, but for `harmless` ones and those with the value that `only` has for them.

        `rules` are the options to refuse, with what the error says of each; None: all. Returns the names of the others.

        Raises: ValueError that names the option and its value.
        """
        for name, value in (only or {}).items():
            if name not in self._asked:
                self.only(name, value)
        left = list[str]()
        for name, group in self._groups.items():
            left += [f"{name}.{inner}" for inner in group.finish(rules=rules)]
        for name in sorted(self._values.keys() - self._asked - set(harmless)):
            if not self.has(name):
                continue
            if rules is None or name in rules:
                raise self.wrong(name, UNKNOWN if rules is None else rules[name])
            left.append(cut(name))
        return left

    def wrong(self, name: str, rule: str) -> ValueError:
        """Returns the error to raise for an option: its name, its value and the rule."""
        return ValueError(f"{self._where}{cut(name)} is {cut(json.dumps(self._values.get(name)))}: {rule}")

    def _value(self, name: str, kinds: tuple[type, ...], default: object) -> Any:
        self._asked.add(name)
        self.read.add(name)
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


def equal(a: object, b: object) -> bool:
    """Returns whether two JSON values are the same; true is not 1."""
    return bool(a == b and isinstance(a, bool) == isinstance(b, bool))


# The tables ------------------------------------------------------------------------------------------------------------


class Draft(dict[str, Any]):
    """The settings that have been read so far, by path, parts joined by dots; those of the template for all others."""

    def __init__(self, template: object) -> None:
        self._template = template

    def __missing__(self, path: str) -> Any:
        return lookup(self._template, path)

    set = dict.__setitem__  # as a function, for entries that are a lambda

    def build(self) -> Any:
        """Returns the config. A setting of a part that is None is dropped."""
        return replaced(self._template, self)


class Entry(NamedTuple):
    """Some options and the settings that they decide, both ways."""

    read: Callable[[Options, Draft], object] = lambda options, draft: None
    """Sets settings of the draft from the options. Entries are read in the order of the table."""
    write: Callable[[Any], dict[str, Any]] = lambda config: {}
    """Returns the options for a config of ours."""


Table = tuple[Entry, ...]


class Kind(NamedTuple):
    """A type of option: how a value is read, and how ours becomes theirs.

    `read` gets the options, the name, and the value that an absent option stands for (None: it must be present).
    """

    read: Callable[[Options, str, Any], Any]
    write: Callable[[Any], Any] = lambda value: value


OPTIONAL_INTEGER, OPTIONAL_NUMBER = Kind(Options.optional_integer), Kind(Options.optional_number)
KINDS: dict[type, Kind] = {
    bool: Kind(Options.flag),
    int: Kind(Options.integer),
    float: Kind(Options.number),
    str: Kind(Options.text),
}
"""The kind of an option, by the type of the template's value."""


def choice(ours: Mapping[str, str], theirs: Mapping[str, str] | None = None) -> Kind:
    """Returns the kind of an option with a fixed set of words: ours by theirs, and theirs by ours, by default the table backwards.

    A word of ours without one of theirs is written as it is.
    """
    back = {value: name for name, value in ours.items()} if theirs is None else theirs
    return Kind(
        lambda options, name, default: ours[options.text(name, default, ours)], lambda ours: back.get(ours, ours)
    )


def option(
    name: str, *paths: str, kind: Kind | None = None, source: str | None = None, required: bool = False
) -> Entry:
    """Returns the entry of one option that decides the settings at `paths`.

    Absent, it stands for the template's value, unless it is `required`. `source` is the setting or property that is written back,
    by default the first of `paths`. A config without it, which has another variant, is written without the option; `check_same`
    then names the variant.
    """

    def read(options: Options, draft: Draft) -> None:
        usual = draft[paths[0]]
        known = kind or KINDS[type(usual)]
        value = known.read(options, name, None if required else known.write(usual))
        for path in paths:
            draft[path] = value

    def write(config: object) -> dict[str, Any]:
        try:
            value = lookup(config, source or paths[0])
        except AttributeError:
            return {}
        return {name: value if kind is None else kind.write(value)}

    return Entry(read, write)


required = functools.partial(option, required=True)
"""Returns the entry of an option that must be present."""


def only(name: str, *allowed: object) -> Entry:
    """Returns the entry of an option that may have no other value than these."""
    return Entry(read=lambda options, draft: options.only(name, *allowed))


def ignored(*names: str) -> Entry:
    """Returns the entry of options that change nothing."""
    return Entry(read=lambda options, draft: options.ignore(*names))


def constant(name: str, value: object) -> Entry:
    """Returns the entry of an option that is written with this value and never read."""
    return Entry(lambda options, draft: options.ignore(name), lambda config: {name: value})


def read_table(table: Iterable[Entry], options: Options, template: object) -> Draft:
    """Returns the draft of our config for these options."""
    draft = Draft(template)
    for entry in table:
        entry.read(options, draft)
    return draft


def write_table(table: Iterable[Entry], config: object) -> dict[str, Any]:
    """Returns the options for a config of ours. Raises: ValueError for a setting that the other system cannot express."""
    options = dict[str, Any]()
    for entry in table:
        options |= entry.write(config)
    return options


def lookup(config: object, path: str) -> object:
    """Returns the setting at a path; None within a part that is None."""
    for name in path.split("."):
        config = None if config is None else getattr(config, name)
    return config


def replaced(config: Any, changes: Mapping[str, object]) -> Any:
    """Returns the config with other values at some paths, all set at once. A setting of a part that is None is dropped."""
    settings: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():
        first, _, rest = path.partition(".")
        if rest:
            inner.setdefault(first, {})[rest] = value
        else:
            settings[first] = value
    for first, deeper in inner.items():
        value_before = settings.get(first, getattr(config, first))
        if value_before is not None:
            settings[first] = replaced(value_before, deeper)
    return dataclasses.replace(config, **settings)
