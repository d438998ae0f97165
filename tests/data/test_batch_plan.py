"""Laws of the plan: every example once an epoch, the same number of batches each epoch, a function of (seed, step)."""

import numpy as np

from flaxformer_lite.data.batch_plan import PADDING_ROW, BatchPlan, Bucket, bucket_indices, fewer_buckets, make_buckets
from flaxformer_lite.data.records import Lengths

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
    assert buckets == [
        Bucket(Lengths(10, 10), 8),
        Bucket(Lengths(24, 20), 4),
        Bucket(Lengths(30, 20), 4),
    ]


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
