"""One finds what guards a module by its path: `flaxformer_lite/ROOM/x.py` has `tests/ROOM/test_x.py`, or its folder's one file."""

import ast
import re
from collections import defaultdict
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.quick import EVERY
from tests.support.sources import FILES, PACKAGE, tree_of

MODULES = [path for path in FILES if path.stem not in ("__init__", "__main__")]
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


def places_of_tests(module: Path) -> list[Path]:
    """Returns the files of which one guards a module: its own, or the folder's one file, in the folder or beside it."""
    folder = ROOT / "tests" / module.relative_to(PACKAGE).parent
    whole = f"test_{folder.name}.py"
    return [folder / f"test_{module.stem}.py", folder / whole, folder.parent / whole]


def test_every_module_has_its_tests_at_its_own_path():
    assert MODULES and not [path for path in MODULES if not any(place.exists() for place in places_of_tests(path))]


def test_tests_import_only_support():
    """What several tests share lies in `tests/support`. A program in a text is another process, and may import a test."""
    texts = {path: path.read_text(encoding="utf-8") for path in TESTS}
    others = re.compile(r"^(from|import) tests\.(?!support)", re.M)
    found = [(path, node) for path, text in texts.items() if others.search(text) for node in ast.parse(text).body]
    assert not [(path, node) for path, node in found if others.match(ast.unparse(node))]


def test_each_table_that_ci_thins_out_is_there():
    for file, _, function in (name.partition("::") for name in EVERY):
        assert f"\ndef {function}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), (file, function)


def test_a_class_has_one_definition():
    """One grep finds it. Orbax's two interfaces have a handler each, whose name is in every checkpoint; each task has `Lines`."""
    places = defaultdict[str, list[str]](list)
    for path in MODULES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    several = {name: files for name, files in places.items() if len(files) > 1}
    assert several.keys() == {"CheckedTree", "Lines"}, several
