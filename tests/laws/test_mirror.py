"""One finds what guards a module by its path: `flaxformer_lite/ROOM/x.py` has `tests/ROOM/test_x.py`, or its folder's one file."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.quick import EVERY

PACKAGE = ROOT / "flaxformer_lite"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.stem not in ("__init__", "__main__"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_has_its_tests_at_its_own_path(path: Path):
    """The folder's one file is called after the folder and stands in it, or beside it."""
    folder = ROOT / "tests" / path.relative_to(PACKAGE).parent
    own, whole = folder / f"test_{path.stem}.py", f"test_{folder.name}.py"
    assert any(place.exists() for place in (own, folder / whole, folder.parent / whole)), f"nothing guards {path}"


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_tests_import_only_support(path: Path):
    """What several tests share lies in `tests/support`."""
    for line in path.read_text(encoding="utf-8").splitlines():
        assert not line.startswith(("from tests.", "import tests.")) or line.startswith("from tests.support"), line


@pytest.mark.parametrize("name", EVERY)
def test_each_table_that_ci_thins_out_is_there(name: str):
    file, _, function = name.partition("::")
    assert f"\ndef {function}(" in (ROOT / "tests" / file).read_text(encoding="utf-8")


def test_a_class_has_one_definition():
    """One grep finds it. Orbax's two interfaces have a handler each, whose name is in every checkpoint; each task has `Lines`."""
    places = defaultdict[str, list[str]](list)
    for path in MODULES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    several = {name: files for name, files in places.items() if len(files) > 1}
    assert several.keys() == {"CheckedTree", "Lines"}, several
