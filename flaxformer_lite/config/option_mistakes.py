"""tyro's complaints about options, in the words of a user: setting, value, legal values, remedy."""

import dataclasses
import difflib
import itertools
import re
import shlex
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from flaxformer_lite.base.bounds import cut
from flaxformer_lite.base.console import suggest
from flaxformer_lite.config.differences import flatten
from flaxformer_lite.config.experiment import Config
from flaxformer_lite.config.variants import variants_in

OTHER_UNITS = {
    "batch_size": "; a batch is counted in tokens: --data.tokens-per-batch 4096 is 32 rows of 128, and every batch has a multiple "
    "of --data.rows-multiple rows",
    "epochs": "; training is counted in steps: --train.steps N, for E epochs E times the batches of an epoch, which the first line "
    "of a training says",
}
"""The end of an option's name in other toolkits, where it counts in another unit, and the end of the message."""


def explain_options(box: str, overrides: Sequence[str], config: Config) -> str:
    """Returns the first complaint of tyro's box about options for `config`, in one line."""
    complaint = first_paragraph(box)
    if complaint.startswith("Unrecognized options: "):
        return unknown_options(complaint.partition(": ")[2].split(", "), config)
    if found := re.search(r"--[\w.-]+", complaint):
        option = found[0].rstrip(".:'")
        setting, typed = option[2:].replace("-", "_"), words_of(option, overrides)
        if complaint.startswith("Missing value"):
            return f"{option} has no value: add one"
        if complaint.startswith("invalid choice"):
            return wrong_choice(setting, complaint)
        if complaint.startswith("Error parsing") and (hint := type_of(setting, config)) is not None:
            return f"{setting} is {cut(' '.join(typed))!r}: it must be {in_words(hint)}"
    return re.sub(r"^Error parsing (?!-)\S+: ", "", complaint)


def first_paragraph(box: str) -> str:
    """Returns the first paragraph of tyro's box: the first row is a title, rules of "─" or "-" separate paragraphs."""
    rows = re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines()[1:]
    groups = itertools.groupby(rows, lambda row: set(row) <= set(" │╭╮╰╯─-"))
    paragraphs = [" ".join(row.strip(" │") for row in rows) for is_rule, rows in groups if not is_rule]
    return paragraphs[0] if paragraphs else " ".join(box.split())


def unknown_options(words: Sequence[str], config: Config) -> str:
    """Returns the message on words that are no options, the first of them with those that may have been meant."""
    option = next((word.partition("=")[0] for word in words if word.startswith("--")), None)
    if option is None:
        return f"{cut(words[0])} belongs to no option: write --SETTING VALUE"
    setting = option[2:].replace("-", "_")
    settings = flatten(config)
    if setting.endswith(".kind") and setting in settings:
        owner = setting.removesuffix(".kind")
        return (
            f"{setting} is {settings[setting]} in the config file: a kind is chosen there, as another class for {owner}; `--help` "
            "after CONFIG lists the kinds"
        )
    known = [path for path in settings if not path.endswith(".kind")]
    alike = [path for path in known if path.startswith(setting) or path.rpartition(".")[2] == setting]
    if unit := next((text for name, text in OTHER_UNITS.items() if setting.endswith(name)), ""):
        near = unit
    elif 0 < len(alike := alike or elsewhere(setting, known)) <= 3:
        near = f"; perhaps you meant {' or '.join(map(as_option, alike))}"
        near += meant_value(words_of(option, words), alike[0], config) if len(alike) == 1 else ""
    else:
        near = suggest(option, map(as_option, known), 2) or "; `--help` after CONFIG lists all"
    return f"there is no option {cut(option)}{near}"


def elsewhere(setting: str, known: Sequence[str]) -> list[str]:
    """Returns settings of other groups with a name like this one's, unless its own group has such a name."""
    group, _, name = setting.rpartition(".")
    in_group = {path.rpartition(".")[2] for path in known if group and path.rpartition(".")[0] == group}
    if difflib.get_close_matches(name, in_group, 1):
        return []
    names = difflib.get_close_matches(name, {path.rpartition(".")[2] for path in known}, 3, 0.7)
    return [path for path in known if path.rpartition(".")[2] in names]


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


def wrong_choice(setting: str, complaint: str) -> str:
    """Returns the message on a value that is none of the choices of a setting."""
    value, *choices = re.findall(r"'([^']*)'", complaint.replace(f"'{as_option(setting)}'", ""))
    return f"{setting} is {cut(value)!r}: it must be one of {', '.join(choices)}{suggest(value, choices)}"


def words_of(option: str, overrides: Sequence[str]) -> list[str]:
    """Returns the words that were typed for an option."""
    for place, word in enumerate(overrides):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == option:
            following = itertools.takewhile(lambda word: not word.startswith("--"), overrides[place + 1 :])
            return [value] if equals else list(following)
    return []


def type_of(setting: str, config: Any) -> Any:
    """Returns the annotation of a setting of this config; None if it has no such setting."""
    name, _, rest = setting.partition(".")
    hints = typing.get_type_hints(type(config), include_extras=True)
    if rest and dataclasses.is_dataclass(getattr(config, name, None)):
        return type_of(rest, getattr(config, name))
    return None if rest or name not in hints or variants_in(hints[name]) else hints[name]


def in_words(hint: Any) -> str:
    """Returns what a value of this type is, for example "a whole number or None"."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return in_words(arguments[0])
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
    if origin in (Annotated, tuple):
        return choices_of(arguments[0])
    if origin in (typing.Union, types.UnionType):
        members = [choices_of(argument) for argument in arguments]
        return [value for member in members for value in member] if all(members) else []
    if origin is typing.Literal:
        return [str(argument) for argument in arguments]
    return ["None"] if hint is type(None) else []
