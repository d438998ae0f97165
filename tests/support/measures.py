"""Measures of a package, its size and how its sentences read: `python -m tests.support.measures [FOLDER …]`.

The size is a number of code tokens. Tokens a line are those on lines that have code; all else is a number for 1,000 statements.
Without a FOLDER it also counts the English turns, the words of the pages, and the lines of tests and package.
"""

import ast
import collections
import re
import sys
import tokenize
from collections.abc import Iterator
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
        if isinstance(node, ast.FunctionDef):
            signature = f"{ast.unparse(node.args)} {ast.unparse(node.returns or node.args)}"
            found["signatures with Any"] += "Any" in re.findall(r"\w+", signature)
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


TURNS = re.compile(
    r"\b(is none|are none|none of which|so many|of which|by which|[Tt]here is no|[Tt]here are no|(?<=\w )alone)\b"
)
"""Turns that stand for a noun which the reader has to look for. A sign only: a sentence without them can be as hard to read."""
TEXT = {tokenize.STRING, tokenize.COMMENT} | {
    getattr(tokenize, name) for name in ("FSTRING_MIDDLE", "TSTRING_MIDDLE") if hasattr(tokenize, name)
}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yields what people read in a file, with its line: a whole page, or the strings and comments of Python, neighbours joined."""
    if path.suffix != ".py":
        yield 1, path.read_text(encoding="utf-8")
        return
    first, run = 1, ""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in TEXT:
                first, run = (first if run else token.start[0]), f"{run} {token.string.strip('# ')}"
            elif token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT) and run:
                yield first, run
                run = ""


def turns(path: Path) -> list[tuple[int, str]]:
    """Returns line and words of each turn of `TURNS`, with the words around it."""
    return [
        (
            line + text[: match.start()].count("\n"),
            " ".join(text[max(0, match.start() - 60) : match.end() + 40].split()),
        )
        for line, text in texts(path)
        for match in TURNS.finditer(text)
    ]


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def is_type_variable(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "TypeVar"


def names_twice(folder: Path) -> dict[str, list[str]]:
    """Returns the public names of classes, functions and constants that several modules define, with those modules."""
    places = collections.defaultdict[str, list[str]](list)
    for path in sorted(folder.rglob("*.py")):
        for node in ast.parse(path.read_bytes()).body:
            named = [node.name] if isinstance(node, ast.ClassDef | ast.FunctionDef) else []
            if isinstance(node, ast.Assign) and not is_type_variable(node.value):
                named = [target.id for target in node.targets if isinstance(target, ast.Name)]
            for name in named:
                places[name].append(path.relative_to(folder).as_posix())
    return {name: where for name, where in places.items() if len(where) > 1 and not name.startswith("_")}


def main(folders: list[str]) -> None:
    for folder in folders or [str(ROOT / "flaxformer_lite"), str(ROOT / "flaxformer_lite" / "core")]:
        total = sum(map(counts, sorted(Path(folder).rglob("*.py"))), collections.Counter[str]())
        print(f"{folder}: {total['tokens']:,} code tokens, {total['tokens'] / total['lines']:.1f} a line")
        for name in sorted(total.keys() - {"statements", "tokens", "lines"}):
            print(f"  {name:24} {1000 * total[name] / total['statements']:6.1f} for 1,000 statements ({total[name]:,})")
    if folders:
        return
    package, tests = (sorted((ROOT / folder).rglob("*.py")) for folder in ("flaxformer_lite", "tests"))
    lines = [sum(len(path.read_bytes().splitlines()) for path in files) for files in (package, tests)]
    readme = len((ROOT / "README.md").read_bytes().splitlines())
    words = [len(path.read_text(encoding="utf-8").split()) for path in pages()]
    print(f"English turns: {sum(len(turns(path)) for path in [*package, *pages()])}")
    print(f"words of the pages: {sum(words):,}; README.md: {readme} lines")
    print(f"lines of tests: {lines[1]:,}, of the package {lines[0]:,}: {lines[1] / lines[0]:.2f}")
    print(f"names that several modules define: {len(names_twice(ROOT / 'flaxformer_lite'))}")


if __name__ == "__main__":
    main(sys.argv[1:])
