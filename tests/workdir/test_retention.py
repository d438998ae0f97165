"""Oracle: worked by hand. What a real folder keeps: test_checkpoints.py."""

from functools import partial

import pytest

from flaxformer_lite.workdir.retention import Retention

retention = partial(Retention, keep_latest=2, keep_best=1, best_metric="loss", best_mode="min")


def test_the_newest_and_the_best_are_kept():
    """Step 1 is the best; 4 is damaged, 6 interim: neither counts, but the newest step always stays."""
    rules = retention(damaged={4: "garbled"})
    for step, loss in ((1, 1.0), (2, 2.0), (3, float("nan")), (4, 0.5), (5, 3.0), (6, 0.1)):
        rules.record(step, {"metrics": {"loss": loss}, "interim": step == 6})
    assert rules.kept(range(1, 7)) == {1, 3, 5, 6}
    assert rules.ranked(range(1, 7)) == [4, 1, 2, 5]
    rules.record(6, {"metrics": None})  # written again, as a regular one
    assert rules.kept(range(1, 7)) == {1, 5, 6}


def test_of_interim_steps_only_the_newest_stays():
    rules = retention(keep_latest=1, keep_best=0, interim={5, 6})
    assert rules.kept(range(1, 7)) == {4, 6}


def test_the_best_may_be_the_highest():
    rules = retention(keep_latest=1, best_metric="bleu", best_mode="max")
    for step, bleu in ((1, 1.0), (2, 3.0), (3, 2.0)):
        rules.record(step, {"metrics": {"bleu": bleu}})
    assert rules.ranked(range(1, 4)) == [2, 3, 1] and rules.kept(range(1, 4)) == {2, 3}


def test_impossible_counts_are_refused():
    with pytest.raises(ValueError, match=r"^keep_latest is 0"):
        retention(keep_latest=0)
    with pytest.raises(ValueError, match=r"^keep_best is 1"):
        retention(keep_best=1, best_metric=None)
    with pytest.raises(ValueError, match=r"^keep_best is -1"):
        retention(keep_best=-1)


def test_without_a_metric_only_the_newest_are_kept():
    rules = retention(keep_best=0, best_metric=None)
    assert rules.kept(range(1, 6)) == {4, 5} and rules.ranked(range(1, 6)) == []
