"""Flips bits in the files of a checkpoint, and counts what reading it then says: as Orbax does it alone, and as a run does.

python benchmarks/bit_flips.py [--flips 600] [--seed 0]

Both write the same toy state. Each flip is one bit of one of the checkpoint's files, and all bits are equally likely. The bit is
flipped back before the next one. Prints a table:

  reported    reading fails, or names the checkpoint as damaged
  wrong       reading returns other numbers than were written, without a word
  nothing     the numbers are those that were written
"""

import argparse
import collections
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import PyTree

from flaxformer_lite.workdir.checkpoints import Checkpoints, Retention

RETENTION = Retention(keep_latest=1, keep_best=0, best_metric=None, best_mode="min")


def toy_state(seed: int) -> PyTree:
    """Returns parameters like those of a small model: matrices of 64 KB, and vectors."""
    generator = np.random.default_rng(seed)
    return {
        f"layer_{i}": {
            "kernel": generator.normal(size=(128, 128)).astype(np.float32),
            "bias": generator.normal(size=128).astype(np.float32),
        }
        for i in range(8)
    }


def write_by_orbax(folder: Path, state: PyTree) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, state)


def read_by_orbax(folder: Path, abstract: PyTree) -> PyTree:
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder, abstract)


def write_as_a_run(folder: Path, state: PyTree) -> None:
    with Checkpoints(folder, RETENTION) as checkpoints:
        checkpoints.save(1, state, {})


def read_as_a_run(folder: Path, abstract: PyTree) -> PyTree:
    with Checkpoints(folder, RETENTION, read_only=True) as checkpoints:
        return checkpoints.restore(abstract)[1]


SIDES = {"Orbax alone": (write_by_orbax, read_by_orbax), "a run": (write_as_a_run, read_as_a_run)}


def flip(files: list[Path], bit: int) -> None:
    """Flips a bit, counted over all files."""
    for file in files:
        if bit < 8 * file.stat().st_size:
            with file.open("r+b") as opened:
                opened.seek(bit // 8)
                byte = opened.read(1)[0] ^ 1 << bit % 8
                opened.seek(bit // 8)
                opened.write(bytes([byte]))
            return
        bit -= 8 * file.stat().st_size


def outcome(read: Callable[[Path, PyTree], PyTree], folder: Path, state: PyTree) -> str:
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
    try:
        found = read(folder, abstract)
    except Exception:  # each library has its own
        return "reported"
    same = jax.tree.map(lambda x, y: np.asarray(x).tobytes() == y.tobytes(), found, state)
    return "nothing" if jax.tree.all(same) else "wrong"


def count(side: str, folder: Path, flips: int, seed: int) -> collections.Counter[str]:
    """Returns how many flips have each outcome."""
    write, read = SIDES[side]
    state, generator = toy_state(seed), np.random.default_rng(seed)
    write(folder, state)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert outcome(read, folder, state) == "nothing"
    outcomes = collections.Counter[str]()
    for bit in generator.integers(8 * sum(file.stat().st_size for file in files), size=flips).tolist():
        flip(files, bit)
        outcomes[outcome(read, folder, state)] += 1
        flip(files, bit)
    assert outcome(read, folder, state) == "nothing"
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    print(f"{options.flips} bits, one at a time | reported | wrong | nothing")
    for side in SIDES:
        with tempfile.TemporaryDirectory() as folder:
            outcomes = count(side, Path(folder) / "checkpoint", options.flips, options.seed)
        print(f"{side} | {outcomes['reported']} | {outcomes['wrong']} | {outcomes['nothing']}")


if __name__ == "__main__":
    main()
