"""Names for special tokens that no text has."""

import secrets
from collections.abc import Sequence


def secret_names(names: Sequence[str]) -> dict[str, str]:
    """Returns a name for each, which no text has: none begins another one, or is in it."""
    secret = secrets.token_hex(16)
    return {name: f"\ufdef{secret}{number:08}" for number, name in enumerate(names)}
