"""Parts that benchmarks share: a process with set cores, threads and memory, sides that take turns, the processor's name."""

import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
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
PAUSE = 0.3
"""Seconds before a turn. Threads of OpenMP look for new work for up to 0.2 s before they sleep, on the next side's time."""


# The process and its processor -----------------------------------------------------------------------------------------


def settle(threads: int) -> None:
    """Starts this process again on the first `threads` cores, with as many threads, and with the memory allocator of commands."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    wanted = {"OMP_NUM_THREADS": str(threads), "JAX_PLATFORMS": "cpu", TUNABLES: KEEP}
    if threads == 1:
        wanted["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    if not wanted.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | wanted)


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Returns the processor in words: its name, the cores of this process, its widest vectors, whether it multiplies bfloat16.

    cpuinfo: where Linux describes it. Virtual machines shorten names, so family and model are there too.
    """
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.exists() else ""
    fields = dict(re.findall(r"^(model name|cpu family|model|flags)\s*: (.*)$", text, re.MULTILINE))
    name = fields.get("model name", platform.processor() or platform.machine())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    words = f"{name}, {cores} of {os.cpu_count()} cores"
    if "flags" not in fields:
        return words
    flags = fields["flags"].split()
    vectors = next((known for known in ("avx512f", "avx2") if known in flags), "no avx2")
    half = " and ".join(known for known in ("avx512_bf16", "amx_bf16") if known in flags)
    return f"{words}, family {fields['cpu family']}, model {fields['model']}, {vectors}, {half or 'no bfloat16'}"


# Turns -----------------------------------------------------------------------------------------------------------------


class Times(NamedTuple):
    """Seconds of a call, of all threads."""

    user: float
    system: float
    wall: float

    @property
    def cpu(self) -> float:
        return self.user + self.system

    def per(self, number: int) -> "Times":
        """Returns the seconds of one of `number` equal parts."""
        return Times(*(seconds / number for seconds in self))


def timed(call: Callable[[], object]) -> Times:
    """Returns the seconds of a call."""
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    call()
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    return Times(after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime, wall)


def take_turns(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[Times]]:
    """Returns the seconds of each side's calls, round by round, after a round that is not counted."""
    times: dict[str, list[Times]] = {side: [] for side in calls}
    for _ in range(rounds + 1):
        for side, call in calls.items():
            time.sleep(PAUSE)
            times[side].append(timed(call))
    return {side: rounds_of[1:] for side, rounds_of in times.items()}


class Ratio(NamedTuple):
    """The median over the rounds, and the least and the most."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.least:.2f} to {self.most:.2f})"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Returns how many times as fast our side is, by the seconds that both need for the same, round by round."""
    each = [b / a for a, b in zip(ours, theirs, strict=True)]
    return Ratio(statistics.median(each), min(each), max(each))


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
