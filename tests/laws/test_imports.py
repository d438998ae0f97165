"""The house's one line of imports, held for every import there is: nested ones and those under TYPE_CHECKING too."""

import ast
import functools
import graphlib
import importlib
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import flaxformer_lite
from tests.support.paths import ROOT
from tests.support.sources import FILES, PACKAGE, tree_of

LINE = """
cli
tools
interop
run
training
workdir
tasks
config
engine metrics
files
core base
"""
"""Each room imports only rooms below it; rooms on one row do not import each other."""
INSIDE = """
runners
step
objectives
predictions
data search retrieval
placement
model
reading
text
optim parallel
base
"""
"""The same line inside the core."""

ROWS = {room: row for row, rooms in enumerate(LINE.split("\n")) for room in rooms.split()}
ROWS_INSIDE = {room: row for row, rooms in enumerate(INSIDE.split("\n")) for room in rooms.split()}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


NAMES = {module_name(path) for path in FILES}


@functools.cache
def imports(path: Path) -> set[str]:
    """Returns the modules of this package that a file imports, wherever the import stands in it."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import by the full name, as every file here does"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in NAMES else str(node.module))
    return {name for name in found if name.split(".")[0] == "flaxformer_lite"}


def room(module: str) -> str:
    """Returns the first part below the package: the room, or the file beside the rooms."""
    return [*module.split("."), ""][1]


def test_every_room_has_a_place_in_the_line():
    rooms = {room(module_name(path)) for path in FILES} - {"", "__main__"}
    assert rooms == ROWS.keys(), "give it a place in LINE and in docs/architecture.md"


def test_imports_go_down_the_line():
    """The front door may import every room."""
    found = [(path, imported) for path in FILES for imported in imports(path)]
    for path, imported in found:
        if room(module_name(path)) in ("", "__main__"):
            continue
        here, there, rows = room(module_name(path)), room(imported), ROWS
        if there == here == "core":
            there, rows = room(imported.removeprefix("flaxformer_lite.")), ROWS_INSIDE
            here = path.relative_to(PACKAGE / "core").parts[0].removesuffix(".py")
        assert there == here or rows.get(there, -1) > rows[here], f"{path}: {here} may not import {imported}"


@pytest.mark.parametrize("here", ROWS)
def test_no_circle_of_files_inside_a_room(here: str):
    """A folder's `__init__`, its face, counts as a file that imports what it names."""
    graph = defaultdict(set)
    for path in FILES:
        if room(module_name(path)) == here:
            graph[module_name(path)] = {name for name in imports(path) if room(name) == here}
    graphlib.TopologicalSorter(graph).prepare()


def test_nothing_is_imported_by_a_string():
    """`importlib` would hide an import from the two laws above: only the command line loads its commands so, a config the classes
    of tools that it names (`config/outside.py`), and the front door its names."""
    for path in FILES:
        if "import_module" in path.read_text(encoding="utf-8"):
            assert room(module_name(path)) in ("cli", "") or path == PACKAGE / "config" / "outside.py", (
                f"{path} imports by a string"
            )


def test_training_loads_no_tool():
    """Law: a process that trains, and a config with nothing of a tool, has no module of tools, interop or cli."""
    code = (
        "import sys, flaxformer_lite, flaxformer_lite.training.loop as loop, flaxformer_lite.config.load as load\n"
        "flaxformer_lite.load, load.load_config('quickstart')\n"
        "print(*[n for n in sys.modules if n.split('.')[:2] in [['flaxformer_lite', r] for r in ('tools', 'interop', 'cli')]])"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


def test_every_name_of_the_front_door_is_where_it_says():
    assert sorted(flaxformer_lite.ROOMS) == sorted(flaxformer_lite.__all__)
    for name, place in flaxformer_lite.ROOMS.items():
        assert hasattr(importlib.import_module(f"flaxformer_lite.{place}"), name), f"{place} has no {name}"
    with pytest.raises(AttributeError, match="has no attribute 'Trasformer'"):
        getattr(flaxformer_lite, "Trasformer")  # noqa: B009
