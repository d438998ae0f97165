"""The mechanical part of how code and messages are written; the rest is for readers (CONTRIBUTING.md)."""

import ast
import re
from collections.abc import Iterator

from tests.support import sources
from tests.support.measures import pages, turns
from tests.support.paths import ROOT
from tests.support.sources import tree_of

FILES = [*sources.FILES, ROOT / "train.py", *sorted((ROOT / "benchmarks").glob("*.py"))]

RELATIVE = re.compile(r"(What|Which|Of|Whose|Where|Who|How|That|Such|These|Those)\b")
"""Openings of a sentence that puts a clause before its noun."""


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields line and text of every docstring, those of fields and constants too."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        for statement in node.body:
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, value.value


def test_docstrings_open_with_a_verb_or_a_noun():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0][:80]}"
        for path in FILES
        for line, text in docstrings(tree_of(path))
        if RELATIVE.match(text)
    ]
    assert not wrong, "start with a verb (Returns …) or the noun that is returned:\n" + "\n".join(wrong)


CLAUSE = re.compile(r"[.:;]\s+((What|Which|Whose|Who|Of|Where)\b[^.]*)")
"""A later sentence that opens with a clause."""


def test_later_sentences_open_with_their_noun_too():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {' '.join(clause[1].split())[:80]}"
        for path in FILES
        for line, text in docstrings(tree_of(path))
        for clause in CLAUSE.finditer(text)
    ]
    assert not wrong, "put the noun first; a condition begins with If:\n" + "\n".join(wrong)


def raised(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields line and text of every mistake that is raised with a literal message; a blank stands for what is filled in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            name, message = node.exc.func, node.exc.args[0]
            if not (isinstance(name, ast.Name) and name.id in ("ValueError", "Mistake")):
                continue
            if isinstance(message, ast.Constant):
                yield node.lineno, str(message.value)
            elif isinstance(message, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in message.values]
                yield node.lineno, "".join(map(str, parts))


def test_messages_say_what_is_wrong_and_then_the_remedy():
    """A message has two parts with a colon or a semicolon between: setting and value; the legal range or the way out."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {text[:100]}"
        for path in FILES
        for line, text in raised(tree_of(path))
        if not re.search(r"[:;] ?(\S|$)", text)
    ]
    assert not wrong, "say after a colon what is allowed, or the way out:\n" + "\n".join(wrong)


def test_nouns_are_repeated():
    """Law: turns that stand for a noun, such as a bare "is none" or "alone", are fewer than 100 in the package and its pages."""
    found = {page: turns(page) for page in [*FILES, *pages()]}
    assert sum(map(len, found.values())) < 100, {page: places for page, places in found.items() if places}
