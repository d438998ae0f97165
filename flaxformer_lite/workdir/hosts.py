"""The processes of a run and its checkpoints: they share one folder, or each has its own and they share only a mirror.

Both classes have the same interface; all processes call the same methods in the same order.
"""

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from flaxformer_lite.core.parallel.sharding import allgather_text, gather_to_first


class OneFolder:
    """All processes write their shards into one folder, and compare a share of its files each."""

    writes = True
    """Whether this process takes part in a save."""

    def to_save(self, state: PyTree) -> PyTree:
        """Returns the state as a save gets it."""
        return state

    @property
    def share(self) -> tuple[int, int]:
        """The share i of n of the files that this process compares with their digests: of every n the i-th."""
        return jax.process_index(), jax.process_count()

    def agreed(self, reason: str | None) -> str | None:
        """Returns the first reason that a process has; None if none has one."""
        return next(filter(None, allgather_text(reason or "")), None)

    def barrier(self, name: str) -> None:
        """Waits until all processes are here."""
        multihost_utils.sync_global_devices(f"flaxformer_lite {name}")


class OwnFolders:
    """The first process alone writes, whole arrays that it gathers from the others; each compares all files of its own folder."""

    share = (0, 1)

    @property
    def writes(self) -> bool:
        return jax.process_index() == 0

    def to_save(self, state: PyTree) -> PyTree:
        return gather_to_first(state, np.asarray)

    def agreed(self, reason: str | None) -> str | None:
        return reason

    def barrier(self, name: str) -> None:
        """Does nothing: no other process reads this folder."""
