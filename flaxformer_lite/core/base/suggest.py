"""The offer of a name that is spelled nearly as a mistyped one."""

import difflib
from collections.abc import Iterable


def suggest(name: str, names: Iterable[str], most: int = 1, cutoff: float = 0.6) -> str:
    """Returns the end of a message that offers the names most like a mistyped one; empty where none is like it."""
    near = difflib.get_close_matches(name, list(names), most, cutoff)
    return f"; perhaps you meant {' or '.join(near)}" if near else ""
