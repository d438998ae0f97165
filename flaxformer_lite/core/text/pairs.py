"""Pairs of texts, and the records that readers make of them: token ids, arrays with a name, and the part that was read."""

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np  # a translation by CTranslate2 does without

ANSWER_FLAGS = "answers"
"""The array of a conversation: whether each token belongs to an answer, which the loss counts."""


class Pair(NamedTuple):
    """A source text with its target, or two texts to compare. A document is a target with an empty source."""

    source: str
    target: str
    label: str = ""
    """The class or the number that belongs to the texts; in JSON several classes, or the labels of words; empty without labels."""
    languages: tuple[str, ...] = ()
    """Codes of the languages of source and target; (): those of `data.languages.direction`."""
    has_candidates: bool = False
    """Whether the target has the candidates of a query, in JSON."""

    def as_json(self) -> dict[str, object]:
        """Returns the texts, and of the rest what differs from a plain pair."""
        return {name: value for name, value in self._asdict().items() if isinstance(value, str) or value}


class Extent(IntEnum):
    """The part of its pair that a record has."""

    WHOLE = 0
    PARTLY = 1
    """All but a part of the pair, such as some of its labels; `Tokenizers.refusal` says which part."""
    CUT = 2
    """Without the first turns of a conversation; without any token if already its last turn is too long."""
    REFUSED = 3
    """Nothing: the pair cannot be read."""


class EncodedPair(NamedTuple):
    """A pair as token ids, without special tokens."""

    source: list[int]
    target: list[int]
    label: str = ""
    extent: Extent = Extent.WHOLE
    arrays: Mapping[str, "np.ndarray"] = {}
    """Numbers that belong to the pair, of any length, by a name that says what they mean."""
