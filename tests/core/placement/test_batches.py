"""Batches by hand, and their laws."""

import gc
import time
from collections.abc import Callable

import numpy as np
import pytest

from flaxformer_lite.core.placement.batches import (
    finely_padded_length,
    pad_rows,
    padded_length,
    padded_rows,
    plan_batches,
)


def test_plan_batches_by_hand():
    """Oracle: worked by hand: longest first, lengths to a power of two from 8, rows to 1, 8, … or what 64 tokens allow."""
    assert plan_batches([3, 20, 9, 16], 64) == [([1, 3], 2, 32), ([2, 0], 4, 16)]
    assert plan_batches([8] * 11, 64) == [(list(range(8)), 8, 8), ([8, 9, 10], 8, 8)]
    assert plan_batches([100, 5], 64) == [([0], 1, 128), ([1], 1, 8)]
    assert plan_batches([], 64) == []


def test_answers_limit_the_rows_by_hand():
    """Oracle: worked by hand: 64 tokens of texts allow 2,048 of answers: 2 rows of 1,024 tokens, 4 of 512, 1 of any number."""
    assert plan_batches([9, 8, 8, 8], 64, lambda length: 1024) == [([0, 1], 2, 16), ([2, 3], 2, 8)]
    assert plan_batches([5] * 9, 64, lambda length: 64 * length) == [
        ([0, 1, 2, 3], 4, 8),
        ([4, 5, 6, 7], 4, 8),
        ([8], 1, 8),
    ]
    assert plan_batches([5, 5], 64, lambda length: 4096) == [([0], 1, 8), ([1], 1, 8)]
    assert plan_batches([5] * 8, 64, lambda length: 256) == plan_batches([5] * 8, 64)


@pytest.mark.slow
def test_time_grows_with_the_number_of_sequences():
    """Law: 8 times as many batches take about 8 times as long, not 64 times.

    Other threads, and a collection of the objects of all tests, are not counted.
    """

    def seconds(count: int) -> float:
        started = time.thread_time()
        assert len(plan_batches([8] * count, 8)) == count
        return time.thread_time() - started

    gc.disable()
    try:
        few, many = (min(seconds(count) for _ in range(3)) for count in (8_000, 64_000))
    finally:
        gc.enable()
    assert many < 16 * few


def test_no_batch_has_more_than_twice_the_rows_of_its_sequences():
    """Oracle: worked by hand, from 5 sequences on."""
    counts = (0, 1, 2, 8, 9, 16, 17, 64, 65)
    assert [padded_rows(count) for count in counts] == [1, 1, 8, 8, 16, 16, 32, 64, 128]


def test_lengths_are_padded_by_hand():
    lengths = (1, 8, 9, 12, 13, 16, 17, 24, 25, 49, 96)
    assert [padded_length(length) for length in lengths] == [8, 8, 16, 16, 16, 16, 32, 32, 32, 64, 128]
    assert [finely_padded_length(length) for length in lengths] == [8, 8, 12, 12, 16, 16, 24, 24, 32, 64, 96]


@pytest.mark.parametrize(("padded", "most"), [(padded_length, 6), (finely_padded_length, 11)])
def test_plan_batches_has_few_shapes(padded: Callable[[int], int], most: int):
    """Law: every sentence once, no batch over the limit, and few shapes for a long list of any lengths."""
    lengths = np.random.default_rng(3).integers(0, 129, 5003).tolist()
    plan = plan_batches(lengths, 2048, padded=padded)
    assert sorted(i for batch in plan for i in batch.members) == list(range(5003))
    for batch in plan:
        assert len(batch.members) <= batch.rows and batch.rows * batch.length <= 2048
        assert max(lengths[i] for i in batch.members) <= batch.length
    assert len({(batch.rows, batch.length) for batch in plan}) <= most


def test_rows_are_padded_by_hand():
    """Oracle: worked by hand, on either side, an empty sequence and a full one too."""
    rows = [[5], [], [1, 2, 3]]
    assert pad_rows(rows, (4, 3), 9).tolist() == [[5, 9, 9], [9, 9, 9], [1, 2, 3], [9, 9, 9]]
    assert pad_rows(rows, (3, 3), left=True).tolist() == [[0, 0, 5], [0, 0, 0], [1, 2, 3]]
