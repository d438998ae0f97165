"""Measures of a package, its size and how its sentences read: `python -m tests.support.measures [FOLDER …]`.

The size is a number of code tokens. Tokens a line are those on lines that have code; all else is a number for 1,000 statements.
"""

import ast
import collections
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
    tokenize.ENCODING,
}
OPENS_STRING, CLOSES_STRING = (
    {getattr(tokenize, name) for name in (f"FSTRING_{end}", f"TSTRING_{end}") if hasattr(tokenize, name)}
    for end in ("START", "END")
)
"""The tokens around a string with fields: Python 3.12 and newer split it, Python 3.11 has one token for it."""
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def is_statement(node: ast.AST) -> bool:
    """Returns whether a node counts: imports and texts that stand alone do not."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return False
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return isinstance(node, ast.stmt) and not is_text


def is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def code_tokens(path: Path) -> list[tokenize.TokenInfo]:
    """Returns the tokens of a file that are code, the same number on each version of Python.

    Comments, line ends, indents and strings in three quotation marks are left out; a string with fields is one token.
    """
    found, depth = list[tokenize.TokenInfo](), 0
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            opens, closes = token.type in OPENS_STRING, token.type in CLOSES_STRING
            is_text = token.type == tokenize.STRING and token.string.lstrip("bBrRuU").startswith(('"""', "'''"))
            if depth == 0 and not is_text and token.type not in NO_CODE:
                found.append(token)
            depth += opens - closes
    return found


def counts(path: Path) -> collections.Counter[str]:
    """Returns the counts of a file."""
    found = collections.Counter[str]()
    tokens = code_tokens(path)
    found["tokens"] += len(tokens)
    found["lines"] += len({token.start[0] for token in tokens})
    for node in ast.walk(ast.parse(path.read_bytes())):
        found["statements"] += is_statement(node)
        found["comprehensions"] += isinstance(node, COMPREHENSIONS)
        found["conditional expressions"] += isinstance(node, ast.IfExp)
        found["raises"] += isinstance(node, ast.Raise)
        found["starred literals"] += isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List)
        found["walrus"] += isinstance(node, ast.NamedExpr)
        if isinstance(node, ast.Compare):
            operators = zip(node.ops, node.comparators, strict=True)
            found["is None"] += sum(isinstance(op, ast.Is | ast.IsNot) and is_none(right) for op, right in operators)
        if isinstance(node, ast.arguments):
            found["= None"] += sum(is_none(default) for default in (*node.defaults, *node.kw_defaults) if default)
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            found["= None"] += is_none(node.value)
    return found


def main(folders: list[str]) -> None:
    for folder in folders or [str(ROOT / "flaxformer_lite"), str(ROOT / "flaxformer_lite" / "core")]:
        total = sum(map(counts, sorted(Path(folder).rglob("*.py"))), collections.Counter[str]())
        print(f"{folder}: {total['tokens']:,} code tokens, {total['tokens'] / total['lines']:.1f} a line")
        for name in sorted(total.keys() - {"statements", "tokens", "lines"}):
            print(f"  {name:24} {1000 * total[name] / total['statements']:6.1f} for 1,000 statements ({total[name]:,})")


if __name__ == "__main__":
    main(sys.argv[1:])
