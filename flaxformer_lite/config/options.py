"""Options of the command line: `--train.steps 100` is the setting `train.steps`, `--train.no-x` a setting that is switched off."""

import dataclasses
import difflib
import itertools
import shlex
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flaxformer_lite.base.bounds import cut
from flaxformer_lite.base.console import suggest
from flaxformer_lite.config.differences import flatten
from flaxformer_lite.config.experiment import Config
from flaxformer_lite.config.serialize import as_tree, elsewhere, from_tree
from flaxformer_lite.config.train import BaseHook
from flaxformer_lite.config.variants import variants_in

OTHER_UNITS = {
    "batch_size": "; a batch is counted in tokens: --data.tokens-per-batch 4096 is 32 rows of 128, and every batch has a multiple "
    "of --data.rows-multiple rows",
    "epochs": "; training is counted in steps: --train.steps N, for E epochs E times the batches of an epoch, which the first line "
    "of a training says",
}
"""The end of an option's name in other toolkits, where it counts in another unit, and the end of the message."""


def apply_options(config: Config, words: Sequence[str]) -> Config:
    """Returns the config with the settings that the words of a command line name; of two values the last one counts.

    Raises: ValueError for an option that is no setting of this config, and for a value of another type.
    """
    tree = as_tree(config)
    for option, typed in options_in(words):
        setting = option[2:].replace("-", "_")
        group, _, name = setting.rpartition(".")
        if name.startswith("no_") and type_of(positive := f"{group}.{name[3:]}", config) is bool and not typed:
            setting, typed = positive, ["False"]
        hint = type_of(setting, config)
        if hint is None or setting.endswith(".kind"):
            raise ValueError(unknown_option(option, typed, config))
        if hint == tuple[BaseHook, ...]:
            raise ValueError(
                f"{setting} is no option: set it in the config file, to values of classes of your own (docs/extending.md)"
            )
        *groups, name = setting.split(".")
        owner = tree
        for part in groups:
            owner = owner[part]
        owner[name] = value_of(setting, hint, typed)
    changed: Config = from_tree(tree, Config)
    return changed


def options_in(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields every option with the words of its value: `--x 1 2` or `--x=1`. Raises: ValueError for a word before the first."""
    place = 0
    while place < len(words):
        option, equals, value = words[place].partition("=")
        if not option.startswith("--"):
            raise ValueError(f"{cut(words[place])} belongs to no option: write --SETTING VALUE")
        following = list(itertools.takewhile(lambda word: not word.startswith("--"), words[place + 1 :]))
        place += 1 + (0 if equals else len(following))
        yield option, [value] if equals else following


def value_of(setting: str, hint: Any, words: Sequence[str]) -> Any:
    """Returns the value of the typed words for a setting of this type. Raises: ValueError that says what it must be."""
    if typing.get_origin(hint) is tuple:
        try:
            return parse(hint, words)
        except ValueError:
            raise ValueError(f"{setting} is {cut(' '.join(words))!r}: it must be {in_words(hint)}") from None
    if not words and hint is bool:
        return True
    if not words:
        raise ValueError(f"{as_option(setting)} has no value: add one")
    if len(words) > 1:
        raise ValueError(f"{cut(words[1])} belongs to no option: write --SETTING VALUE")
    try:
        return parse(hint, words)
    except ValueError:
        near = suggest(words[0], choices_of(hint))
        raise ValueError(f"{setting} is {cut(words[0])!r}: it must be {in_words(hint)}{near}") from None


def parse(hint: Any, words: Sequence[str]) -> Any:
    """Returns the value of words for a type hint. Raises: ValueError if they are none of its values."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return [parse(arguments[0], [word]) for word in words]
    (word,) = words
    if origin in (typing.Union, types.UnionType):
        # A text may be any word, so None and the choices come first.
        for member in sorted(arguments, key=lambda member: member is str):
            try:
                return parse(member, words)
            except ValueError:
                continue
        raise ValueError
    if origin is typing.Literal or hint in (bool, type(None)):
        values = arguments if origin is typing.Literal else (True, False) if hint is bool else (None,)
        named = {str(value): value for value in values}
        if word not in named:
            raise ValueError
        return named[word]
    return hint(word)


def unknown_option(option: str, typed: Sequence[str], config: Config) -> str:
    """Returns the message on an option that is no setting, with those that may have been meant."""
    setting = option[2:].replace("-", "_")
    settings = flatten(config)
    if setting.endswith(".kind") and setting in settings:
        owner = setting.removesuffix(".kind")
        return (
            f"{setting} is {settings[setting]} in the config file: a kind is chosen there, as another class for {owner}; `--help` "
            "after CONFIG lists the kinds"
        )
    if setting in settings:
        return f"{setting} is {settings[setting]} in the config file: a group is set there, as a value of its class"
    known = [path for path in settings if not path.endswith(".kind")]
    alike = [path for path in known if path.startswith(setting) or path.rpartition(".")[2] == setting]
    if unit := next((text for name, text in OTHER_UNITS.items() if setting.endswith(name)), ""):
        near = unit
    elif 0 < len(alike := alike or elsewhere(setting, known)) <= 3:
        near = f"; perhaps you meant {' or '.join(map(as_option, alike))}"
        near += meant_value(typed, alike[0], config) if len(alike) == 1 else ""
    else:
        near = suggest(option, map(as_option, known), 2) or "; `--help` after CONFIG lists all"
    return f"there is no option {cut(option)}{near}"


def meant_value(typed: Sequence[str], setting: str, config: Config) -> str:
    """Returns a space and the choice of a setting that is most like a mistyped one; empty if none is."""
    choices = choices_of(type_of(setting, config))
    if not typed or typed[0] in choices:
        return ""
    return "".join(f" {value}" for value in difflib.get_close_matches(typed[0], choices, 1))


def as_option(setting: str) -> str:
    """Returns the option of a setting."""
    return f"--{setting.replace('_', '-')}"


def as_options(settings: Mapping[str, Any]) -> str:
    """Returns the words of a command line that set settings to these values."""
    words = []
    for setting, value in settings.items():
        group, _, name = setting.rpartition(".")
        if isinstance(value, bool):
            words.append(as_option(setting if value else f"{group}.no_{name}"))
        else:
            words += [as_option(setting), *map(str, value if isinstance(value, tuple) else (value,))]
    return shlex.join(words)


def type_of(setting: str, config: Any) -> Any:
    """Returns the type of a setting of this config, without its bounds; None if it has no such setting."""
    name, _, rest = setting.partition(".")
    hints = typing.get_type_hints(type(config), include_extras=True)
    if rest and dataclasses.is_dataclass(getattr(config, name, None)):
        return type_of(rest, getattr(config, name))
    return None if rest or name not in hints or variants_in(hints[name]) else typing.get_type_hints(type(config))[name]


def in_words(hint: Any) -> str:
    """Returns what a value of this type is, for example "a whole number or None"."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(in_words, arguments)))
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is tuple:
        return f"values, separated by spaces, that are each {in_words(arguments[0])}"
    return {int: "a whole number", float: "a number", bool: "True or False", type(None): "None"}.get(hint, "a text")


def choices_of(hint: Any) -> list[str]:
    """Returns the values that a setting of this type may have; empty if they are not a few words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return choices_of(arguments[0])
    if origin in (typing.Union, types.UnionType):
        members = [choices_of(argument) for argument in arguments]
        return [value for member in members for value in member] if all(members) else []
    if origin is typing.Literal:
        return [str(argument) for argument in arguments]
    return ["None"] if hint is type(None) else []
