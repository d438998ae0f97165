"""Two suites for one law: the fast one runs it on a few cases, the slow one on all the others."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def quick(cases: Iterable[Any], is_quick: Callable[[Any], bool]) -> list[Any]:
    """Marks those cases of a parametrized test as slow that the fast suite does without."""
    return [pytest.param(case, marks=[] if is_quick(case) else pytest.mark.slow) for case in cases]
