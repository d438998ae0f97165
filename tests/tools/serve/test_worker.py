"""Laws of queue and worker: order, together what waits, each job's own answers, faults and abandoned jobs harm no other, streams in
turn."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from flaxformer_lite.tools.serve.limits import Limits, Refusal
from flaxformer_lite.tools.serve.worker import Job, Worker, take_jobs

WAIT = 10.0


def jobs_of(*keys: str, items: int = 1, stream: bool = False) -> list[Job]:
    return [Job(key, list(range(items)), emit=print if stream else None) for key in keys]


def test_the_oldest_comes_first_and_takes_those_of_its_key_along():
    first, second, third, fourth = waiting = jobs_of("a", "b", "a", "b")
    left = list(waiting)
    assert take_jobs(left, 100) == [first, third] and left == [second, fourth]
    assert take_jobs(left, 100) == [second, fourth] and take_jobs(left, 100) == []


def test_a_call_gets_no_more_items_than_allowed_and_later_jobs_fill_the_rest():
    big, bigger, small = waiting = [*jobs_of("a", items=3), *jobs_of("a", items=4), *jobs_of("a", items=2)]
    left = list(waiting)
    assert take_jobs(left, 5) == [big, small]
    assert take_jobs(left, 2) == [bigger]  # alone it is always taken


def test_streams_are_taken_alone_and_only_where_there_is_a_place():
    waiting = [*jobs_of("a", stream=True), *jobs_of("a", stream=True), *jobs_of("a")]
    left = list(waiting)
    assert take_jobs(left, 9, streams=False) == waiting[2:] and take_jobs(left, 9, streams=False) == []
    assert take_jobs(left, 9) == waiting[:1] and take_jobs(left, 9) == waiting[1:2]


class Doubling:
    """A model that doubles numbers once it may go on, and fails at -1."""

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []
        self.may_go, self.started = threading.Event(), threading.Event()

    def answer(self, key: Any, items: Sequence[Any]) -> Sequence[Any]:
        self.calls.append(list(items))
        self.started.set()
        assert self.may_go.wait(WAIT)
        if -1 in items:
            raise ArithmeticError("minus one")
        return [2 * item for item in items]

    def stream(self, key: Any, item: Any) -> Iterator[str]:
        yield from f"{key}{item}"
        return item


def started(model: Doubling, **limits: int) -> Worker:
    return Worker(model, Limits(**{"queue": 9, "texts": 9, "streams": 2, **limits}))


def held(model: Doubling, worker: Worker) -> Job:
    """Returns a job that the worker computes, and with which it waits."""
    job = Job("a", [0])
    worker.submit(job)
    assert model.started.wait(WAIT)
    return job


def test_what_arrives_meanwhile_is_answered_by_one_call_and_nothing_is_mixed_up():
    model = Doubling()
    worker = started(model)
    held(model, worker)
    jobs = [Job("ab"[i % 2], [i, 10 * i]) for i in range(4)]
    for job in jobs:
        worker.submit(job)
    with pytest.raises(Refusal, match="the queue is full"):
        worker.submit(Job("a", [1, 2]))
    model.may_go.set()
    assert [job.future.result(WAIT) for job in jobs] == [[2 * i, 20 * i] for i in range(4)]
    assert model.calls == [[0], [0, 0, 2, 20], [1, 10, 3, 30]]
    assert worker.close(WAIT)


def test_the_fault_of_one_job_is_not_the_others():
    model = Doubling()
    worker = started(model)
    held(model, worker)
    good, bad, gone = Job("a", [1, 2]), Job("a", [-1, 3]), Job("a", [5])
    for job in (good, bad, gone):
        worker.submit(job)
    gone.future.cancel()
    model.may_go.set()
    assert good.future.result(WAIT) == [2, 4]
    with pytest.raises(ArithmeticError):
        bad.future.result(WAIT)
    assert model.calls == [[0], [1, 2, -1, 3], [1, 2], [-1, 3]]
    assert worker.close(WAIT)


def test_an_abandoned_job_frees_its_place_and_is_not_computed():
    model = Doubling()
    worker = started(model, queue=1)
    computing, waiting, later = held(model, worker), Job("a", [1]), Job("a", [2])
    worker.submit(waiting)
    worker.abandon(waiting)
    worker.submit(later)
    worker.abandon(computing)  # too late to stop it
    model.may_go.set()
    assert later.future.result(WAIT) == [4] and model.calls == [[0], [2]]
    assert worker.close(WAIT)


def test_streams_take_turns_and_an_abandoned_one_ends():
    model = Doubling()
    model.may_go.set()
    worker, heard = started(model), []
    held(model, worker)
    model.may_go.clear()
    model.started.clear()
    held(model, worker)
    jobs = [Job(key, [key], heard.append) for key in ("x1", "y2", "z3")]
    for job in jobs:
        worker.submit(job)
    model.may_go.set()
    assert [job.future.result(WAIT) for job in jobs] == ["x1", "y2", "z3"]
    assert "".join(heard) == "x" + "1y" + "x2" + "1y" + "2" + "z3z3"
    endless = Job("e", ["e" * 10_000], lambda part: worker.abandon(endless))
    worker.submit(endless)
    after = Job("a", [3])
    worker.submit(after)
    assert after.future.result(WAIT) == [6] and not endless.future.done()
    assert worker.close(WAIT)


def test_after_the_end_nothing_waits_for_ever():
    model = Doubling()
    worker = started(model)
    computing, waiting = held(model, worker), Job("a", [1])
    worker.submit(waiting)
    threading.Timer(0.05, model.may_go.set).start()
    assert worker.close(WAIT)
    assert computing.future.result(WAIT) == [0]
    with pytest.raises(Refusal, match="the server is stopping"):
        waiting.future.result(WAIT)
    with pytest.raises(Refusal, match="the server is stopping"):
        worker.submit(Job("a", [2]))
