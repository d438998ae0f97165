"""Sentinels in the place of spans, worked by hand; the rest is tested through the objectives."""

import numpy as np
import pytest

from flaxformer_lite.objectives.corruption import span_counts, with_sentinels


def test_spans_by_hand():
    """10 tokens, two spans of two: sentinels 28 and 27 stand for them, and name them in the target."""
    text = np.arange(4, 14)
    left_out = np.array([0, 0, 1, 1, 0, 0, 0, 1, 1, 0], bool)
    assert with_sentinels(text, left_out, 28).tolist() == [4, 5, 28, 8, 9, 10, 27, 13]
    assert with_sentinels(text, ~left_out, 28).tolist() == [28, 6, 7, 27, 11, 12, 26]
    assert with_sentinels(text[:0], left_out[:0], 28).tolist() == []


@pytest.mark.parametrize(
    ("length", "counts"), [(0, (0, 0)), (1, (0, 0)), (2, (1, 1)), (3, (1, 1)), (20, (3, 1)), (100, (15, 5))]
)
def test_spans_have_at_least_one_token_and_never_all(length: int, counts: tuple[int, int]):
    """By hand: 15 % of the tokens in spans of 3."""
    assert span_counts(length, 0.15, 3.0) == counts
