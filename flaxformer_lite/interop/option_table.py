"""Two-way tables: another system's options, our settings, and both directions from one list.

Most entries are one line, `option("hidden_size", "d_model")`: the name of an option, and the path of the setting that it decides.
A template, which is a config of ours, holds the constants of the family and the values of options that a file leaves out:

    options  →  `read_table`:  each entry sets settings of a draft of the template  →  our config
    our config  →  `write_table`:  each entry returns options  →  options
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from flaxformer_lite.interop.options import Options

T = TypeVar("T")


class Draft:
    """A template with the settings that have been read so far, by path; parts of a path are joined by dots."""

    def __init__(self, template: Any) -> None:
        self._template = template
        self._changes: dict[str, Any] = {}

    def __getitem__(self, path: str) -> Any:
        return self._changes[path] if path in self._changes else lookup(self._template, path)

    def __setitem__(self, path: str, value: Any) -> None:
        self._changes[path] = value

    set = __setitem__  # as a function, for entries that are a lambda

    def build(self) -> Any:
        """Returns the config. A setting of a part that is None is dropped."""
        return replaced(self._template, self._changes)


class Entry(NamedTuple):
    """Some options and the settings that they decide, both ways."""

    read: Callable[[Options, Draft], None] = lambda options, draft: None
    """Sets settings of the draft from the options. Entries are read in the order of the table."""
    write: Callable[[Any], dict[str, Any]] = lambda config: {}
    """Returns the options for a config of ours."""


Table = tuple[Entry, ...]


class Kind(NamedTuple):
    """A type of option: how a value is read, and how ours becomes theirs."""

    read: Callable[[Options, str, Any], Any]
    """Gets the options, the name, and the value that an absent option stands for (None: it must be present)."""
    write: Callable[[Any], Any] = lambda value: value


INTEGER, NUMBER, FLAG, TEXT = Kind(Options.integer), Kind(Options.number), Kind(Options.flag), Kind(Options.text)
OPTIONAL_INTEGER, OPTIONAL_NUMBER = Kind(Options.optional_integer), Kind(Options.optional_number)
KINDS = {bool: FLAG, int: INTEGER, float: NUMBER, str: TEXT}
"""The kind of an option, by the type of the template's value."""


def choice(ours: Mapping[str, str], theirs: Mapping[str, str] | None = None) -> Kind:
    """Returns the kind of an option with a fixed set of words.

    Args:
        ours: Our word, by theirs.
        theirs: Their word, by ours; by default the same table backwards. A word without one is written as it is.
    """
    back = {value: name for name, value in ours.items()} if theirs is None else theirs
    return Kind(
        lambda options, name, default: ours[options.text(name, default, ours)], lambda ours: back.get(ours, ours)
    )


def option(
    name: str, *paths: str, kind: Kind | None = None, source: str | None = None, required: bool = False
) -> Entry:
    """Returns the entry of one option that decides the settings at `paths`.

    Args:
        name: The option. Absent, it stands for the template's value, unless it is required.
        paths: The settings that are set.
        kind: How the value is read and written; by default that of the template's value.
        source: The setting or property that is written back, where it is not the first of `paths`. A config without it, which has
            another variant, is written without the option; `check_same` then names the variant.
        required: Whether the option must be present.
    """

    def read(options: Options, draft: Draft) -> None:
        usual = draft[paths[0]]
        found = kind or KINDS[type(usual)]
        value = found.read(options, name, None if required else found.write(usual))
        for path in paths:
            draft[path] = value

    def write(config: Any) -> dict[str, Any]:
        try:
            value = lookup(config, source or paths[0])
        except AttributeError:
            return {}
        return {name: value if kind is None else kind.write(value)}

    return Entry(read, write)


def required(name: str, *paths: str, kind: Kind | None = None, source: str | None = None) -> Entry:
    """Returns the entry of an option that must be present."""
    return option(name, *paths, kind=kind, source=source, required=True)


def only(name: str, *allowed: Any) -> Entry:
    """Returns the entry of an option that may have no other value than these."""
    return Entry(read=lambda options, draft: options.only(name, *allowed))


def ignored(*names: str) -> Entry:
    """Returns the entry of options that change nothing."""
    return Entry(read=lambda options, draft: options.ignore(*names))


def constant(name: str, value: Any) -> Entry:
    """Returns the entry of an option that is written with this value and never read."""
    return Entry(lambda options, draft: options.ignore(name), lambda config: {name: value})


def read_table(table: Iterable[Entry], options: Options, template: T) -> Draft:
    """Returns the draft of our config for these options."""
    draft = Draft(template)
    for entry in table:
        entry.read(options, draft)
    return draft


def write_table(table: Iterable[Entry], config: Any) -> dict[str, Any]:
    """Returns the options for a config of ours. Raises: ValueError for a setting that the other system cannot express."""
    return {name: value for entry in table for name, value in entry.write(config).items()}


def lookup(config: Any, path: str) -> Any:
    """Returns the setting at a path; None within a part that is None."""
    for name in path.split("."):
        config = None if config is None else getattr(config, name)
    return config


def replaced(config: Any, changes: Mapping[str, Any]) -> Any:
    """Returns the config with other values at some paths, all set at once. A setting of a part that is None is dropped."""
    own: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():
        first, _, rest = path.partition(".")
        if rest:
            inner.setdefault(first, {})[rest] = value
        else:
            own[first] = value
    for first, deeper in inner.items():
        part = own.get(first, getattr(config, first))
        if part is not None:
            own[first] = replaced(part, deeper)
    return dataclasses.replace(config, **own)
