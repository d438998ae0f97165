"""A config as JSON and back: pydantic checks it, and its errors are put in the words of a user."""

import dataclasses
import difflib
import functools
import json
import math
import typing
from collections.abc import Sequence
from typing import Any

import pydantic
import pydantic_core

from flaxformer_lite.base.bounds import cut, violation
from flaxformer_lite.base.console import suggest
from flaxformer_lite.config.experiment import Config
from flaxformer_lite.config.outside import outside_class, outside_kind
from flaxformer_lite.config.variants import KINDS, TYPES, saved_as, settings_of, variants_in

STRICT = pydantic.ConfigDict(extra="forbid", strict=True)
for _type in TYPES:
    _type.__pydantic_config__ = STRICT  # type: ignore[attr-defined]

OUT_OF_BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
"""pydantic's names of the errors whose message the bounds of the setting have."""

FORMAT = 1
"""The format of `config.json`, which has it as `format`. Releases before it wrote none. It changes when an older release would read
a file wrongly: not with a new setting, which that release refuses by name."""


def to_json(config: Config) -> str:
    """Returns the whole config, every default written out. Raises: ValueError if a value has no form in JSON."""
    return pydantic_core.to_json({"format": FORMAT, **as_tree(config)}, indent=2).decode() + "\n"


def as_tree(value: Any, setting: str = "", hint: Any = Config) -> Any:
    """Returns a setting's value as JSON has it; a variant from outside the package has its class in the place of its kind."""
    if dataclasses.is_dataclass(value):
        hints = typing.get_type_hints(type(value), include_extras=True)
        paths = {field.name: f"{setting}.{field.name}".lstrip(".") for field in dataclasses.fields(value)}
        tree = {name: as_tree(getattr(value, name), path, hints[name]) for name, path in paths.items()}
        return tree if type(value) in TYPES else {**tree, "kind": outside_kind(value, setting, hint)}
    if isinstance(value, tuple):
        return [as_tree(item, f"{setting}[{i}]", item_type(hint)) for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{setting} is {value!r}: it must be finite, as JSON has no such number")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"{setting} is {value!r}: it must be a number, a text, None, a variant or a tuple of these")


def from_json(text: str | bytes, name: str = "config.json") -> Config:
    """Returns the config that `to_json` wrote, in this release or an older one.

    Raises: ValueError naming the setting, its value, and the possible names or values.
    """
    try:
        tree = json.loads(text)
        if not isinstance(tree, dict):
            raise ValueError(f"the file has {cut(repr(tree))}: it must be a JSON object of settings")
        check_format(tree.pop("format", FORMAT))
        config: Config = from_tree(modernize(tree), Config)
        return config
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON: {error}") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def modernize(tree: dict[str, Any]) -> dict[str, Any]:
    """Returns the tree with the names of today: `data.tokenized` chose the tokenizer of BLEU, `decode.at_limit` was cut or end."""
    if isinstance(tree.get("decode"), dict) and "at_limit" in tree["decode"]:
        tree["decode"]["finish_at_limit"] = tree["decode"].pop("at_limit") == "end"
    if isinstance(tree.get("data"), dict) and tree["data"].pop("tokenized", False) is True:
        tree.setdefault("metrics", {})["bleu_tokenizer"] = "none"
    if isinstance(tree.get("data"), dict) and isinstance(tree.get("objective"), dict):
        tree["objective"] = modern_objective(tree["objective"], tree["data"].pop("predictions", None))
    return tree


def modern_objective(tree: dict[str, Any], predictions: str | None) -> dict[str, Any]:
    """Returns an objective without the settings of translation, and `data.predictions`, that are objectives in `tools/research`.

    Raises: ValueError if two of them are set.
    """
    if tree.get("kind") != "seq2seq":
        return tree
    names = ("risk", "consistency", "distillation")
    risk, consistency, distillation = map(tree.get, names)
    objectives = {
        "minimum_risk:MinimumRisk": risk,
        "consistency:Consistency": consistency and {"weight": consistency},
        "distillation:Distillation": distillation and {"weight": distillation, "predictions": predictions},
    }
    used = {f"flaxformer_lite.tools.research.{kind}": settings for kind, settings in objectives.items() if settings}
    if len(used) > 1:
        raise ValueError(
            f"two of objective.{', objective.'.join(names)} are set, but an objective has one: delete the other"
        )
    modern = {name: value for name, value in tree.items() if name not in names}
    for kind, settings in used.items():
        modern |= {"kind": kind, **settings}
    return modern


def check_format(number: Any) -> None:
    """Raises: ValueError for the format of a later release."""
    if type(number) is not int or not 1 <= number <= FORMAT:
        raise ValueError(
            f"format is {number!r}, but this release reads format {FORMAT}: install a newer flaxformer_lite"
        )


@functools.cache
def adapter(hint: Any) -> pydantic.TypeAdapter:
    return pydantic.TypeAdapter(hint, config=None if dataclasses.is_dataclass(hint) else STRICT)


def from_tree(tree: Any, hint: Any, setting: str = "") -> Any:
    """Returns the value of a setting with this type hint.

    pydantic builds it, unless it contains a class from outside the package, which pydantic does not know.
    """
    if not has_outside(tree):
        try:
            return adapter(saved_as(hint)).validate_json(json.dumps(tree))
        except pydantic.ValidationError as error:
            raise ValueError("; ".join(dict.fromkeys(explain(e, setting, hint) for e in error.errors()))) from None
    if isinstance(tree, list):
        return tuple(from_tree(item, item_type(hint), f"{setting}[{i}]") for i, item in enumerate(tree))
    kind = tree.get("kind", "")
    if is_outside(kind):
        owner: Any = outside_class(kind, setting)
        tree = {name: value for name, value in tree.items() if name != "kind"}
    else:
        owner = variants_in(hint)[kind]
    hints, bare = typing.get_type_hints(owner, include_extras=True), typing.get_type_hints(owner)
    values = {}
    for name, value in tree.items():
        path = f"{setting}.{name}".lstrip(".")
        if name not in hints:
            raise ValueError(unknown_setting(path))
        # The bounds of a plain value are left to the owner, which says more about them than pydantic.
        plain = saved_as(hints[name]) is hints[name] and not variants_in(hints[name])
        values[name] = from_tree(value, bare[name] if plain else hints[name], path)
    return owner(**values)


def is_outside(kind: Any) -> bool:
    return isinstance(kind, str) and ":" in kind


def has_outside(tree: Any) -> bool:
    """Returns whether a variant from outside the package is in a JSON tree."""
    if isinstance(tree, dict):
        return is_outside(tree.get("kind")) or any(map(has_outside, tree.values()))
    return isinstance(tree, list) and any(map(has_outside, tree))


def item_type(hint: Any) -> Any:
    """Returns the type hint of the items of a tuple; any other hint as it is."""
    if typing.get_origin(hint) is typing.Annotated:
        return item_type(typing.get_args(hint)[0])
    return typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint


# Messages -------------------------------------------------------------------------------------------------------------


def explain(error: Any, parent: str, hint: Any) -> str:
    """Returns one of pydantic's errors in one line; `hint` is the type of the setting `parent` that was checked."""
    names = [str(part) for part in error["loc"] if part not in KINDS]
    setting, kind = ".".join([parent] * bool(parent) + names), error["type"]
    if kind == "unexpected_keyword_argument":
        return unknown_setting(setting)
    if kind == "value_error":
        return str(error["ctx"]["error"])
    if kind == "missing":
        return f"there is no {setting}: it has no default, set it"
    if kind == "union_tag_invalid":
        tag, known = error["ctx"]["tag"], error["ctx"]["expected_tags"].replace("'", "").split(", ")
        return (
            f"{setting}.kind is {cut(repr(tag))}: it must be one of {', '.join(map(repr, known))}{suggest(tag, known)}"
        )
    if kind == "union_tag_not_found":
        kinds = ", ".join(map(repr, variants_of(error, hint)))
        return f"{setting} is {cut(repr(error['input']))}: it must have a kind, one of {kinds}"
    path, owner, rest = field_at(error["loc"], hint)
    if path and (kind in OUT_OF_BOUNDS or any(isinstance(part, str) for part in rest)):
        value = (error["input"],) if rest and isinstance(rest[0], int) else error["input"]
        if message := violation(owner, path[-1], value, ".".join([parent] * bool(parent) + path)):
            return message
    if path:
        indices = [str(part) for part in rest if isinstance(part, int)]  # the other parts name members of a union
        setting = ".".join([parent] * bool(parent) + path + indices)
    return f"{setting} is {cut(repr(error['input']))}: {error['msg']}" if setting else f"{error['msg']}"


def unknown_setting(setting: str) -> str:
    """Returns the message on a setting that no variant has."""
    alike = elsewhere(setting, list(dict.fromkeys(settings_of(Config))))
    if 0 < len(alike) <= 3:
        return f"there is no setting {cut(setting)}; perhaps you meant {' or '.join(alike)}"
    known = [path for path in settings_of(Config) if path.count(".") == setting.count(".")]
    return f"there is no setting {cut(setting)}" + (
        suggest(setting, known, 3) or f"; the settings there are {', '.join(known)}"
    )


def variants_of(error: Any, hint: Any) -> list[str]:
    """Returns the kinds that the field of an error may have."""
    path, owner, _ = field_at(error["loc"], hint)
    return list(variants_in(typing.get_type_hints(owner, include_extras=True)[path[-1]] if path else hint))


def field_at(location: tuple[str | int, ...], hint: Any) -> tuple[list[str], type, list[str | int]]:
    """Follows pydantic's path from a value of type `hint` to a field.

    Returns the names on the way, the dataclass type that has the field, and the end of the path: an index in a tuple, or the
    member of a union.
    """
    names: list[str] = []
    variants, rest = variants_in(hint), list(location)
    owner: type = next(iter(variants.values()), object)
    while rest and (rest[0] in variants or len(variants) == 1):
        owner = variants[str(rest.pop(0))] if rest[0] in variants else next(iter(variants.values()))
        hints = typing.get_type_hints(owner, include_extras=True)
        if not rest or rest[0] not in hints:
            break
        names.append(str(rest.pop(0)))
        variants = variants_in(hints[names[-1]])
    return names, owner, rest


def elsewhere(setting: str, known: Sequence[str]) -> list[str]:
    """Returns settings of other groups with a name like this one's, unless its own group has such a name."""
    group, _, name = setting.rpartition(".")
    in_group = {path.rpartition(".")[2] for path in known if group and path.rpartition(".")[0] == group}
    if difflib.get_close_matches(name, in_group, 1):
        return []
    names = difflib.get_close_matches(name, {path.rpartition(".")[2] for path in known}, 3, 0.7)
    return [path for path in known if path.rpartition(".")[2] in names]
