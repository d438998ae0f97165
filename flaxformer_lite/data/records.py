"""Records: one example, as text and as token ids."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int


class Pair(NamedTuple):
    """A text and what it should become."""

    source: str
    target: str


class TokenPair(NamedTuple):
    """A pair as token ids, without special tokens."""

    source: Int[np.ndarray, "S"]
    target: Int[np.ndarray, "T"]


class Lengths(NamedTuple):
    """Room for source and target tokens, special tokens included."""

    source: int
    target: int
