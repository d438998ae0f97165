"""Jobs that wait for the model: a plain queue without threads, clocks or models.

Requests that arrive while the model computes wait here, and those with equal keys are then answered by one call.
"""

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any


class QueueFull(Exception):
    """There is no room for another job."""


@dataclass(eq=False)
class Job:
    """The work of one request: one item or several, which one call may answer together with the items of other jobs."""

    key: Hashable
    """Jobs with equal keys may be answered together."""
    items: Sequence[Any]
    emit: Callable[[str], None] | None = None
    """Receives the parts of an answer while it is generated; None: the answer is returned as a whole."""
    future: Future[Any] = field(default_factory=Future)
    """The answers, one for each item; of a stream its one answer, after the last part."""
    abandoned: bool = False
    """Whether nobody waits for the answer any more."""


class JobQueue:
    """The waiting jobs, in the order of their arrival.

    Args:
        max_items: items of all waiting jobs together.
        well_filled: the number of items to answer by one call, of so many that wait under one key.
    """

    def __init__(self, max_items: int, well_filled: Callable[[int], int] = lambda count: count) -> None:
        self.max_items, self.well_filled, self.num_items = max_items, well_filled, 0
        self.jobs: dict[Job, None] = {}

    def put(self, job: Job) -> None:
        """Adds a job at the end. Raises: QueueFull if its items do not fit."""
        if self.num_items + len(job.items) > self.max_items:
            raise QueueFull
        self.jobs[job] = None
        self.num_items += len(job.items)

    def remove(self, job: Job) -> None:
        """Removes a job if it still waits."""
        if job in self.jobs:
            del self.jobs[job]
            self.num_items -= len(job.items)

    def take(self, max_items: int, *, streams: bool = True) -> list[Job]:
        """Removes and returns the jobs to answer next: the oldest, and later ones with its key, in order, up to `max_items` or
        `well_filled`.

        A stream is returned alone; without `streams` it keeps waiting, and the oldest other job is taken.
        """
        first = next((job for job in self.jobs if streams or job.emit is None), None)
        if first is None:
            return []
        taken, room = [first], max_items - len(first.items)
        for job in self.jobs if first.emit is None else ():
            if job is not first and job.emit is None and job.key == first.key and len(job.items) <= room:
                taken.append(job)
                room -= len(job.items)
        count = max_items - room
        most = self.well_filled(count)
        while count > most and len(taken) > 1:
            count -= len(taken.pop().items)
        for job in taken:
            self.remove(job)
        return taken
