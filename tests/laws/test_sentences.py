"""Law: sentences of code that dodge the formatter or a breakpoint are written out."""

import ast
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGE = ROOT / "flaxformer_lite"


def starred_literals(node: ast.AST) -> bool:
    """`f(*(a, b), c)`: a call that the formatter would explode has that many arguments."""
    return isinstance(node, ast.Call) and any(
        isinstance(argument, ast.Starred) and isinstance(argument.value, ast.Tuple | ast.List) for argument in node.args
    )


def is_condition(node: ast.AST) -> bool:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "bool"
    is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return is_call or is_not or isinstance(node, ast.Compare | ast.BoolOp)


def texts_times_a_condition(node: ast.AST) -> bool:
    """`"s" * (n > 1)`, `[x] * bool(y)`."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return False
    for side, other in ((node.left, node.right), (node.right, node.left)):
        is_text = isinstance(side, ast.Constant) and isinstance(side.value, str)
        if (is_text or isinstance(side, ast.List | ast.Tuple | ast.JoinedStr)) and is_condition(other):
            return True
    return False


def names_bound_in_a_comprehension(node: ast.AST) -> bool:
    """`[y for x in z if (y := f(x))]`."""
    comprehension = isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp)
    return comprehension and any(isinstance(inner, ast.NamedExpr) for inner in ast.walk(node))


IDIOMS = (starred_literals, texts_times_a_condition, names_bound_in_a_comprehension)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_sentences_are_written_out(path: Path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not [(idiom.__name__, node.lineno) for node in ast.walk(tree) for idiom in IDIOMS if idiom(node)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("code", "idiom"),
    [
        ("f(*(a, b), c)", starred_literals),
        ("f(*[a, b])", starred_literals),
        ("'s' * (n > 1)", texts_times_a_condition),
        ("(not x) * [y]", texts_times_a_condition),
        ("(y,) * bool(x)", texts_times_a_condition),
        ("[y for x in z if (y := f(x))]", names_bound_in_a_comprehension),
        ("{x: y for x in z if (y := f(x))}", names_bound_in_a_comprehension),
    ],
)
def test_each_idiom_is_found(code: str, idiom: object):
    assert [found for node in ast.walk(ast.parse(code)) for found in IDIOMS if found(node)] == [idiom]
