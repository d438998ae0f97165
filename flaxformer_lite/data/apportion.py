"""Whole numbers in the ratio of weights: the rows of a mixture's sources and lengths."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from jaxtyping import Float, Int


def apportion(number: int, weights: Float[np.ndarray, "P"]) -> Int[np.ndarray, "P"]:
    """Returns whole numbers in the ratio of the weights, whose sum is `number`: the largest remainders are rounded up.

    Reference: Hamilton's method of apportionment.
    """
    if not weights.any():
        return np.zeros(len(weights), np.int64)
    exact = number * weights / weights.sum()
    found = np.floor(exact).astype(np.int64)
    most = np.argsort(found - exact, kind="stable")[: number - int(found.sum())]
    found[most] += 1
    return found


def allot(number: int, weights: Sequence[Fraction]) -> list[int]:
    """Returns whole numbers in the ratio of the weights, whose sum is `number`; none is lower for a higher `number`.

    So a number that goes to somebody stays there while more are dealt out, one epoch after the other. The weights are exact
    because a rounded tie could break this.

    Reference: Webster's method of apportionment; Balinski & Young 1982, "Fair Representation".
    """
    total = sum(weights)
    found = [int(number * weight / total + Fraction(1, 2)) for weight in weights]
    places = range(len(weights))
    while sum(found) < number:
        _, i = max((weights[i] / (2 * found[i] + 1), -i) for i in places)
        found[-i] += 1
    while sum(found) > number:
        _, i = min((weights[i] / (2 * found[i] - 1), -i) for i in places if found[i])
        found[-i] -= 1
    return found
