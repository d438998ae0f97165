"""Three suites for one law: the fast one runs it on a few cases, the slow one on one of each kind, and by hand all are run."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

Case = TypeVar("Case")


def never(case: Any) -> bool:
    return False


def quick(
    cases: Iterable[Any], is_quick: Callable[[Any], bool] = never, is_rare: Callable[[Any], bool] = never
) -> list[Any]:
    """Marks those cases of a parametrized test as slow that the fast suite does without, and as rare those that CI does too."""

    def marks(case: Any) -> list[pytest.MarkDecorator]:
        if is_quick(case):
            return []
        return [pytest.mark.slow, pytest.mark.rare] if is_rare(case) else [pytest.mark.slow]

    return [pytest.param(case, marks=marks(case)) for case in cases]


def all_but(cases: Iterable[Case], every: int) -> set[Case]:
    """Returns the cases but each of so many, from the first on: those that are rare in a long table of like cases."""
    return {case for number, case in enumerate(cases) if number % every}


def all_but_first_of(labels: Iterable[str]) -> set[str]:
    """Returns the labels KIND/VARIANT but the first of each kind."""
    labels, first = [*labels], dict[str, str]()
    for label in labels:
        first.setdefault(label.partition("/")[0], label)
    return set(labels) - set(first.values())
