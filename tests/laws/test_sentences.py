"""Law: sentences of code that dodge the formatter or a breakpoint are written out."""

import ast

import pytest

from tests.support.measures import names_twice
from tests.support.sources import FILES, PACKAGE, tree_of

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def starred_literals(node: ast.AST) -> bool:
    """`f(*(a, b), c)`: a call that the formatter would explode has that many arguments."""
    return isinstance(node, ast.Call) and any(
        isinstance(argument, ast.Starred) and isinstance(argument.value, ast.Tuple | ast.List) for argument in node.args
    )


def is_condition(node: ast.AST) -> bool:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "bool"
    is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    named = node.func if isinstance(node, ast.Call) else node
    name = named.attr if isinstance(named, ast.Attribute) else named.id if isinstance(named, ast.Name) else ""
    is_named = name.startswith(("is_", "has_"))
    return is_call or is_not or is_named or isinstance(node, ast.Compare | ast.BoolOp)


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
    return isinstance(node, COMPREHENSIONS) and any(isinstance(inner, ast.NamedExpr) for inner in ast.walk(node))


CHANGES = {"next", "add", "append", "extend", "pop", "setdefault", "update"}
"""Functions and methods that change what they are given."""


def changes_in_two_comprehensions(node: ast.AST) -> bool:
    """`[[next(x) for _ in y] for y in z]`."""
    if not isinstance(node, COMPREHENSIONS):
        return False
    inside = [inner for inner in ast.walk(node) if inner is not node]
    named = [inner.func for inner in inside if isinstance(inner, ast.Call)]
    names = {name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "") for name in named}
    return any(isinstance(inner, COMPREHENSIONS) for inner in inside) and not names.isdisjoint(CHANGES)


BARE_NAMES = {"found", "part", "own"}
NAMED = ("base", "cli", "config", "core", "files", "interop", "metrics", "run", "tools", "training", "workdir")
"""The rooms whose locals have the noun of the thing; a room that is done is added."""


def bare_names(tree: ast.AST) -> list[tuple[str, int]]:
    """Returns the locals that say how a thing came about, and not what it is, with their lines. Fields of a class are no locals."""
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = {id(line.target) for body in bodies for line in body if isinstance(line, ast.AnnAssign)}
    return [
        (node.id, node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and node.id in BARE_NAMES
        and id(node) not in fields
    ]


IDIOMS = (
    starred_literals,
    texts_times_a_condition,
    names_bound_in_a_comprehension,
    changes_in_two_comprehensions,
)


def test_sentences_are_written_out():
    assert not [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {idiom.__name__}"  # type: ignore[attr-defined]
        for path in FILES
        for node in ast.walk(tree_of(path))
        for idiom in IDIOMS
        if idiom(node)
    ]


@pytest.mark.parametrize("room", NAMED)
def test_a_local_has_the_noun_of_its_thing(room: str):
    files = sorted((PACKAGE / room).rglob("*.py"))
    bare = {str(path.relative_to(PACKAGE)): bare_names(tree_of(path)) for path in files}
    assert files and not {path: names for path, names in bare.items() if names}


@pytest.mark.parametrize(
    "code",
    [
        "found = 1",
        "part, y = 1, 2",
        "found: int = 1",
        "for own in x: y",
        "with x as part: y",
        "[1 for own in x]",
        "f(found := 1)",
        "class A:\n    def f(self):\n        own: int = 1",
    ],
)
def test_a_bare_name_is_seen(code: str):
    assert len(bare_names(ast.parse(code))) == 1


@pytest.mark.parametrize("code", ["class A:\n    own: int", "f(own=1)", "x.found = 1", "y = found", "founder = 1"])
def test_a_field_or_a_use_is_no_bare_name(code: str):
    assert not bare_names(ast.parse(code))


@pytest.mark.parametrize(
    ("code", "idiom"),
    [
        ("f(*(a, b), c)", starred_literals),
        ("f(*[a, b])", starred_literals),
        ("'s' * (n > 1)", texts_times_a_condition),
        ("(not x) * [y]", texts_times_a_condition),
        ("(y,) * bool(x)", texts_times_a_condition),
        ("'s' * x.is_best", texts_times_a_condition),
        ("[x] * x.is_file()", texts_times_a_condition),
        ("[y for x in z if (y := f(x))]", names_bound_in_a_comprehension),
        ("{x: y for x in z if (y := f(x))}", names_bound_in_a_comprehension),
        ("[[next(x) for _ in y] for y in z]", changes_in_two_comprehensions),
        ("[{n.setdefault(x, 1): 2 for x in y} for y in z]", changes_in_two_comprehensions),
    ],
)
def test_each_idiom_is_found(code: str, idiom: object):
    assert [found for node in ast.walk(ast.parse(code)) for found in IDIOMS if found(node)] == [idiom]


CONTRACTS = {
    "run": "what a command does",
    "add_arguments": "what a command takes",
    "TAKES_SETTINGS": "a command that changes settings of a config",
    "main": "a program that is started by its own process",
    "Lines": "a task's command",
    "recipe": "a task's config for rows of data",
    "record_of": "a task's record for rows of data",
    "train": "the training of a run: training.loop returns the last step, run.train the run",
    "FAMILIES": "all model families of a module, or of the command that lists them",
    "CheckedTree": "Orbax's handler with digests, for both of its interfaces",
}
FAMILY_ROOMS = ("interop/hf/", "interop/systems/", "interop/ctranslate2.py")
"""Modules of model families, whose tables have the same names: FAMILIES, TABLE, LAYER, TEMPLATE, read_heads, ..."""


def test_a_name_of_a_module_means_one_thing():
    found = {
        name: places
        for name, places in names_twice(PACKAGE).items()
        if name not in CONTRACTS and not all(place.startswith(FAMILY_ROOMS) for place in places)
    }
    assert not found, "rename one of them, or import it from the other module"
