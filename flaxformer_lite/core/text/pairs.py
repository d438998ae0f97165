"""The record that a reader makes of a pair of texts: token ids, arrays with a name, and the part of the pair that it has."""

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

import numpy as np

ANSWERS = "answers"
"""The array of a conversation: whether each token belongs to an answer, which the loss counts."""


class Extent(IntEnum):
    """The part of its pair that a record has."""

    WHOLE = 0
    PARTLY = 1
    """Not the part that `Tokenizers.refusal` names."""
    CUT = 2
    """Without the first turns of a conversation; without tokens if its last turn alone is too long."""
    REFUSED = 3
    """Nothing: the pair cannot be read."""


class EncodedPair(NamedTuple):
    """A pair as token ids, without special tokens."""

    source: list[int]
    target: list[int]
    label: str = ""
    extent: Extent = Extent.WHOLE
    arrays: Mapping[str, np.ndarray] = {}
    """Numbers that belong to the pair, of any length, by a name that says what they mean."""
