"""The type checker of the test run, for modules whose arrays have shapes; mypy checks the others, at no cost to a call.

It prepares the checks of a function at the first call: most are never called by one worker.
"""

import functools
from collections.abc import Callable, Hashable
from pathlib import Path
from types import FunctionType
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

CONF = BeartypeConf(is_pep484_tower=True)
ROOT = Path(__file__).resolve().parent.parent.parent
WITH_ARRAYS = [
    path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    for path in sorted((ROOT / "flaxformer_lite").rglob("*.py"))
    if "from jaxtyping import" in path.read_text(encoding="utf-8")
]


CHECKED: dict[Hashable, Callable[..., Any]] = {}
"""The checks that were prepared. A function inside another is made anew at each call of that; its checks are the same ones."""


def checked(function: FunctionType) -> Callable[..., Any]:
    """Returns the checks of a function, which jaxtyping hands over without its body and with nothing of its closure."""
    annotations = tuple(function.__annotations__.items())
    key = (function.__module__, function.__qualname__, function.__code__, annotations, len(function.__defaults__ or ()))
    if key not in CHECKED:
        CHECKED[key] = beartype(conf=CONF)(function)
    return CHECKED[key]


def at_first_call(function: FunctionType) -> Callable[..., Any]:
    checks: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal checks
        if checks is None:
            checks = checked(function)
        return checks(*arguments, **options)

    return call


jaxtyping.install_import_hook(WITH_ARRAYS, f"{__name__}.at_first_call")
