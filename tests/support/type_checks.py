"""The type checker of the test run. It prepares the checks of a function at the first call: most are never called by one worker."""

import functools
from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

CONF = BeartypeConf(is_pep484_tower=True)


def at_first_call(function: Callable[..., Any]) -> Callable[..., Any]:
    checked: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal checked
        if checked is None:
            checked = beartype(conf=CONF)(function)
        return checked(*arguments, **options)

    return call
