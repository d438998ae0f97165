"""Laws of the queue: order, jobs of one key together, room counted in items, streams alone."""

import pytest

from flaxformer_lite.tools.serve.job_queue import Job, JobQueue, QueueFull


def jobs_of(*keys: str, items: int = 1, stream: bool = False) -> list[Job]:
    return [Job(key, list(range(items)), emit=print if stream else None) for key in keys]


def filled(*jobs: Job, max_items: int = 100) -> JobQueue:
    queue = JobQueue(max_items)
    for job in jobs:
        queue.put(job)
    return queue


def test_the_oldest_comes_first_and_takes_those_of_its_key_along():
    first, second, third, fourth = jobs_of("a", "b", "a", "b")
    queue = filled(first, second, third, fourth)
    assert queue.take(100) == [first, third] and queue.num_items == 2
    assert queue.take(100) == [second, fourth] and queue.num_items == 0
    assert queue.take(100) == []


def test_a_call_gets_no_more_items_than_allowed_and_later_jobs_fill_the_rest():
    big, bigger, small = *jobs_of("a", items=3), *jobs_of("a", items=4), *jobs_of("a", items=2)
    queue = filled(big, bigger, small)
    assert queue.take(5) == [big, small]
    assert queue.take(2) == [bigger]  # alone it is always taken


def test_a_call_is_as_large_as_fills_its_batch():
    """Worked by hand: of 5 items 4 are wanted, and a job is not split; the oldest job is always taken."""
    jobs = [*jobs_of("a", items=2), *jobs_of("a"), *jobs_of("a", items=2)]
    queue = JobQueue(9, well_filled=lambda count: 4 if count == 5 else 1)
    for job in jobs:
        queue.put(job)
    assert queue.take(9) == jobs[:2] and queue.num_items == 2
    assert queue.take(9) == jobs[2:]


def test_room_is_counted_in_items_and_freed_by_removal():
    first, second, third = *jobs_of("a", items=3), *jobs_of("a", items=2), *jobs_of("b")
    queue = filled(first, second, max_items=5)
    with pytest.raises(QueueFull):
        queue.put(third)
    queue.remove(first)
    queue.remove(first)  # no effect
    queue.put(third)
    assert queue.num_items == 3 and queue.take(9) == [second]


def test_streams_are_taken_alone_and_only_where_there_is_a_place():
    stream, other, plain = *jobs_of("a", stream=True), *jobs_of("a", stream=True), *jobs_of("a")
    queue = filled(stream, other, plain)
    assert queue.take(9, streams=False) == [plain]
    assert queue.take(9, streams=False) == []
    assert queue.take(9) == [stream] and queue.take(9) == [other]
