"""Laws: no code outside objectives/ asks for an objective's class: a new objective is one file and its name in the union."""

import ast
import typing

import pytest

from flaxformer_lite import objectives
from tests.support.paths import ROOT

PACKAGE = ROOT / "flaxformer_lite"
CLASSES = {base.__name__ for kind in typing.get_args(objectives.Objectives) for base in kind.__mro__[:-1]}
OUTSIDE = [path for path in sorted(PACKAGE.rglob("*.py")) if (PACKAGE / "objectives") not in path.parents]


def class_checks(code: str) -> list[int]:
    """Returns the lines that branch on an objective's class: isinstance, issubclass, match, or comparing types or kinds."""
    lines = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            where: list[ast.AST] = node.args[1:]
        elif isinstance(node, ast.MatchClass):
            where = [node.cls]
        elif isinstance(node, ast.Compare):
            where = [node.left, *node.comparators]
        else:
            continue
        names = {name for part in where for inner in ast.walk(part) if (name := name_of(inner))}
        if names & CLASSES or any(ast.unparse(part).endswith("objective.kind") for part in where):
            lines.append(node.lineno)
    return lines


def name_of(node: ast.AST) -> str:
    return getattr(node, "id", "") or getattr(node, "attr", "")


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_code_outside_asks_for_an_objectives_class(path):
    assert not class_checks(path.read_text(encoding="utf-8"))
