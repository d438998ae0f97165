"""Oracles: counts of batches merged by hand. How the loop evaluates: test_loop.py."""

import numpy as np

from flaxformer_lite.objectives import Seq2Seq
from flaxformer_lite.objectives.losses import LossTerm, PerRowMetric
from flaxformer_lite.training.evaluation import merge_counts, report


def test_sums_and_counts_are_added_in_float64():
    parts = [LossTerm(np.float32(2**24), np.float32(1)), LossTerm(np.float32(1), np.float32(2))]
    merged = merge_counts(parts)
    assert (merged.sum, merged.count) == (2**24 + 1, 3)


def test_rows_of_no_weight_are_left_out():
    parts = [PerRowMetric(np.array([1.0, 9.0]), np.array([1.0, 0.0])), PerRowMetric(np.array([2.0]), np.array([0.5]))]
    merged = merge_counts(parts)
    assert merged.values.tolist() == [1.0, 2.0] and merged.weights.tolist() == [1.0, 0.5]


def test_sources_together_are_the_mean_over_all_their_tokens():
    """Oracle: by hand; losses 6/2 and 3/4 of two sources, whose batches are one list together."""
    terms = {name: [LossTerm(np.float32(6), np.float32(2))] for name in ("loss", "accuracy")}
    others = {name: [LossTerm(np.float32(3), np.float32(4))] for name in ("loss", "accuracy")}
    found = [report(Seq2Seq(), *counted)["loss"] for counted in ((terms,), (others,), (terms, others))]
    assert found == [3.0, 0.75, 1.5]
