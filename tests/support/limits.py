"""The limit of float32: what two ways to compute the same numbers may differ by."""

from typing import Any

import numpy as np


def assert_close(found: Any, expected: Any, rtol: float = 1e-5, message: str = "") -> None:
    """Compares arrays within `rtol` of the largest number in them.

    Sums round by their largest parts, in an order that depends on the processor. 1e-5 is 84 units in the last place of that number.
    """
    expected = np.asarray(expected)
    largest = np.abs(expected[np.isfinite(expected)]).max(initial=0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=rtol * largest, err_msg=message)
