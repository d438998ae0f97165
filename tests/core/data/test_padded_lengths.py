"""Chosen lengths against all choices, one by one; a table of how many pay, by the figures of two models."""

import itertools
import random
from collections.abc import Iterable

import numpy as np
import pytest

from flaxformer_lite.core.data.batch_plan import BatchPlan, Bucket, Shares, make_buckets
from flaxformer_lite.core.data.padded_lengths import Cost, candidate_lengths, padded_lengths, paying_lengths
from flaxformer_lite.core.data.records import Lengths


def test_rows_are_padded_with_as_few_positions_as_their_shapes_allow():
    """Oracle: all choices of lengths, one by one."""
    draw = random.Random(3)
    for longest, most in ((16, 3), (20, 4), (8, 9), (16, 1)):
        lengths = [min(longest, draw.randint(2, 9) + draw.randint(0, 9)) for _ in range(50)]

        def positions(chosen: Iterable[int], lengths: list[int] = lengths) -> int:
            return sum(min(end for end in chosen if end >= length) for length in lengths)

        chosen = padded_lengths(np.array(lengths), longest, most)
        numbers = range(min(most, longest // 2))
        choices = [some for number in numbers for some in itertools.combinations(range(2, longest, 2), number)]
        assert positions(chosen) == min(positions((*some, longest)) for some in choices)
        assert chosen[-1] == longest and len(chosen) <= most


def all_choices(
    lengths: list[Lengths], candidates: list[Bucket], cost: Cost, epochs: float, shares: Shares | None
) -> float:
    """The fewest seconds of any choice, by the plan of the batches themselves."""
    seconds = []
    for number in range(1, len(candidates) + 1):
        for some in itertools.combinations(candidates, number):
            plan = BatchPlan(lengths, some, 0, shares)
            if plan.placed.all() and len(plan.buckets) == number:
                seconds.append(number * cost.of_length + epochs * plan.positions_per_epoch * cost.of_position)
    return min(seconds)


@pytest.mark.parametrize("rows", [None, 4])
@pytest.mark.parametrize("in_epochs", [True, False])
@pytest.mark.parametrize("of_length", [0.0, 0.3, 3.0, 1e3])
def test_the_cheapest_lengths_are_chosen(rows: int | None, in_epochs: bool, of_length: float):
    """Oracle: all choices, each with the positions that its plan of batches has."""
    draw = random.Random(5)
    lengths = [Lengths(draw.randint(2, 8) + draw.randint(0, 7), draw.randint(2, 10)) for _ in range(90)]
    candidates = make_buckets(candidate_lengths(16, 2), Lengths(16, 10), 64, 2, rows)
    whole = BatchPlan(lengths, candidates, 0)
    counts = np.bincount([candidates.index(b) for b in plan_buckets(lengths, candidates)], minlength=len(candidates))
    epochs = 3.0 if in_epochs else 40 / sum(counts / [bucket.rows for bucket in candidates])
    cost = Cost(of_length, 1e-3, 40, 3.0 if in_epochs else None)
    chosen = [candidates[i] for i in paying_lengths(np.array(lengths), candidates, cost)]
    plan = BatchPlan(lengths, chosen, 0)
    found = len(chosen) * cost.of_length + epochs * plan.positions_per_epoch * cost.of_position
    assert plan.placed.all() and found == pytest.approx(all_choices(lengths, candidates, cost, epochs, None))
    assert of_length < 1e3 or len(chosen) == 1
    assert of_length > 0 or plan.positions_per_epoch <= whole.positions_per_epoch


def plan_buckets(lengths: list[Lengths], candidates: list[Bucket]) -> list[Bucket]:
    """The first candidate that holds each row."""
    return [
        next(b for b in candidates if b.lengths.source >= one.source and b.lengths.target >= one.target)
        for one in lengths
    ]


def test_a_source_of_a_mixture_counts_by_its_share():
    """Oracle: by hand. A length for short rows saves 24 positions a row: it pays for 1,000 rows, and not for 2."""
    lengths = np.array([[4, 4]] * 1000 + [[16, 16]] * 1000)
    candidates = make_buckets((4, 16), Lengths(16, 16), 64, 1, 1)
    cost = Cost(1.0, 1e-4, 0, 1.0)
    assert paying_lengths(lengths, candidates, cost) == [0, 1]
    rare_short = Shares((1000, 1000), np.array([0.001, 0.999]))
    assert paying_lengths(lengths, candidates, cost, rare_short) == [1]


def test_rows_that_fit_nowhere_and_a_longest_length_that_no_row_has_are_no_reason_for_a_length():
    candidates = make_buckets(candidate_lengths(64, 2), Lengths(64, 64), 4096, 64)
    free = Cost(0.0, 1.0, 0, 1.0)
    chosen = paying_lengths(np.array([[9, 3], [70, 3]]), candidates, free)
    assert [candidates[i].lengths.source for i in chosen] == [10]
    assert paying_lengths(np.array([[70, 3]]), candidates, free) == [len(candidates) - 1]


CAPTIONS = np.clip(np.random.default_rng(0).lognormal(3.1, 0.55, 5_000).astype(int), 4, 105)


@pytest.mark.parametrize(
    ("of_position", "steps", "number"),
    [(7e-5, 60, 1), (7e-5, 750, 3), (7e-5, 10_000, 9), (8.7e-4, 60, 3), (8.7e-4, 750, 9)],
    ids=["tiny 60", "tiny 750", "tiny 10,000", "MiniLM 60", "MiniLM 750"],
)
def test_as_many_lengths_as_pay(of_position: float, steps: int, number: int):
    """Oracle: by the seconds of a length (4) and a position that were measured on a CPU; a guard of the table."""
    sides = np.stack([CAPTIONS, np.zeros_like(CAPTIONS)], 1)
    candidates = make_buckets(candidate_lengths(128, 2), Lengths(128, 0), 0, 1, 16)
    assert len(paying_lengths(sides, candidates, Cost(4.0, of_position, steps))) == number


@pytest.mark.parametrize(
    ("longest", "step", "first", "number"),
    [(2, 2, 2, 1), (9, 2, 2, 5), (128, 8, 8, 16), (512, 2, 2, 256), (514, 2, 4, 129), (8192, 8, 32, 256)],
)
def test_candidates_are_at_most_256_multiples_and_the_longest(longest: int, step: int, first: int, number: int):
    lengths = candidate_lengths(longest, step)
    assert (lengths[0], lengths[-1], len(lengths)) == (first, longest, number)
    assert all(length % step == 0 for length in lengths[:-1])
