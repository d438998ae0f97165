"""The processes of a run and its checkpoints, which are in a folder or a bucket that all processes reach.

All processes call these functions in the same order.
"""

import jax
from jax.experimental import multihost_utils

from flaxformer_lite.core.parallel.sharding import allgather_text


def share() -> tuple[int, int]:
    """Returns the share i of n of the files that this process compares with their digests: of every n the i-th."""
    return jax.process_index(), jax.process_count()


def agreed(reason: str | None) -> str | None:
    """Returns the first reason that a process has; None if no process has a reason."""
    return next(filter(None, allgather_text(reason or "")), None)


def barrier(name: str) -> None:
    """Waits until all processes are here."""
    multihost_utils.sync_global_devices(f"flaxformer_lite {name}")
