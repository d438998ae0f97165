"""Laws: a command is short. It reads its words, calls a function that Python can call too, and prints; the words go no further."""

import ast

import pytest

from tests.support.sources import FILES, PACKAGE, tree_of

CLI = PACKAGE / "cli"
READERS = {"options.py": "turns what argparse returns into values with types", "main.py": "calls the commands"}
"""The files of `cli/`, beside the commands, that may hold what argparse returns, and why."""
MOST = 15
"""Statements of a function; imports and the declaration of arguments do not count."""


def long_functions(tree: ast.AST) -> dict[str, int]:
    """Returns the functions with more than MOST statements, and their number."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name != "add_arguments"]
    lengths = {function.name: statements(function) for function in functions}
    return {name: number for name, number in lengths.items() if number > MOST}


def statements(function: ast.FunctionDef) -> int:
    inner = [node for node in ast.walk(function) if isinstance(node, ast.stmt) and node is not function]
    texts = [node for node in inner if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    return len([node for node in inner if not isinstance(node, ast.Import | ast.ImportFrom)]) - len(texts)


def test_no_command_orchestrates():
    longer = {
        f"{path.stem}.{name}": number
        for path in CLI.rglob("*.py")
        for name, number in long_functions(tree_of(path)).items()
    }
    assert not longer, "move the work into a function of tools/ or run/"


def test_what_argparse_returns_stays_in_the_commands():
    """A function that takes it cannot be called from Python: values with types leave the commands."""
    holders = [
        path
        for path in FILES
        if path.parent != CLI / "commands" and "argparse.Namespace" in path.read_text(encoding="utf-8")
    ]
    assert sorted(str(path.relative_to(CLI)) for path in holders) == sorted(READERS)


@pytest.mark.parametrize(("number", "is_long"), [(MOST, False), (MOST + 1, True)])
def test_a_statement_more_is_one_too_many(number: int, is_long: bool):
    body = ["import json", '"""A text."""', *["print()"] * number]
    assert bool(long_functions(ast.parse("def run(arguments):\n    " + "\n    ".join(body)))) == is_long
