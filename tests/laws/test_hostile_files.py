"""Law: whatever a stranger's file holds, a command ends well or is refused in one line, within bounds of time and memory.

Each reader gets small files of ours with seeded mutations: bits flipped, bytes cut, doubled, zeroed or replaced; in JSON and in
names also values of another type, far too large, or nested without end. The mutations are the same in every run, and others with
another FLAXFORMER_LITE_SEED.
"""

import contextlib
import copy
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flaxformer_lite.files.tokenizers.kinds import load_tokenizer
from flaxformer_lite.workdir.folder import RunFolder
from tests.support.hf_folders import DATA
from tests.support.hostile import Victim
from tests.support.paths import FIXTURES
from tests.support.torch_files import tensor, write_pickles, write_torch

pytestmark = pytest.mark.slow

CASES = 60
"""Mutations of each reader's files."""
FIRST = int(os.environ.get("FLAXFORMER_LITE_SEED", "0")) * CASES
"""The seed of the first one."""
ODD: list[Any] = [
    *(None, True, -1, 0, 2**31, 2**63, 10**400, 1e308, float("nan")),
    *("", "x" * 100_000, "\x1b]0;x\x07", "../../etc/passwd"),
    *([], {}, [[]], {"content": 5}, ["a"] * 1000, "\ud800", [2**70], {"": {"": {}}}),
]


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    with Victim() as victim:
        yield victim


