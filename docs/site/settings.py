"""Hook of MkDocs: the page of all settings, made of the dataclasses of the config, their annotations and docstrings."""

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import textwrap
import typing
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flaxformer_lite.config import Config
from flaxformer_lite.config.settings import variants_in
from flaxformer_lite.core.base.annotations import type_hints
from flaxformer_lite.core.base.bounds import legal_values

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

INTRODUCTION = """# Settings

Every setting of an experiment, made from the dataclasses of the package. A config file sets them in Python; on the command line
`train.steps` is `--train.steps 2000`, and `flaxformer-lite train CONFIG --help` lists those of one config with its values. The
*kind* of a value, such as the position scheme, is chosen in the config file: `positions=Rotary(base=500_000)`. The option
`--model.positions rotary` takes its default settings.
"""

WORDS = {"str": "text", "int": "a whole number", "float": "a number"}


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    from mkdocs.structure.files import File

    files.append(File.generated(config, "settings.md", content=settings_page()))
    return files


def settings_page() -> str:
    """Returns the page in Markdown: a section for each part of `Config`, in it one for each dataclass below it."""
    own = [field for field in dataclasses.fields(Config) if not variants_in(type_hints(Config)[field.name])]
    lines = [INTRODUCTION, *table(Config, "", own), ""]
    seen: set[type] = set()
    for field in dataclasses.fields(Config):
        hint = type_hints(Config)[field.name]
        if variants_in(hint):
            lines += [f"## {field.name}", ""]
            if len(variants_in(hint)) > 1:
                lines += [f"One of {legal(hint)}; {default(field)}.", ""]
            lines += sections(hint, field.name, seen)
    return "\n".join(lines)


def sections(hint: Any, path: str, seen: set[type]) -> Iterator[str]:
    """Yields the lines on each dataclass that a setting may be, then on those of its own settings; each dataclass once."""
    for kind, variant in variants_in(hint).items():
        if variant in seen:
            continue
        seen.add(variant)
        if "." in path or kind:
            name = f": {variant.__name__}" if kind else ""
            yield f"### {path}{name} {{ #{variant.__name__} }}\n"
        yield inspect.cleandoc(variant.__doc__ or "") + "\n"
        yield from table(variant, f"{path}.", [field for field in dataclasses.fields(variant) if field.name != "kind"])
        yield ""
        for field in dataclasses.fields(variant):
            yield from sections(type_hints(variant)[field.name], f"{path}.{field.name}", seen)


def table(owner: type, prefix: str, fields: list[dataclasses.Field]) -> Iterator[str]:
    """Yields the lines of a table of settings."""
    if fields:
        yield "| setting, and its default | meaning, and legal values |\n|---|---|"
    for field in fields:
        setting = f"`{prefix}{field.name}`<br>{default(field)}"
        yield f"| {setting} | {meaning(owner, field.name)}<br>*{legal(type_hints(owner)[field.name])}* |"


def legal(hint: Any) -> str:
    """Returns the legal values of a setting; of one that is a dataclass, the names of those that it may be, with links."""
    if variants := variants_in(hint):
        names = [f"[{variant.__name__}](#{variant.__name__})" for variant in variants.values()]
        return ", ".join(names + ["None"] * (type(None) in typing.get_args(first_part(hint))))
    return re.sub(r"\b(str|int|float)\b", lambda found: WORDS[found[0]], legal_values(hint))


def first_part(hint: Any) -> Any:
    """Returns the type in an `Annotated`; any other hint as it is."""
    return typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint


def default(field: dataclasses.Field) -> str:
    """Returns the default of a setting: of a dataclass, only what differs from its own defaults."""
    value = field.default
    if value is dataclasses.MISSING:
        return "required"
    return f"default `{short(value)}`"


def short(value: Any) -> str:
    if not dataclasses.is_dataclass(value):
        return repr(value)
    changed = [
        f"{field.name}={short(getattr(value, field.name))}"
        for field in dataclasses.fields(value)
        if getattr(value, field.name) != field.default
    ]
    return f"{type(value).__name__}({', '.join(changed)})"


def meaning(owner: type, name: str) -> str:
    """Returns the docstring of a setting, in one line. Raises: LookupError if it has none."""
    for base in owner.__mro__:
        if base is not object and name in vars(base).get("__annotations__", ()):
            text = field_docstrings(base).get(name)
            if text is None:
                raise LookupError(f"{base.__module__}.{base.__name__}.{name} has no docstring: say what it sets")
            return re.sub(r"\s+", " ", text)
    raise LookupError(f"{owner.__name__} has no setting {name}")


@functools.cache
def field_docstrings(owner: type) -> dict[str, str]:
    """Returns the string after each annotated name of a class."""
    body = typing.cast(ast.ClassDef, ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]).body
    return {
        statement.target.id: following.value.value
        for statement, following in itertools.pairwise(body)
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
    }
