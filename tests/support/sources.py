"""The files of the package as syntax trees. Each file is parsed once for all laws of a process."""

import ast
import functools
from pathlib import Path

from tests.support.paths import ROOT

PACKAGE = ROOT / "flaxformer_lite"
FILES = sorted(PACKAGE.rglob("*.py"))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
