"""Law: every message that docs/troubleshooting.md quotes is one of the code, word for word."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.paths import ROOT
from tests.support.sources import FILES, tree_of

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
QUOTED = [found[1] for found in re.finditer(r"^\| `([^`]+)` \|", PAGE, re.M)]


def literals(tree: ast.AST) -> Iterator[str]:
    """Yields every text of the code; `…` stands for what is filled in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
            yield "".join(map(str, parts))


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [text for file in FILES for text in literals(tree_of(file))]


def is_said(message: str, texts: list[str]) -> bool:
    """Returns whether one text has the words of a message in order; `…` in the message may be any part of the text."""
    pattern = re.compile(".*".join(map(re.escape, message.strip("…").split("…"))), re.S)
    return any(pattern.search(text) for text in texts)


def test_every_quoted_message_is_in_the_code(texts: list[str]):
    unknown = [message for message in QUOTED if not is_said(message, texts)]
    assert not unknown, f"no message of the package has these words: quote the new ones of {unknown}"


def test_the_page_quotes_messages():
    assert len(QUOTED) > 25 and len(QUOTED) == PAGE.count("\n| `")


def test_other_words_are_found():
    assert is_said("the steps … are lost", ["x: the steps … to … are lost"])
    assert not is_said("the steps … were lost", ["x: the steps … to … are lost"])
