"""Batches that a thread makes while a step computes."""

import collections
import itertools
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from flaxformer_lite.core.data.dataset import Dataset, LocalRows
from flaxformer_lite.core.data.records import Example

AHEAD = 4
"""Batches that are made before they are asked for."""


def batches_ahead(
    data: Dataset[Example], start: int, stop: int, local_rows: LocalRows = np.arange
) -> Generator[Example, None, None]:
    """Yields batches `start` … `stop - 1`, made ahead of time in one thread: two threads would wait for each other."""
    steps = iter(range(start, stop))
    thread = ThreadPoolExecutor(1)
    try:
        ahead = collections.deque(
            thread.submit(data.batch, step, local_rows) for step in itertools.islice(steps, AHEAD)
        )
        while ahead:
            batch = ahead.popleft().result()
            ahead.extend(thread.submit(data.batch, step, local_rows) for step in itertools.islice(steps, 1))
            yield batch
    finally:
        thread.shutdown(cancel_futures=True)
