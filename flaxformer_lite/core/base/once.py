"""Values that a process makes once for equal arguments, such as functions with the programs that JAX has compiled for them."""

import functools
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

KEPT_VALUES = 32
"""The values of a function that are kept, those used last: programs of larger models have several MiB each."""


def once(function: Callable[..., Value]) -> Callable[..., Value]:
    """Returns the function with a memory of its newest values. With arguments that have no hash nothing is remembered."""
    remembering = functools.lru_cache(KEPT_VALUES)(function)

    @functools.wraps(function)
    def remembered(*arguments: object) -> Value:
        try:
            hash(arguments)
        except TypeError:
            return function(*arguments)
        return remembering(*arguments)

    return remembered
