"""pydantic's errors in the words of a user: setting, value, legal values."""

import difflib
import typing
from collections.abc import Sequence
from typing import Any

from flaxformer_lite.base.bounds import cut, violation
from flaxformer_lite.base.console import suggest
from flaxformer_lite.config.experiment import Config
from flaxformer_lite.config.variants import KINDS, settings_of, variants_in

OUT_OF_BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")


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
