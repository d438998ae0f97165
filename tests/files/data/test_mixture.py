"""Laws of mixtures: shares as worked by hand, every row equally often over all epochs, batches as functions of (seed, step)."""

import collections
from fractions import Fraction

import numpy as np
import pytest

from flaxformer_lite.core.data.batch_plan import PADDING_ROW, BatchPlan, Bucket, Mixing, Shares, part_weights
from flaxformer_lite.core.data.dataset import Dataset, MixedRecords
from flaxformer_lite.core.data.records import Lengths, TokenPair
from flaxformer_lite.core.data.token_arrays import TokenArrays
from flaxformer_lite.core.objectives import CausalLM, Seq2Seq
from flaxformer_lite.files.data import DataConfig, Dates, Mixture

BUCKETS = [Bucket(Lengths(5, 5), 4), Bucket(Lengths(9, 9), 4)]
TWO = (Dates(num_examples=7), Dates(split="held_out", num_examples=3))


def mixture(**settings) -> Mixture:
    return Mixture(sources=TWO, **settings)


def test_shares_by_hand():
    np.testing.assert_allclose(Mixing(weights=(3.0, 1.0)).shares([10, 10]), [0.75, 0.25])
    np.testing.assert_allclose(Mixing().shares([90, 10]), [0.9, 0.1])
    np.testing.assert_allclose(Mixing(temperature=2.0).shares([90, 10]), [0.75, 0.25])


def test_a_source_that_fits_no_bucket_gets_no_rows():
    shares = Shares(np.array([2, 2]), np.array([0.5, 0.5]))
    assert part_weights(np.array([0, 1, 2, 2]), shares, 2) == [[Fraction(1, 4), 0], [Fraction(1, 4), 0]]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"weights": (1.0,)}, r"mixture\.weights has 1 values but mixture\.sources has 2"),
        ({"weights": ()}, r"mixture\.weights is \(\)"),
        ({"weights": (1.0, 0.0)}, r"mixture\.weights is \(1\.0, 0\.0\): it must be values that are each above 0"),
        ({"weights": (1.0, float("nan"))}, r"mixture\.weights is \(1\.0, nan\): it must be"),
        ({"temperature": -1.0}, r"mixture\.temperature is -1\.0: it must be above 0"),
        ({"weights": (1.0, 2.0), "temperature": 5.0}, r"mixture\.temperature is 5\.0, but mixture\.weights"),
        ({"names": ("a", "a")}, r"mixture\.names is"),
        ({"names": ("a",)}, r"mixture\.names has 1 values"),
    ],
)
def test_what_does_not_fit_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        mixture(**settings)
    with pytest.raises(ValueError, match=r"mixture\.sources is \(\)"):
        Mixture(sources=())


def test_pairs_and_versions_are_those_of_the_sources():
    mixed = mixture()
    assert mixed.open() == [*TWO[0].open(), *TWO[1].open()]
    assert list(mixed.stream("data.train")) == mixed.open()
    assert mixed.versions() is None or mixed.versions() == [*TWO[0].versions(), *TWO[1].versions()]


def plan_of(seed: int = 5) -> BatchPlan:
    """20 examples of one source and 6 of another, short and long; the second has three quarters of the rows."""
    lengths = [Lengths(3 + 4 * (i % 2), 3) for i in range(26)]
    return BatchPlan(lengths, BUCKETS, seed, Shares([20, 6], np.array([0.25, 0.75])))


def examples_of(plan: BatchPlan, epoch: int) -> list[int]:
    n = plan.batches_per_epoch
    found = np.concatenate([plan.batch(step).examples for step in range(epoch * n, (epoch + 1) * n)])
    return found[found != PADDING_ROW].tolist()


def test_each_epoch_has_the_shares_and_all_epochs_every_row_equally_often():
    """Oracle: counts. 26 rows an epoch: 6.5 and 19.5 of them, but for less than one row of each length in all epochs so far;
    no row of a source is two turns ahead of another of its length."""
    plan, seen = plan_of(), collections.Counter()
    for epoch in range(9):
        found = examples_of(plan, epoch)
        assert len(found) == 26
        seen.update(found)
        assert abs(sum(number for i, number in seen.items() if i >= 20) - 19.5 * (epoch + 1)) < 2
        for even in (range(0, 20, 2), range(1, 20, 2), range(20, 26, 2), range(21, 26, 2)):
            times = [seen[i] for i in even]
            assert max(times) - min(times) <= 1
    assert min(seen.values()) >= 2


