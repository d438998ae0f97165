"""The one thread that computes: it takes jobs from the queue, answers many at once, and advances the open streams in turn."""

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from flaxformer_lite.tools.serve.job_queue import Job, JobQueue


@runtime_checkable
class Answering(Protocol):
    """The model, as the worker sees it. Both methods are called in the worker's thread only."""

    def answer(self, key: Any, items: Sequence[Any]) -> Sequence[Any]:
        """Returns one answer for each item."""

    def stream(self, key: Any, item: Any) -> Iterator[str]:
        """Yields parts of a text; the generator returns the answer to the item."""


class Stream(NamedTuple):
    """A text that is being generated."""

    job: Job
    parts: Iterator[str]


class Stopped(Exception):
    """The worker ended before it came to a job."""


class Worker:
    """Answers jobs in a thread of its own.

    Args:
        max_waiting: items that wait at most.
        max_together: items that are answered by one call at most.
        max_streams: streams that are open at once; further ones wait.
        together: the items to answer by one call, of so many that wait.
        observe: called after each call with its key, its number of items, and its seconds.
    """

    def __init__(
        self,
        model: Answering,
        *,
        max_waiting: int,
        max_together: int,
        max_streams: int,
        together: Callable[[int], int] = lambda count: count,
        observe: Callable[[Hashable, int, float], None] = lambda key, items, seconds: None,
    ) -> None:
        self.model, self.max_together, self.max_streams, self.observe = model, max_together, max_streams, observe
        self.queue, self.streams = JobQueue(max_waiting, together), list[Stream]()
        self.changed, self.closed = threading.Condition(), False
        self.thread = threading.Thread(target=self.work, name="model", daemon=True)
        self.thread.start()

    def submit(self, job: Job) -> None:
        """Adds a job. Raises: QueueFull, or Stopped after `close`."""
        with self.changed:
            if self.closed:
                raise Stopped
            self.queue.put(job)
            self.changed.notify()

    def abandon(self, job: Job) -> None:
        """Frees the place of a job that nobody waits for; what is computed for it already is dropped."""
        with self.changed:
            job.abandoned = True
            self.queue.remove(job)

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
                while not (self.queue.jobs or self.streams or self.closed):
                    self.changed.wait()
                if self.closed:
                    break
                jobs = self.queue.take(self.max_together, streams=len(self.streams) < self.max_streams)
            jobs = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            if jobs and jobs[0].emit is not None:
                self.streams.append(Stream(jobs[0], self.model.stream(jobs[0].key, jobs[0].items[0])))
            elif jobs:
                self.answer(jobs)
            for stream in tuple(self.streams):
                if not self.advance(stream):
                    self.streams.remove(stream)
        waiting = [job for job in self.queue.jobs if job.future.set_running_or_notify_cancel()]
        for job in [*waiting, *(stream.job for stream in self.streams)]:
            job.future.set_exception(Stopped())

    def answer(self, jobs: Sequence[Job]) -> None:
        """Answers jobs of one key by one call. If that fails each is tried alone: one job's fault is not the others'."""
        started, items = time.perf_counter(), [item for job in jobs for item in job.items]
        try:
            answers = iter(self.model.answer(jobs[0].key, items))
            found = [[next(answers) for _ in job.items] for job in jobs]
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
            for job in jobs if len(jobs) > 1 else ():
                self.answer([job])
            return
        self.observe(jobs[0].key, len(items), time.perf_counter() - started)
        for job, own in zip(jobs, found, strict=True):
            job.future.set_result(own)

    def advance(self, stream: Stream) -> bool:
        """Emits the next part of a stream; returns False once it is over or abandoned."""
        job, parts = stream
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
