"""Laws of the functional core: what it may import, what it may do, and how large it is."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flaxformer_lite.tasks import TASK_FOLDERS
from tests.support.measures import code_tokens
from tests.support.paths import ROOT
from tests.support.sources import PACKAGE, tree_of

CORE = PACKAGE / "core"
MODULES = sorted(CORE.rglob("*.py"))
LIBRARIES = {"numpy", "jax", "flax", "optax", "chex", "jaxtyping", "annotated_types"}
"""The third parties that the core may import."""
STANDARD = {
    *("abc", "bisect", "collections", "contextlib", "copy", "dataclasses", "difflib", "enum", "fnmatch", "fractions"),
    *("functools", "hashlib", "itertools", "json", "math", "operator", "re", "types", "typing"),
}
"""The modules of the standard library that the core may import: none of them touches the world."""
CALLS = {"open", "print", "input", "exec", "eval", "__import__"}
FILES_OF_NUMPY = {"load", "save", "savez", "loadtxt", "savetxt", "genfromtxt", "fromfile", "memmap"}
CODE_TOKENS = 104_620
"""The most code tokens of the core. A feature of it raises the number in its commit, with the reason."""


def imported(tree: ast.AST) -> Iterator[str]:
    """Yields the full name of each module that is imported, wherever the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


def forbidden(tree: ast.AST) -> list[str]:
    """Returns what a file of the core may not have: imports and calls, by name."""
    wrong = []
    for name in imported(tree):
        is_library = name.split(".")[0] in LIBRARIES | STANDARD
        if not (is_library or name.startswith("flaxformer_lite.core.")):
            wrong.append(name)
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    files = {f"{module}.{name}" for module in ("np", "jnp", "numpy") for name in FILES_OF_NUMPY}
    return wrong + [name for name in calls if name in CALLS | files or name.startswith("jax.debug.")]


def test_the_core_imports_nothing_that_touches_the_world():
    found = {str(path.relative_to(CORE)): forbidden(tree_of(path)) for path in MODULES}
    assert found and not {path: names for path, names in found.items() if names}


@pytest.mark.parametrize(
    "line",
    [
        *("import os", "from pathlib import Path", "import threading", "import logging", "import warnings"),
        *("import orbax.checkpoint", "import tokenizers", "from concurrent.futures import ThreadPoolExecutor"),
        *("from flaxformer_lite.base.console import warn", "import flaxformer_lite.files.text.files"),
        *("import sys", "import builtins", "import ctypes", "import datetime", "import importlib", "import pickle"),
        *("print('x')", "open('x')", "np.load('x')", "jax.debug.print('x')"),
    ],
)
def test_each_of_these_is_found(line: str):
    assert forbidden(ast.parse(f"def f():\n    {line}")), "nested imports and calls count too"


def test_the_core_has_at_most_this_size():
    number = sum(len(code_tokens(path)) for path in MODULES)
    assert number <= CODE_TOKENS, (
        f"the core has {number:,} code tokens: raise CODE_TOKENS with the reason, or remove some"
    )


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("x = 1  # a comment\n\n", 3),
        ('def f():\n    """Says what."""\n    return g(\n        x\n    )\n', 10),
        ("t = f'{a} and {f\"{b}\"} {c:{d}}'\n", 3),
        ("t = r'''lines''' + rb\"bytes\"\n", 4),
    ],
)
def test_code_tokens_by_hand(tmp_path: Path, code: str, number: int):
    file = tmp_path / "code.py"
    file.write_text(code, encoding="utf-8")
    assert len(code_tokens(file)) == number


PROGRAM = """
import functools, json, socket, subprocess, sys, threading
import jax, numpy as np
from flaxformer_lite.core.data import BatchShapes, TokenPair
from flaxformer_lite.core.data.dataset import Dataset
from flaxformer_lite.core.model import ModelConfig, Transformer
from flaxformer_lite.core.objectives import Seq2Seq
from flaxformer_lite.core.optim import OptimizerConfig
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.core.step import TrainTask, eval_step, train_step

EVENTS = {"open", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.system", "os.fork", "os.posix_spawn",
          "subprocess.Popen", "socket.connect", "socket.bind"}
listening, seen, start = False, [], threading.Thread.start

def watch(event, arguments):
    if listening and event in EVENTS:
        seen.append(event)

def start_watched(thread):  # Python 3.11 has no event of it
    if listening:
        seen.append("thread")
    start(thread)

sys.addaudithook(watch)
threading.Thread.start = start_watched

text = np.arange(4, 9)
shapes = BatchShapes(bucket_lengths=(8,), max_source_length=8, max_target_length=8, rows_multiple=4, tokens_per_batch=32)
data = Dataset.training([TokenPair(text, text[::-1])] * 8, Seq2Seq(), shapes, seed=0)
config = ModelConfig(vocab_size=12, d_model=8, num_heads=2, d_ff=8, num_encoder_layers=1, num_decoder_layers=1)
optimizer = OptimizerConfig().build(total_steps=9000, d_model=8)
task = TrainTask(model=Transformer(config), objective=Seq2Seq(), optimizer=optimizer, seed=0)
state = jax.jit(task.initialize)()
step, evaluate = (jax.jit(functools.partial(function, task)) for function in (train_step, eval_step))
decoder = Decoder(task.model, DecodeConfig(beam_size=2))

def everything(number, more):
    global state
    batch = data.batch(number)
    state, measured = step(state, batch)
    answers = decoder.generate({"params": state.params}, [[4, 5, 3]])
    jax.block_until_ready((measured, evaluate(state.params, batch)))
    more()

def bind():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))

MORE = {
    "nothing": lambda: None,
    "file": lambda: open("/dev/null").close(),
    "process": lambda: subprocess.run(["true"]),
    "thread": lambda: threading.Thread(target=int).start(),
    "socket": bind,
}
everything(0, lambda: None)  # compiles
found = {}
for number, (name, more) in enumerate(MORE.items(), 1):
    listening = True
    everything(number, more)
    listening = False
    found[name] = [*seen]
    seen.clear()
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_batch_a_step_an_evaluation_and_a_search_touch_nothing():
    """Law: after a first call has compiled, Python's audit hooks see no file, socket, process or thread; each would be seen."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("nothing") == []
    events = {"file": "open", "process": "subprocess.Popen", "thread": "thread", "socket": "socket.bind"}
    assert found.keys() == events.keys() and all(event in found[name] for name, event in events.items())


WITHOUT_JAX = (
    *("core.base.bounds", "core.text", "core.data", "core.search", "core.search.forced", "core.search.settings"),
    *("files.tokenizers", "files.chats.chat", "files.chats.messages", "files.text.terms", "files.text.tables"),
    *("metrics.translations", "engine.heads", "core.reading.objectives", "cli.commands.task"),
    *(f"tasks.{folder}.lines" for folder in TASK_FOLDERS.values()),
)


def test_texts_tasks_and_settings_of_decoding_need_no_jax():
    """Law: a process that only tokenizes, writes chats, reads lines of tasks or terms, or checks settings does not load JAX."""
    names = ", ".join(f"flaxformer_lite.{name}" for name in WITHOUT_JAX)
    code = f"import sys, {names}\nprint(*sorted({{'jax', 'jaxlib', 'flax', 'optax'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