def test_rare_lengths_of_a_lightly_drawn_source_have_their_turns():
    """Oracle: shares by hand. Of 1,000 rows an epoch 10 are of the second source: 6.25 short, 2.5 middle and 1.25 long ones.

    Of its 8 rows each comes 1.25 times an epoch, in all epochs but for less than one row of each length.
    """
    lengths = [Lengths(3, 3)] * 992 + [Lengths(3, 3)] * 5 + [Lengths(8, 3)] * 2 + [Lengths(15, 3)]
    buckets = [*BUCKETS, Bucket(Lengths(16, 16), 4)]
    plan, seen = BatchPlan(lengths, buckets, 1, Shares([992, 8], np.array([0.99, 0.01]))), collections.Counter()
    steps = plan.batches_per_epoch
    for epoch in range(12):
        seen.update(found := examples_of(plan, epoch))
        assert plan.batches_per_epoch == steps and len(found) == 1000
    drawn = [sum(seen[i] for i in rows) for rows in (range(992, 997), range(997, 999), [999])]
    # 2.5 and 1.25 rows an epoch are rounded to whole rows of an epoch, since no other source has these lengths.
    assert abs(drawn[0] - 12 * 6.25) < 1 and drawn[1:] in ([24, 12], [36, 12])
    few = [Lengths(3, 3)] * 997 + [Lengths(3, 3)] * 2 + [Lengths(15, 3)]
    plan = BatchPlan(few, buckets, 1, Shares([997, 3], np.array([0.9995, 0.0005])))
    seen = collections.Counter(i for epoch in range(12) for i in examples_of(plan, epoch))
    assert seen[999] == 12 and 3 <= seen[997] + seen[998] <= 5


def test_a_mixed_batch_is_a_function_of_seed_and_step():
    plan, again, other = plan_of(), plan_of(), plan_of(6)
    for step in (40, 3, 17, 3):
        np.testing.assert_array_equal(plan.batch(step).examples, again.batch(step).examples)
    assert examples_of(plan, 0) != examples_of(other, 0)
    assert examples_of(plan, 0) != examples_of(plan, 1)


def records(start: int, number: int, source_tokens: int) -> TokenArrays:
    sides = [np.arange(start, start + number, dtype=np.int32).repeat(n).reshape(number, n) for n in (source_tokens, 2)]
    return TokenArrays.of([TokenPair(source, target) for source, target in zip(*sides, strict=True)])


def mixed(source_tokens: int = 3, **settings) -> MixedRecords:
    return MixedRecords([records(100, 40, source_tokens), records(200, 8, source_tokens)], Mixing(**settings))


def test_batches_hold_the_shares_of_each_source():
    config = DataConfig(
        tokens_per_batch=64, rows_multiple=4, bucket_lengths=(8,), max_source_length=8, max_target_length=8
    )
    dataset = Dataset.training(mixed(weights=(1.0, 3.0)), Seq2Seq(), config, 1)
    n = dataset.plan.batches_per_epoch
    first = np.concatenate([dataset.batch(step).inputs.source_tokens[:, 0] for step in range(n)])
    assert (first >= 200).sum() == 36 and ((first >= 100) & (first < 200)).sum() == 12
    fingerprints = {
        Dataset.training(mixed(**s), Seq2Seq(), config, 1).fingerprint
        for s in ({}, {"temperature": 2.0}, {"weights": (1.0, 3.0)})
    }
    assert len(fingerprints) == 3


def test_a_pack_has_documents_of_one_source():
    config = DataConfig(max_target_length=16, tokens_per_batch=64, rows_multiple=2)
    dataset = Dataset.training(mixed(0), CausalLM(), config, 1)
    for step in range(dataset.plan.batches_per_epoch):
        for row in dataset.batch(step).inputs.target_tokens:
            kinds = {int(token) // 100 for token in row if token >= 100}
            assert len(kinds) <= 1
