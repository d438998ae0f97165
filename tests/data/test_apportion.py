"""Oracle: cases worked by hand; the laws of house monotonicity and of shares on weights that nobody chose."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flaxformer_lite.data.apportion import allot, apportion


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
