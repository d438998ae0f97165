"""The processes of the sides that a benchmark compares: on the same cores, with the same threads and memory allocator."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flaxformer_lite.cli.process import KEEP, TUNABLES


class Sizes(NamedTuple):
    """The sizes of a model with as many layers in the encoder as in the decoder."""

    layers: int
    d_model: int
    d_ff: int
    num_heads: int


SHAPES = {"tiny": Sizes(4, 128, 256, 4), "m30k": Sizes(3, 256, 1024, 4), "base": Sizes(6, 512, 2048, 8)}
"""The models of random weights that are compared."""
VOCAB_SIZE = 8000
MOST_SPREAD = 0.1
"""The largest spread of a baseline that ratios are reported for."""


def start(words: Sequence[str], threads: int) -> "subprocess.Popen[str]":
    """Starts Python with these words on the first `threads` cores."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "JAX_PLATFORMS": "cpu"}
    environment[TUNABLES] = KEEP
    if threads == 1:
        environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    return subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )


def ask(process: "subprocess.Popen[str]") -> Any:
    """Asks a side for one more answer."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def refusal(baseline: str, seconds: Sequence[float]) -> str | None:
    """Returns why the rounds allow no ratio: the slowest and the fastest of the baseline differ by more than 10 % of its median."""
    spread = (max(seconds) - min(seconds)) / statistics.median(seconds)
    if spread <= MOST_SPREAD:
        return None
    return (
        f"no ratio: the rounds of {baseline} differ by {spread:.0%}, more than {MOST_SPREAD:.0%}: try a quieter machine"
    )


def run_alone(words: Sequence[str], environment: Mapping[str, str]) -> Any:
    """Runs a program to its end, and returns the JSON of its last line; None if it fails, or there is no such program."""
    try:
        found = subprocess.run(words, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=False)
    except OSError:
        return None
    return json.loads(found.stdout.splitlines()[-1]) if found.returncode == 0 else None
