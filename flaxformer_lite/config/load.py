"""A config from a file and the command line."""

import contextlib
import importlib.util
import io
import itertools
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import tyro

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.config.old_names import REMOVED, renamed_setting
from flaxformer_lite.config.serialize import from_json, to_json
from flaxformer_lite.console import suggest


def load_config(path: str, overrides: Sequence[str] = ()) -> Config:
    """The config of a `.py` file (its `get_config()`) or a `.json` file, with command-line overrides such as `--train.steps 100`.

    Raises: ValueError where the file or an override is wrong; SystemExit with status 0 after `--help`.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"there is no config file {path}{suggest_config_files(file)}")
    config = from_json(file.read_bytes(), path) if file.suffix == ".json" else run_config_file(file)
    return from_json(to_json(apply_overrides(config, overrides, path)), path)


def suggest_config_files(file: Path) -> str:
    """A hint at the config files that there are, in the same folder and in `configs`."""
    folders = {file if file.is_dir() else file.parent, Path("configs")}
    found = sorted(str(p) for folder in folders for p in folder.glob("*.py") if p.stem not in ("__init__", "train"))
    near = "" if file.is_dir() else suggest(str(file), found)
    return near or (f"; there are {', '.join(found)}" if found else "")


def apply_overrides(config: Config, overrides: Sequence[str], path: str) -> Config:
    """The config with settings from the command line. Raises: ValueError in one line where tyro would draw a box."""
    if not overrides:
        return config
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            options = (tyro.conf.AvoidSubcommands,)
            return tyro.cli(Config, default=config, args=list(overrides), prog=f"train.py {path}", config=options)
    except SystemExit as end:
        if not end.code:
            raise
        raise ValueError(renamed_option(overrides) or in_one_line(box.getvalue())) from None


def renamed_option(overrides: Sequence[str]) -> str:
    """Returns what became of the first option that has the name of an older release; empty where none has."""
    for option in (word.partition("=")[0] for word in overrides if word.startswith("--")):
        old = option[2:].replace("-", "_")
        if (new := renamed_setting(old)) is not None:
            return f"there is no option {option}; it is now --{new.replace('_', '-')}"
        if old in REMOVED:
            return f"there is no option {option}; {REMOVED[old][1]}"
    return ""


def in_one_line(box: str) -> str:
    """What a box of tyro's says: its first paragraph, and the options that it thinks were meant.

    The first row is a title; rules of "─", or "-" where the terminal has no better, part the paragraphs.
    """
    rows = re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines()[1:]
    parted = itertools.groupby(rows, lambda row: set(row) <= set(" │╭╮╰╯─-"))
    paragraphs = [" ".join(row.strip(" │") for row in rows) for is_rule, rows in parted if not is_rule]
    if not paragraphs:
        return " ".join(box.split())
    said = re.sub(r"^Error parsing (?!-)\S+: ", "", paragraphs[0])
    meant = [option for more in paragraphs[1:] if "you meant" in more for option in re.findall(r"(--[\w.-]+) ", more)]
    return said + (f"; perhaps you meant {' or '.join(meant[:3])}" if meant else "")


def run_config_file(file: Path) -> Config:
    """What the file's `get_config()` returns."""
    spec = importlib.util.spec_from_file_location(f"config_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} is not a config: give a .py file with a function get_config(), or a .json file")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # so that config.json can name its classes
    try:
        spec.loader.exec_module(module)
        config = module.get_config() if hasattr(module, "get_config") else None
    except ValueError:
        raise
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else 1
        raise ValueError(f"{file}, line {line}: {type(error).__name__}: {error}") from error
    if not isinstance(config, Config):
        raise ValueError(f"{file} has no function get_config() that returns a flaxformer_lite.config.Config")
    return config
