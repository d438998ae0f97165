"""The contract between `Checkpoints` and a writer of checkpoints, and what the writers share."""

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
from jaxtyping import PyTree

TEMPORARY = ".orbax-checkpoint-tmp"
"""Orbax's mark in the name of an incomplete folder: at its end, or followed by a number."""

SAVE_SECONDS = 100 * 365 * 86_400
"""The longest save. Orbax reads the wall clock, which runs on while a machine sleeps, and jumps when it is set."""

SAVE_SECONDS_OF_SEVERAL = 20 * 86_400
"""The same for several processes, whose barriers count milliseconds in 32 bits."""


class Manager(Protocol):
    """All processes of a run call the same methods in the same order."""

    def save(self, step: int, state: PyTree, document: dict[str, object]) -> None:
        """Starts to save; returns once the state is copied. Deletes what the policy does not keep once the step is complete."""

    def steps(self) -> list[int]:
        """Returns the steps that are complete or being saved, without those to be deleted, ascending."""

    def delete(self, step: int) -> None: ...

    def wait(self) -> None:
        """Waits until the save in progress is complete. Raises the exception of the save, once."""

    def reload(self) -> None:
        """Looks up which steps are complete, after a save that failed."""

    def close(self) -> None: ...


class SavedStep(NamedTuple):
    step: int


def divide(policy: Any, steps: Collection[int]) -> tuple[set[int], list[int]]:
    """Returns the steps that the policy keeps, and those that it does not keep."""
    listed = [SavedStep(step) for step in sorted(steps)]
    kept = {at.step for at, keep in zip(listed, policy.should_preserve(listed, context=None), strict=True) if keep}
    return kept, sorted(set(steps) - kept)


def save_seconds() -> int:
    return SAVE_SECONDS if jax.process_count() == 1 else SAVE_SECONDS_OF_SEVERAL


def delete_incomplete(folder: Path, name: str = "") -> None:
    """Deletes checkpoints that a process left incomplete: all, or that of one name."""
    for incomplete in folder.glob(f"{name or '*'}{TEMPORARY}*"):
        shutil.rmtree(incomplete)
