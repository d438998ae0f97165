"""Contracts by discovery: whatever lies in `configs/` or in the package keeps the rules, newcomers included."""

import ast
import dataclasses
import functools
import json
import re
import subprocess
import sys
import typing
from pathlib import Path

import jax
import pytest

from flaxformer_lite.cli.main import COMMANDS
from flaxformer_lite.config import Config
from flaxformer_lite.config.load import load_config
from flaxformer_lite.config.serialize import from_json, to_json
from flaxformer_lite.config.settings import MARKS, TYPES
from flaxformer_lite.core.base.bounds import Checked
from flaxformer_lite.core.data.batch_plan import batch_shapes
from flaxformer_lite.core.data.dataset import zero_batch
from flaxformer_lite.core.parallel.mesh import check_rows, make_mesh
from flaxformer_lite.core.step import train_step
from flaxformer_lite.training.task import train_task
from tests.support.paths import ROOT
from tests.support.sources import FILES

CONFIGS = sorted(path for path in (ROOT / "configs").glob("*.py") if path.stem != "__init__")
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *(ROOT / "docs").rglob("*.md")]


@pytest.mark.slow
@pytest.mark.parametrize("bucket", [0, -1], ids=lambda i: "last" if i else "first")
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_lowers(path: Path, bucket: int):
    """Its whole train step is traced and lowered, from shapes alone: at the first and the last that it trains."""
    config = load_config(str(path))
    assert from_json(to_json(config)) == config
    task = train_task(config)
    batch = zero_batch(config.objective, batch_shapes(config.objective, config.data)[bucket])
    state = jax.eval_shape(task.initialize)
    jax.jit(functools.partial(train_step, task)).lower(state, batch)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_runs_on_eight_devices(path: Path):
    """char_lm excepted: it has the 12 rows of the system that it is compared with."""
    config, devices = load_config(str(path)), 4 if path.stem == "char_lm" else 8
    check_rows(*config.data.rows_divisor, make_mesh(devices=jax.devices()[:devices]), config.train.num_micro_batches)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_says_source_command_and_expectation(path: Path):
    header = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    for word in ("Source:", "Command:", "Expected:"):
        assert word in header
    assert f"configs/{path.name}" in header


def test_every_choice_is_checked_in_python_too():
    """Law: what Python makes is checked as a config file is."""
    unchecked = [
        f"{owner.__qualname__}.{name}"
        for owner in TYPES
        for name, hint in typing.get_type_hints(owner, include_extras=True).items()
        if name != "kind" and not issubclass(owner, Checked)
        if typing.get_origin(hint) is typing.Literal or hasattr(hint, "__metadata__")
        if owner is not Config
    ]
    assert not unchecked, "make it a subclass of `Checked`"


def test_a_message_names_the_setting_where_it_is():
    """Law: a class of settings that is checked `at` a place of the config has its fields there."""
    checked = [owner for owner in TYPES if issubclass(owner, Checked) and owner._path.partition(".")[0] in MARKS]
    paths = {f"{owner._path}.{field.name}" for owner in checked for field in dataclasses.fields(owner)}
    assert paths and paths <= MARKS.keys()


def test_the_map_of_the_readme_is_true():
    """Law: every folder that it names is there, and every room of the package and every folder of the repository is named."""
    block = (
        (ROOT / "README.md").read_text(encoding="utf-8").split("## The map", 1)[1].split("```")[1].strip().splitlines()
    )
    rooms = {line.split()[0].rstrip("/") for line in block if re.match(r"  \S", line)}
    top = {line.split()[0].rstrip("/") for line in block if not line.startswith("  ")}
    assert rooms == {path.name for path in (ROOT / "flaxformer_lite").iterdir() if (path / "__init__.py").exists()}
    assert all((ROOT / name).is_dir() for name in top)
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    assert {name.split("/")[0] for name in tracked if "/" in name and not name.startswith(".")} <= top


def test_the_readme_names_commands_and_settings_that_exist():
    """Every `flaxformer-lite COMMAND` of the README and the guides is a command."""
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for command in re.findall(r"flaxformer-lite ([a-z][\w-]*)", page.read_text(encoding="utf-8")):
            assert command in COMMANDS, f"{page.name}: {command}"


def test_nothing_is_left_to_be_filled_in():
    for path in [*PAGES, *CONFIGS, *FILES, ROOT / "train.py"]:
        found = re.findall(r"\b(?:TODO|TBD|XXX|FIXME|[Ll]orem)\b", path.read_text(encoding="utf-8"))
        assert not found, f"{path.relative_to(ROOT)} still says {found[0]}"


def test_no_name_is_undefined_but_the_letters_of_shapes():
    """The linter's own rule is off, as it takes jaxtyping's shapes for names."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "--output-format", "json", "."]
    found = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout)
    names = {(item["filename"], item["location"]["row"], item["message"].split("`")[1]) for item in found}
    assert names, "the linter found nothing, not even the letters of shapes"
    wrong = [item for item in names if not re.fullmatch(r"_|h|[A-Z][a-z0-9]?", item[2])]
    assert not wrong, wrong
