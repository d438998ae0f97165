"""The one thread that computes: jobs wait in a queue, those of one kind are answered by one call, open streams advance in turn."""

import itertools
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from flaxformer_lite.tools.serve.limits import Limits, Refusal


@dataclass(eq=False)
class Job:
    """The work of one request: one item or several, which one call may answer together with the items of other jobs."""

    key: Any
    """Jobs with equal keys may be answered together."""
    items: Sequence[Any]
    emit: Callable[[str], None] | None = None
    """Receives the parts of an answer while it is generated; None: the answer is returned as a whole."""
    future: Future[Any] = field(default_factory=Future)
    """The answers, one for each item; of a stream its one answer, after the last part."""
    abandoned: bool = False
    """Whether no client waits for the answer any more."""
    size: int = 0
    """As how many texts the items count; 0: each as one."""

    def __post_init__(self) -> None:
        self.size = self.size or len(self.items)


def take_jobs(waiting: list[Job], max_items: int, *, streams: bool = True) -> list[Job]:
    """Removes and returns the jobs to answer next: the oldest, and later ones with its key, up to `max_items` items.

    A stream is the only job returned; without `streams` it keeps waiting, and the oldest other job is taken.
    """
    first = next((job for job in waiting if streams or job.emit is None), None)
    if first is None:
        return []
    taken, count = [first], first.size
    for job in waiting if first.emit is None else ():
        if job is not first and job.emit is None and job.key == first.key and count + job.size <= max_items:
            taken.append(job)
            count += job.size
    for job in taken:
        waiting.remove(job)
    return taken


class Worker:
    """Answers jobs in a thread of its own.

    Args:
        model: has `answer(key, items)`, which returns an answer for each item, and `stream(key, item)`, a generator of parts that
            returns the answer. Both are called in the worker's thread only.
        observe: called after each call with its key, its number of items, and its seconds.
        groups: the batches that the model answers side by side; one has up to `limits.texts` items.
    """

    def __init__(
        self,
        model: Any,
        limits: Limits,
        observe: Callable[[Hashable, int, float], None] = lambda key, items, seconds: None,
        groups: int = 1,
    ) -> None:
        self.model = model
        self.limits = limits
        self.observe = observe
        self.most_items = limits.texts * groups
        self.waiting: list[Job] = []
        self.streams: list[tuple[Job, Iterator[str]]] = []
        self.changed = threading.Condition()
        self.closed = False
        self.thread = threading.Thread(target=self.work, name="model", daemon=True)
        self.thread.start()

    @property
    def num_waiting(self) -> int:
        return sum(job.size for job in tuple(self.waiting))

    def submit(self, job: Job) -> None:
        """Adds a job. Raises: Refusal if its items do not fit, or after `close`."""
        with self.changed:
            if self.closed:
                raise stopping()
            if self.num_waiting + job.size > self.limits.queue:
                message = f"the queue is full ({self.limits.queue} texts): try again, or send fewer texts in a request"
                raise Refusal(429, message, code="queue_full", retry_after=1)
            self.waiting.append(job)
            self.changed.notify()

    def abandon(self, job: Job) -> None:
        """Frees the place of a job that no client waits for; what is computed for it already is dropped."""
        with self.changed:
            job.abandoned = True
            if job in self.waiting:
                self.waiting.remove(job)

    def close(self, seconds: float) -> bool:
        """Refuses new jobs and those that wait, and returns whether the thread ended within `seconds`."""
        with self.changed:
            self.closed = True
            self.changed.notify()
        self.thread.join(seconds)
        return not self.thread.is_alive()

    def work(self) -> None:
        """Answers jobs until `close`; the thread's function."""
        while True:
            with self.changed:
                while not (self.waiting or self.streams or self.closed):
                    self.changed.wait()
                if self.closed:
                    break
                room = len(self.streams) < self.limits.streams
                jobs = take_jobs(self.waiting, self.most_items, streams=room)
            jobs = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            if jobs and jobs[0].emit is not None:
                self.streams.append((jobs[0], self.model.stream(jobs[0].key, jobs[0].items[0])))
            elif jobs:
                self.answer(jobs)
            self.streams = [(job, parts) for job, parts in self.streams if self.advance(job, parts)]
        left = [job for job in self.waiting if job.future.set_running_or_notify_cancel()]
        for job in [*left, *(job for job, _ in self.streams)]:
            job.future.set_exception(stopping())

    def answer(self, jobs: Sequence[Job]) -> None:
        """Answers jobs of one key by one call. If it fails, each job has its own call: one job's fault is not the others'."""
        started = time.perf_counter()
        items = list(itertools.chain.from_iterable(job.items for job in jobs))
        try:
            answers = iter(self.model.answer(jobs[0].key, items))
            results = []
            for job in jobs:
                results.append([next(answers) for _ in job.items])
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
            for job in jobs if len(jobs) > 1 else ():
                self.answer([job])
            return
        self.observe(jobs[0].key, sum(job.size for job in jobs), time.perf_counter() - started)
        for job, result in zip(jobs, results, strict=True):
            job.future.set_result(result)

    def advance(self, job: Job, parts: Iterator[str]) -> bool:
        """Emits the next part of a stream; returns False once it is over or abandoned."""
        if job.abandoned:
            return False
        assert job.emit is not None
        try:
            job.emit(next(parts))
        except StopIteration as end:
            job.future.set_result(end.value)
        except Exception as error:
            job.future.set_exception(error)
        else:
            return True
        return False


def stopping() -> Refusal:
    return Refusal(503, "the server is stopping: try again later", code="stopping", retry_after=5)