def changed_bytes(content: bytes, chance: random.Random) -> bytes:
    """Returns a damaged copy of a file."""
    at, size = chance.randrange(max(len(content), 1)), chance.choice((1, 8, 300))
    kind = chance.choice(("flip", "flip", "cut", "double", "zero", "random"))
    if kind == "cut":
        return content[:at]
    middle = {
        "flip": bytes(byte ^ 1 << chance.randrange(8) for byte in content[at : at + 1]),
        "double": content[at : at + size] * 2,
        "zero": bytes(size),
        "random": chance.randbytes(size),
    }[kind]
    return content[:at] + middle + content[at + (1 if kind == "flip" else size) :]


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the paths of all values in a JSON tree; of long lists and objects those of the first ones."""
    items = list(tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ())
    for name, value in items[:20]:
        yield (*path, name)
        yield from places(value, (*path, name))


def changed_json(content: bytes, chance: random.Random) -> bytes:
    """Returns a JSON file with another value in one place, or one that is no such file any more."""
    tree = copy.deepcopy(json.loads(content))
    paths = list(places(tree))
    if not paths or chance.random() < 0.1:
        return chance.choice((b"[" * 100_000, b'{"a":' * 100_000, b"5", b"", b"\xff\xfe", b'"x"'))
    *before, last = chance.choice(paths)
    place = tree
    for name in before:
        place = place[name]
    place[last] = chance.choice(ODD)
    return json.dumps(tree).encode()


def mutate(folder: Path, names: list[str], chance: random.Random) -> str:
    """Changes one of the files; returns its name."""
    name = chance.choice(names)
    path = folder / name
    content = path.read_bytes()
    is_json = path.suffix == ".json" and chance.random() < 0.8
    path.write_bytes((changed_json if is_json else changed_bytes)(content, chance))
    return name


def attack(
    victim: Victim, folder: Path, original: Path, names: list[str], words: Callable[[Path], list[str | Path]]
) -> None:
    """Runs the command of `words` on mutations of the files, and lists every case that did not end as it must."""
    complaints = []
    for seed in range(FIRST, FIRST + CASES):
        case = Path(shutil.copytree(original, folder / "case"))
        name = mutate(case, names, random.Random(seed))
        ending = victim.run(*words(case))
        if complaint := ending.complaint():
            complaints.append(f"seed {seed}, {name}: {complaint}")
        for made in (case, folder / "run"):
            shutil.rmtree(made, ignore_errors=True)
    assert not complaints, "\n".join(complaints)


HF = {
    "bert": ["config.json"],
    "llama": ["config.json"],
    "t5": ["config.json"],
    "weights": ["model.safetensors"],
    "sentences": ["modules.json", "1_Pooling/config.json", "config.json", "tokenizer.json", "tokenizer_config.json"],
    "tokenizer": ["tokenizer.json", "tokenizer_config.json"],
    "wordpiece": ["vocab.txt", "tokenizer_config.json"],
    "bpe": ["vocab.json", "merges.txt", "tokenizer_config.json"],
    "sentencepiece": ["source.spm", "target.spm", "vocab.json"],
}


@pytest.mark.parametrize("kind", HF)
def test_hugging_face_folders(kind: str, victim: Victim, tmp_path: Path) -> None:
    models = {"llama": "llama/yarn", "t5": "t5/model", "sentences": "minilm/hub_layout", "bpe": "gpt2/model"}
    models |= {"tokenizer": "minilm/hub_layout", "sentencepiece": "marian/shared"}
    folder = Path(shutil.copytree(DATA / models.get(kind, "bert/model"), tmp_path / "original"))
    tokenizers = {"wordpiece": "bert", "bpe": "gpt2", "sentencepiece": "marian"}
    if kind in tokenizers:
        shutil.copytree(FIXTURES / "tokenizers" / tokenizers[kind], folder, dirs_exist_ok=True)
    attack(victim, tmp_path, folder, HF[kind], lambda case: ["import", "hf", case, tmp_path / "run"])


OLDER = {
    "npz": ("x.npz", ["x.npz"]),
    "packed": ("x.npz", ["x.npz"]),
    "config": ("x.npz", ["bert_config.json"]),
    "tensorflow": ("bert_model.ckpt", ["bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"]),
    "torch": ("x.pt", ["x.pt"]),
    "pickles": ("x.bin", ["x.bin"]),
}


@pytest.mark.parametrize("kind", OLDER)
def test_files_of_older_systems(kind: str, victim: Victim, tmp_path: Path) -> None:
    original = Path(shutil.copytree(FIXTURES / "oracles/002_bert_ckpt", tmp_path / "original"))
    with np.load(FIXTURES / "oracles/002_bert_gelu.npz") as archive:
        arrays = {name: archive[name] for name in archive.files if name.startswith("param/")}
    (np.savez_compressed if kind == "packed" else np.savez)(original / "x.npz", **arrays)
    write_torch(original / "x.pt", arrays)
    sizes = {name: (x.shape, tuple(stride // 4 for stride in x.strides)) for name, x in arrays.items()}
    tree = {name: tensor("Float", name, *size) for name, size in sizes.items()}
    write_pickles(original / "x.bin", tree, {name: x.astype(np.float32).tobytes() for name, x in arrays.items()})
    weights, names = OLDER[kind]
    typed = lambda case: ["bert-tf", case / weights, "--config", case / "bert_config.json", tmp_path / "run"]  # noqa: E731
    attack(victim, tmp_path, original, names, lambda case: ["import", *typed(case)])


@pytest.mark.parametrize("name", ["config.json", "checkpoints"])
def test_run_folders(name: str, victim: Victim, tmp_path: Path) -> None:
    original = FIXTURES / "runs" / "format_1"
    files = [path.relative_to(original).as_posix() for path in sorted(original.rglob("*")) if path.is_file()]
    names = [file for file in files if file.startswith(name)]
    attack(victim, tmp_path, original, names, lambda case: ["inspect", case])


def test_metrics_and_tokenizers_of_runs(tmp_path: Path) -> None:
    """Read in this process: rows are skipped with a warning, a tokenizer is whole or a ValueError."""
    original = FIXTURES / "runs" / "format_1"
    for seed in range(5 * FIRST, 5 * (FIRST + CASES)):
        case = Path(shutil.copytree(original, tmp_path / "case", ignore=shutil.ignore_patterns("checkpoints")))
        mutate(case, ["metrics.jsonl", "tokenizer.characters.json"], random.Random(seed))
        assert all(isinstance(row, dict) for row in RunFolder(case).rows())
        with contextlib.suppress(ValueError):
            load_tokenizer(case).encode("ab")
        shutil.rmtree(case)
