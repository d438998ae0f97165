"""Laws of the plan: every example once an epoch, the same number of batches each epoch, a function of (seed, step).

Of `allot` and `apportion`: cases worked by hand; house monotonicity, and shares on weights that nobody chose.
"""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flaxformer_lite.core.data.batch_plan import (
    PADDING_ROW,
    BatchPlan,
    Bucket,
    allot,
    apportion,
    bucket_indices,
    fewer_buckets,
    make_buckets,
)
from flaxformer_lite.core.data.records import Lengths

BUCKETS = [Bucket(Lengths(5, 5), 12), Bucket(Lengths(9, 7), 8)]


def some_lengths(number: int = 101) -> list[Lengths]:
    rng = np.random.default_rng(3)
    return [
        Lengths(int(s), int(t)) for s, t in zip(rng.integers(2, 12, number), rng.integers(2, 9, number), strict=True)
    ]


def test_an_example_belongs_to_the_first_bucket_that_holds_both_sides():
    """Oracle: worked by hand."""
    lengths = [Lengths(5, 5), Lengths(6, 5), Lengths(5, 6), Lengths(9, 7), Lengths(10, 2), Lengths(2, 8)]
    assert bucket_indices(lengths, BUCKETS).tolist() == [0, 1, 1, 1, 2, 2]


def test_every_example_that_fits_comes_once_an_epoch():
    """Oracle: the multiset of examples of three epochs, and the same number of batches in each."""
    lengths = some_lengths()
    plan = BatchPlan(lengths, BUCKETS, seed=5)
    fits = sorted(i for i, length in enumerate(lengths) if length.source <= 9 and length.target <= 7)
    for epoch in range(3):
        steps = range(epoch * plan.batches_per_epoch, (epoch + 1) * plan.batches_per_epoch)
        seen = np.concatenate([plan.batch(step).examples for step in steps])
        assert sorted(seen[seen != PADDING_ROW].tolist()) == fits


def test_every_batch_has_its_buckets_rows_and_lengths_that_fit():
    lengths = some_lengths()
    plan = BatchPlan(lengths, BUCKETS, seed=5)
    for step in range(plan.batches_per_epoch):
        bucket, examples = plan.batch(step)
        assert len(examples) == bucket.rows
        for i in examples[examples != PADDING_ROW]:
            assert lengths[i].source <= bucket.lengths.source
            assert lengths[i].target <= bucket.lengths.target


def test_the_plan_is_a_function_of_seed_and_step():
    """Oracle: another plan, read in another order; another seed and another epoch differ."""
    lengths = some_lengths()
    plan, again, other = (
        BatchPlan(lengths, BUCKETS, seed=5),
        BatchPlan(lengths, BUCKETS, seed=5),
        BatchPlan(lengths, BUCKETS, seed=6),
    )
    steps = [31, 2, 17, 2]
    for step in steps:
        assert plan.batch(step).bucket == again.batch(step).bucket
        np.testing.assert_array_equal(plan.batch(step).examples, again.batch(step).examples)
    n = plan.batches_per_epoch
    order = [tuple(plan.batch(step).examples) for step in range(n)]
    assert order != [tuple(other.batch(step).examples) for step in range(n)]
    assert order != [tuple(plan.batch(step).examples) for step in range(n, 2 * n)]


def test_buckets_hold_about_tokens_per_batch():
    """Oracle: worked by hand. 100 / 10 = 10 rows, rounded to 8; 100 / 24 rounds to 4; the last length is the longest."""
    buckets = make_buckets((10, 24, 50), Lengths(30, 20), tokens_per_batch=100, rows_multiple=4)
    assert buckets == [Bucket(Lengths(10, 10), 8), Bucket(Lengths(24, 20), 4), Bucket(Lengths(30, 20), 4)]


def test_a_batch_in_rows_has_them_at_every_length():
    assert [bucket.rows for bucket in make_buckets((8, 64), Lengths(90, 20), 4096, 64, rows=6)] == [6, 6, 6]


def test_rows_never_fall_below_the_multiple():
    assert make_buckets((10,), Lengths(1000, 1000), tokens_per_batch=64, rows_multiple=8)[-1].rows == 8


