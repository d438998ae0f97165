"""The type checker of the test run, for modules whose arrays have shapes; mypy checks the others, at no cost to a call.

It prepares the checks of a function at the first call: most are never called by one worker.
"""

import functools
from collections.abc import Callable
from pathlib import Path
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


def at_first_call(function: Callable[..., Any]) -> Callable[..., Any]:
    checked: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal checked
        if checked is None:
            checked = beartype(conf=CONF)(function)
        return checked(*arguments, **options)

    return call


jaxtyping.install_import_hook(WITH_ARRAYS, f"{__name__}.at_first_call")
