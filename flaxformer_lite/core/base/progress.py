"""Progress: how a long work tells its caller what it does, and how much of it is done."""

from collections.abc import Callable

ProgressCallback = Callable[[str, int, int], None]
"""Receives an activity, the number of its parts that are done, and the number of all; 0: unknown. An exception ends the work."""


def no_progress(activity: str, done: int, total: int) -> None:
    """Reports nothing: the default."""