def test_an_evaluation_joins_buckets_that_fill_no_batch():
    """Oracle: by hand. The rows of 8 and 12 join 16 and fill it; 20 stays, as 64 is over twice as long; 32 is not in use."""
    buckets = [Bucket(Lengths(n, n), 8) for n in (8, 12, 16, 20, 32, 64)]
    lengths = [Lengths(n, 2) for n in (8, 8, 12, 12, 13, 14, 15, 16, 18, 60)]
    assert [bucket.lengths.source for bucket in fewer_buckets(lengths, buckets)] == [16, 20, 64]
    assert fewer_buckets([Lengths(7, 7)] * 8 + [Lengths(9, 9)], buckets) == buckets[:2]
    assert fewer_buckets([Lengths(7, 7)] * 7 + [Lengths(9, 9)], buckets) == buckets[1:2]
    assert fewer_buckets([Lengths(99, 99)], buckets) == buckets


def test_all_that_fits_is_still_evaluated():
    lengths = some_lengths()
    whole, joined = (BatchPlan(lengths, b, 0) for b in (BUCKETS, fewer_buckets(lengths, BUCKETS)))
    assert joined.placed.tolist() == whole.placed.tolist()


def test_an_epoch_has_no_more_batches_than_its_examples_fill():
    """Oracle: by hand. 13 rows in batches of 12, and 8 in one of 8."""
    plan = BatchPlan([Lengths(5, 5)] * 13 + [Lengths(9, 7)] * 8, BUCKETS, seed=5)
    assert plan.batches_per_epoch == 3 and plan.positions_per_epoch == 2 * 12 * 10 + 8 * 16


def test_apportion_by_hand():
    """Oracle: Hamilton's method; the sum is exact, and nothing goes to a weight of 0."""
    assert apportion(10, np.array([0.5, 0.25, 0.25])).tolist() == [5, 3, 2]
    assert apportion(7, np.array([1.0, 0.0, 1.0])).tolist() == [4, 0, 3]
    assert apportion(3, np.zeros(2)).tolist() == [0, 0]


def test_allot_by_hand():
    """Oracle: Webster's method: the next one goes to the largest weight / (2 n + 1), the first of equal ones."""
    assert [allot(n, [Fraction(3, 4), Fraction(1, 4)]) for n in range(6)] == [
        [0, 0],
        [1, 0],
        [2, 0],
        [2, 1],
        [3, 1],
        [4, 1],
    ]
    assert allot(3, [Fraction(1), Fraction(0), Fraction(1)]) == [2, 0, 1]
    assert allot(10**9, [Fraction(1, 3), Fraction(1, 7)]) == [700_000_000, 300_000_000]


WEIGHTS = st.lists(st.fractions(0, 1), min_size=1, max_size=9).filter(any)


@given(WEIGHTS, st.integers(0, 10**6), st.integers(0, 40))
def test_more_to_deal_out_takes_nothing_away(weights: list[Fraction], number: int, more: int):
    before, after = allot(number, weights), allot(number + more, weights)
    assert (sum(before), sum(after)) == (number, number + more)
    assert all(a <= b for a, b in zip(before, after, strict=True))
    assert all(found == 0 for found, weight in zip(after, weights, strict=True) if not weight)


@given(WEIGHTS, st.integers(0, 40))
def test_all_at_once_are_one_after_the_other(weights: list[Fraction], number: int):
    """Oracle: Webster's method, slowly: each goes to the largest weight / (2 n + 1), the first of equal ones."""
    slow = [0] * len(weights)
    for _ in range(number):
        quotients = [weight / (2 * n + 1) for weight, n in zip(weights, slow, strict=True)]
        slow[quotients.index(max(quotients))] += 1
    assert allot(number, weights) == slow


@given(st.fractions(Fraction(1, 1000), 1), st.integers(0, 10**6))
def test_of_two_each_has_its_share_but_for_less_than_one(weight: Fraction, number: int):
    weights = [weight, Fraction(1)]
    for found, own in zip(allot(number, weights), weights, strict=True):
        assert abs(found - number * own / sum(weights)) < 1
