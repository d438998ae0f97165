"""The pieces of a corpus that one process answers: by `--part`, or by its place among the processes of a cluster."""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass

CLUSTERS = (
    # SLURM_NTASKS is set in a batch script too, which is one process; only srun sets this.
    ("SLURM", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("the TPU pod", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES"),
)
"""Clusters, each with the variables of a process's number, from 0, and of all processes: their number, or their names."""


@dataclass(frozen=True)
class Part:
    """One of several equal shares of a corpus. Raises: ValueError if there is no such share."""

    number: int = 1
    """Counted from 1."""
    parts: int = 1
    origin: str = "no --part, no cluster"

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.parts:
            raise ValueError(
                f"the part is {self.number}/{self.parts}, by {self.origin}: the first number must be at least 1, and at most "
                "the second"
            )

    def takes(self, index: int) -> bool:
        """Returns whether the piece `index`, counted from 0, is one of this part."""
        return index % self.parts == self.number - 1


WHOLE = Part()


def typed_part(text: str) -> Part:
    """Returns the part of a text such as 3/8. Raises: ValueError for another text."""
    numbers = re.fullmatch(r"(\d+)/(\d+)", text)
    if numbers is None:
        raise ValueError(f"--part is {text!r}: it must be a number and the number of all parts, such as 3/8")
    return Part(int(numbers[1]), int(numbers[2]), "--part")


def part_of_process(environment: Mapping[str, str]) -> Part:
    """Returns the part of this process among those of `jax.distributed`, SLURM or a TPU pod; without any the whole.

    JAX is asked if it has been initialised for several processes, and is not initialised.
    """
    jax = sys.modules.get("jax")
    if jax is not None and jax.distributed.is_initialized():
        return Part(jax.process_index() + 1, jax.process_count(), "jax.distributed")
    for cluster, number, processes in CLUSTERS:
        # libtpu, loaded where there is no TPU, writes a warning into TPU_WORKER_ID
        if environment.get(number, "").isdecimal() and processes in environment:
            names = environment[processes]
            parts = int(names) if names.isdecimal() else len(names.split(","))
            return Part(int(environment[number]) + 1, parts, cluster)
    return Part()
