"""Options of the command line: `--train.steps 100` is the setting `train.steps`, `--train.no-x` a setting that is switched off."""

import itertools
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from flaxformer_lite.config.differences import flatten
from flaxformer_lite.config.experiment import Config
from flaxformer_lite.config.other_names import offer
from flaxformer_lite.config.serialize import as_tree, from_tree
from flaxformer_lite.config.settings import item_type, required_settings, variants_in
from flaxformer_lite.config.train import TrainConfig
from flaxformer_lite.core.base.annotations import type_hints
from flaxformer_lite.core.base.bounds import accepts, cut
from flaxformer_lite.files.data import DataConfig

INSTEAD = {
    "data.rows": ("data.tokens_per_batch", "data.rows_multiple"),
    "data.tokens_per_batch": ("data.rows",),
    "data.rows_multiple": ("data.rows",),
    "train.epochs": ("train.steps",),
    "train.steps": ("train.epochs",),
}
"""For each setting, the settings that it replaces."""


def apply_options(config: Config, words: Sequence[str]) -> Config:
    """Returns the config with the settings that the words of a command line name; of two values the last one counts.

    The name of a variant, as in `--optimizer.algorithm adafactor`, stands for its default settings.

    Raises: ValueError for an option that is not a setting of this config, and for an illegal value.
    """
    # A variant counts from its option on, and all settings are checked together at the end.
    if any(word.startswith(("--data.", "--objective.")) for word in words):
        config = replace(config, resolved=None)  # other data may have other facts
    tree = as_tree(config)
    seen = list[str]()
    chosen = dict[str, Any]()
    settings = flatten(replace(config, resolved=None))
    del settings["resolved"]
    for option, typed in options_in(words):
        setting = option[2:].replace("-", "_")
        switched_off = setting.replace(".no_", ".")
        if not typed and setting not in settings and isinstance(settings.get(switched_off), bool):
            setting, typed = switched_off, ["False"]
        if not {setting, f"{setting}.kind"} & {*settings} or setting.endswith(".kind"):
            raise ValueError(unknown_option(option, settings))
        *groups, name = setting.split(".")
        node = tree
        owner = cast(Any, config)
        for group, path in zip(groups, itertools.accumulate(groups, "{}.{}".format), strict=True):
            node, owner = node[group], chosen.get(path) or getattr(owner, group)
        hint = type_hints(type(owner))[name]
        variants = variants_in(hint)
        if item_type(hint) is None and variants:
            names = [kind for kind, variant in variants.items() if kind and not required_settings(variant)]
            if not names:
                raise ValueError(unknown_option(option, settings))
            if [*typed] not in [[kind] for kind in names]:
                raise ValueError(
                    f"{setting} is {cut(' '.join(typed))!r}: as an option it must be one of {', '.join(names)}, which stands for "
                    "its default settings; set others in the config file"
                )
            below = [before for before in seen if before.startswith(f"{setting}.")]
            if below:
                raise ValueError(
                    f"{option} {typed[0]} stands for its default settings: give it before {as_option(below[0])}"
                )
            chosen[setting] = variants[typed[0]]()
            node[name] = as_tree(chosen[setting], setting, hint)
            settings = {path: value for path, value in settings.items() if not f"{path}.".startswith(f"{setting}.")}
            settings |= flatten(chosen[setting], setting)
            continue
        if not typed and hint is not bool and item_type(hint) is None:
            raise ValueError(f"{option} has no value: add one")
        seen.append(setting)
        node[name] = value_of(hint, typed or (["True"] if hint is bool else []))
    take_typed(tree, seen)
    return from_tree(tree, Config)


def take_typed(tree: dict[str, Any], seen: Sequence[str]) -> None:
    """Sets each setting that a typed one takes the place of to its default. Raises: ValueError if both were typed."""

    def value(setting: str) -> Any:
        group, _, name = setting.partition(".")
        return tree[group][name]

    for setting in [setting for setting in INSTEAD if setting in seen and value(setting) is not None]:
        for other in INSTEAD[setting]:
            if other in seen and value(other) is not None:
                raise ValueError(
                    f"{as_option(setting)} {value(setting)} and {as_option(other)} {value(other)}: one takes the place of the "
                    "other; leave one out"
                )
            group, _, name = other.partition(".")
            tree[group][name] = getattr({"data": DataConfig, "train": TrainConfig}[group], name)


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


def value_of(hint: object, words: Sequence[str]) -> Any:
    """Returns typed words as a value: True, False, None or a number where the setting takes one, else as a text."""
    literals = tuple(map(literal, words))
    for values in (literals, tuple(words)):
        for value in (*values[: len(values) == 1], values):
            if accepts(hint, value):
                return value
    return literals[0] if len(literals) == 1 and item_type(hint) is None else literals


def literal(word: str) -> object:
    """Returns a word as the Python value that it spells, an object of JSON as a dict; any other word as it is."""
    named = {"True": True, "False": False, "None": None}
    if word in named:
        return named[word]
    readers: list[Callable[[str], Any]] = [json.loads] if word.startswith("{") else [int, float]
    for read in readers:
        try:
            return read(word)
        except ValueError:
            continue
    return word


def unknown_option(option: str, settings: Mapping[str, object]) -> str:
    """Returns the message on an option that is not a setting, with the options that may have been meant."""
    setting = option[2:].replace("-", "_")
    if setting in settings or f"{setting}.kind" in settings:
        return f"{setting} is no option: it is chosen in the config file, as a value of its class; --help after CONFIG lists them"
    known = [path for path in settings if not path.endswith(".kind")]
    near = offer(setting, known, as_option) or "`train CONFIG --help` lists all"
    return f"there is no option {cut(option)}; {near}"


def as_option(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


def as_options(settings: Mapping[str, object]) -> str:
    """Returns the words of a command line that set settings to these values."""
    words = []
    for setting, value in settings.items():
        group, _, name = setting.rpartition(".")
        if isinstance(value, bool):
            words.append(as_option(setting if value else f"{group}.no_{name}".lstrip(".")))
        elif isinstance(value, tuple | list):
            words += [as_option(setting), *map(str, value)]
        else:
            words += [as_option(setting), json.dumps(value) if isinstance(value, dict) else str(value)]
    return shlex.join(words)
