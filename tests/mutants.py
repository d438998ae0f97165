"""Mutation testing: does a test fail when a line of the core is wrong?

    python tests/mutants.py --count 40 --seed 0
    python tests/mutants.py --count 40 --skip 40
    python tests/mutants.py flaxformer_lite/core/objectives/losses.py --count 10

Takes seeded samples of small changes (a comparison, an operator, a number, a condition) of the modules below, each in a copy of the
repository, and runs the module's own tests (the mirrored path) until the first failure. Prints each mutant that no test sees, with
its line; the exit status is 1 if there are any. It measures the tests, so it lives with them; pytest does not collect it.
"""

import argparse
import ast
import contextlib
import copy
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE = {
    "core/model": "attention masks positions",
    "core/objectives": "seq2seq losses masked_lm",
    "core/search": "settings sampling greedy search beam",
    "metrics": "translations",
    "core/data": "batch_plan packing",
    "files/data": "source text_files held_out store",
    "tools/research": "minimum_risk",
    "files/text": "normal_form terms",
    "core/text": "tokenizer",
    "core/optim": "optimizers schedules",
    "core": "step",
    "training": "throughput loop_state",
    "workdir": "folder manifest checkpoints",
}
"""The modules that are changed, by their folder. The tests at the mirrored path must see each change."""
HEAVY = "jax flax.linen optax tyro pydantic tokenizers sentencepiece rich pytest beartype jaxtyping"
PATIENCE = 240
"""Seconds after which the tests of a mutant are stopped: it may never end, or the machine is slow; it is not counted."""

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.In: ast.NotIn,
    ast.Is: ast.IsNot,
}


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the changes of one node of the syntax tree."""
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in OPERATORS:
        other = copy.deepcopy(node)
        other.op = OPERATORS[type(node.op)]()  # type: ignore[assignment]
        yield other
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
        other_comparison = copy.deepcopy(node)
        other_comparison.ops[0] = OPERATORS[type(node.ops[0])]()  # type: ignore[call-overload]
        yield other_comparison
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield node.operand


def code(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes that compute: no annotations, decorators, messages or assertions."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or isinstance(
            node, ast.Raise | ast.Assert | ast.JoinedStr
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child
                yield from code(child)


def mutants(source: str) -> list[tuple[int, str, str]]:
    """Returns for each mutant its line, the change in words, and the whole source."""
    lines = source.encode().splitlines(keepends=True)
    starts = [sum(map(len, lines[:i])) for i in range(len(lines))]
    found = []
    for node in code(ast.parse(source)):
        for other in changed(node):
            a = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
            b = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
            old, new = source.encode()[a:b].decode(), f"({ast.unparse(ast.fix_missing_locations(other))})"
            whole = (source.encode()[:a] + new.encode() + source.encode()[b:]).decode()
            with contextlib.suppress(SyntaxError):
                compile(whole, "mutant", "exec")
                found.append((node.lineno, f"{' '.join(old.split())} -> {new}", whole))  # type: ignore[attr-defined]
    return found


def run_tests(folder: Path, module: Path) -> int | None:
    """Runs a module's tests in a fork that has JAX imported already; returns pytest's status, None if they never end."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.chdir(folder)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        import pytest

        sys.path.insert(0, str(folder))
        options = ["-x", "-q", "-n0", "-p", "no:cacheprovider", "-W", "ignore"]
        os._exit(int(pytest.main([*options, f"tests/{module.parent}/test_{module.name}"])))
    for _ in range(PATIENCE * 5):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.2)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", help="files of the package; default: the core")
    parser.add_argument("--count", type=int, default=40, help="number of mutants")
    parser.add_argument("--skip", type=int, default=0, help="mutants at the start of the sample that were tried before")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    wanted = [str(Path(name)).removeprefix("flaxformer_lite/") for name in arguments.modules] or [
        f"{folder}/{name}.py" for folder, names in CORE.items() for name in names.split()
    ]
    everything = [
        (name, *mutant)
        for name in wanted
        for mutant in mutants((ROOT / "flaxformer_lite" / name).read_text(encoding="utf-8"))
    ]
    chance = random.Random(arguments.seed)
    # As many of each module, whatever its length.
    by_module = [chance.sample(own, len(own)) for own in ([m for m in everything if m[0] == name] for name in wanted)]
    last = arguments.skip + arguments.count
    sample = [own[i] for i in range(last) for own in by_module if i < len(own)][arguments.skip : last]
    os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    for heavy in HEAVY.split():  # once for all forks
        importlib.import_module(heavy)
    survivors = seen = 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made, "copy")
        skipped = shutil.ignore_patterns(".git", "runs", "__pycache__", ".*cache")
        shutil.copytree(ROOT, folder, ignore=skipped)
        for number, (name, line, words, source) in enumerate(sample, arguments.skip + 1):
            file = folder / "flaxformer_lite" / name
            original = file.read_text(encoding="utf-8")
            file.write_text(source, encoding="utf-8")
            started = time.monotonic()
            status = run_tests(folder, Path(name))
            file.write_text(original, encoding="utf-8")
            if status not in (0, 1, 2, None):  # 2: the module cannot be imported
                sys.exit(f"pytest ended with status {status} at the tests of {name}")
            survivors += status == 0
            seen += status in (1, 2)
            result = "SURVIVES" if status == 0 else "no end" if status is None else "seen"
            print(f"{number:>3} {result:<8} {time.monotonic() - started:>4.0f} s  {name}:{line}  {words}", flush=True)
    print(f"{seen} of {seen + survivors} mutants were seen (of {len(everything)} possible ones)")
    sys.exit(survivors > 0)


if __name__ == "__main__":
    main()
