"""Variants that a user defines outside the package: their names in config.json, and the files and modules that have them.

config.json names such a class `module:Class`. Reading it imports nothing, because a run folder may be from a stranger: the user
imports the module, loads the config file by `load_config`, or types `--import`. Only modules of `flaxformer_lite.tools` are
imported here, once a config.json names one: the core does not import them otherwise.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import re
import shlex
import sys
import traceback
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from flaxformer_lite.config.other_names import offer
from flaxformer_lite.config.settings import MARKS, TYPES, variants_in, walk

IMPORTED: dict[str, tuple[str, ModuleType]] = {}
"""The name as typed, and the module, of every config file and `--import`, by resolved path or module name; a later import of the
same file replaces the earlier one."""

TOOLS = "flaxformer_lite.tools."


def import_python(file: Path) -> ModuleType:
    """Returns the module that a Python file makes, imported anew.

    Its name has a checksum of the file, so that two files `config.py` of different folders are two modules.

    Raises: ValueError if it is not a Python file, or for a mistake in it, with the line.
    """
    if not file.is_file():
        raise ValueError(f"there is no file {file}: name a .py file that exists")
    checksum = zlib.crc32(file.read_bytes())
    spec = importlib.util.spec_from_file_location(f"config_{file.stem}_{checksum:08x}", file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} is not a config: it must be a .py file with a function get_config(), or a .json file")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        with mistakes_in(file):
            spec.loader.exec_module(module)
    except ValueError:
        del sys.modules[spec.name]  # else it would give out the classes above the mistake
        raise
    IMPORTED[str(file.resolve())] = str(file), module
    return module


def import_named(name: str) -> None:
    """Imports a file or a module, as `--import` names it. Raises: ValueError if that fails."""
    if name.endswith(".py"):
        import_python(Path(name))
        return
    try:
        IMPORTED[name] = name, importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"--import {name}: {error}; name its file, or add its folder to PYTHONPATH") from error


@contextlib.contextmanager
def mistakes_in(file: Path) -> Iterator[None]:
    """Turns an exception in the code of a file into a ValueError with the line; a ValueError passes as it is."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        paths = (str(file), str(file.absolute()))
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename in paths]
        line = lines[-1] if lines else 1
        if isinstance(error, SyntaxError):
            line = error.lineno
        said = f"{type(error).__name__}: {error}"
        unknown = re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", said)
        if unknown and unknown[1] in (owner.__name__ for owner in TYPES):
            meant = offer(unknown[2], list(MARKS))
            if meant:
                said += f"; {meant}"
        raise ValueError(f"{file}, line {line}: {said}") from error


def outside_kind(value: object, setting: str, hint: object) -> str:
    """Returns the kind, `module:Class`, of a variant that is in no union of the package.

    Raises: ValueError if no file could name the class, or if it belongs to the package and was left out of its union.
    """
    owner = type(value)
    name = f"{owner.__module__}.{owner.__qualname__}"
    known = ", ".join(variant.__name__ for variant in variants_in(hint).values())
    is_base = isinstance(hint, type) and not dataclasses.is_dataclass(hint) and issubclass(owner, hint)
    if len(variants_in(hint)) < 2 and not is_base:
        raise ValueError(f"{setting} is of the class {name}: it must be of the class {known}")
    if owner.__module__.startswith("flaxformer_lite.") and not owner.__module__.startswith(TOOLS):
        raise ValueError(
            f"{setting} is of the class {name}, which is in no union of settings: add it to the one of {known}"
        )
    if "<locals>" in owner.__qualname__:
        raise ValueError(
            f"{setting} is of the class {name}, which config.json cannot name: define the class at the top of a module, not in "
            "a function"
        )
    return f"{owner.__module__}:{owner.__qualname__}"


def outside_class(kind: str, setting: str) -> type:
    """Returns the class that `outside_kind` named: that of the module with this name, or else of a file that has been imported.

    Raises: ValueError if none of them has the class, or several files have one of this name.
    """
    module, _, name = kind.partition(":")
    if module.startswith(TOOLS):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
    loaded = class_in(sys.modules.get(module), name)
    if loaded is not None:
        return loaded
    classes = {typed: class_in(imported, name) for typed, imported in IMPORTED.values()}
    named = {typed: owner for typed, owner in classes.items() if owner is not None}
    if len(set(named.values())) > 1:
        raise ValueError(
            f"{setting}.kind is {kind!r}: {' and '.join(named)} each have a class {name}: import only one of them"
        )
    if named:
        return next(iter(named.values()))
    file = re.fullmatch(r"config_(.+?)(?:_[0-9a-f]{8})?", module)
    source = f"the config file {file[1]}.py" if file else f"its source, or --import {module}"
    raise ValueError(
        f"{setting}.kind is {kind!r}: the class {name} is not part of flaxformer_lite, and no imported module {module} has it; "
        f"add --import FILE.py, any file that has a class {name}, such as {source}; from Python, call load_config(FILE.py) or "
        "import the module before flaxformer_lite.load"
    )


def class_in(module: ModuleType | None, name: str) -> type | None:
    """Returns the dataclass type of this qualified name; None if the module has none."""
    value: Any = module
    for attribute in name.split("."):
        value = getattr(value, attribute, None)
    return value if isinstance(value, type) and dataclasses.is_dataclass(value) else None


def import_options(config: object) -> str:
    """Returns the options, ` --import FILE`, that a command needs to read this config; empty if all classes are the package's."""
    typed = {module.__name__: name for name, module in IMPORTED.values()}
    typed["__main__"] = getattr(sys.modules["__main__"], "__file__", None) or "FILE.py"  # a notebook has no file
    modules = dict.fromkeys(value.__module__ for value in values_in(config) if type(value) not in TYPES)
    names = [typed.get(module, module) for module in modules if not module.startswith("flaxformer_lite.")]
    return "".join(f" --import {shlex.quote(name)}" for name in names)


def values_in(config: object) -> Iterator[object]:
    """Yields every dataclass in a config."""
    for node in walk(config):
        if dataclasses.is_dataclass(node.value):
            yield node.value
        for item in node.value if isinstance(node.value, tuple) else ():
            yield from values_in(item)
