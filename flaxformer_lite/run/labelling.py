"""Labels of the words of texts, read off the logits of their tokens: windows of long texts, words, and the spans of entities."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from flaxformer_lite.core.objectives.token_labels import OUTSIDE, continues
from flaxformer_lite.files.records.words import (
    LabelsWords,
    Place,
    first_tokens,
    joined,
    overlapped,
    with_tokens,
    words_of_tokens,
)
from flaxformer_lite.files.text.words import units_of


def text_of(given: str | Sequence[str]) -> str:
    """Returns a text, or that of a list of words."""
    return given if isinstance(given, str) else joined(given)[0]


class LabelledSpan(NamedTuple):
    """A part of a text, from its character `start` to before `end`, with a label."""

    start: int
    end: int
    label: str
    """The label of a word, such as "B-PER", or the type of an entity, such as "PER"."""
    score: float
    """The probability of a word's label; of an entity, the mean of its words; 0 for a word that has no token."""


class LabelledWords(NamedTuple):
    """A text with the labels of its words, and the entities that they spell."""

    text: str
    words: list[LabelledSpan]
    spans: list[LabelledSpan]


class Windows(NamedTuple):
    """The words of a text, and the windows of its tokens that are read one by one."""

    text: str
    words: list[Place]
    """Words as a list gave them, or the units of a text."""
    units: list[Place]
    """Places that are labelled: the units of the text that its tokens can tell apart, as in training, or whole words of a list."""
    firsts: dict[int, int]
    """The first token of each unit that has one."""
    starts: list[int]
    """The first token of each window: two neighbours share half of their tokens."""
    room: int
    """Tokens in a window."""

    @classmethod
    def of(cls, given: str | Sequence[str], tokens: Sequence[Place], room: int, whole: bool = False) -> "Windows":
        """Returns the windows over a text or a list of words, whose tokens have these places in `text_of` it.

        whole: each word of a list is labelled by its first token, whatever units it has.
        """
        text, words = (given, None) if isinstance(given, str) else joined(given)
        units = words if whole and words is not None else with_tokens(text, units_of(text), tokens)
        last = max(len(tokens) - room, 0)
        starts = [*range(0, last, max(room // 2, 1)), last]
        firsts = first_tokens(words_of_tokens(text, units, tokens))
        return cls(text, units if words is None else words, units, firsts, starts, room)

    @property
    def first_units(self) -> dict[int, int]:
        """The first unit of each word that has one with a token, counted among those."""
        return first_tokens(overlapped(self.words, [self.units[unit] for unit in self.firsts], last=False))

    def best_window(self, token: int) -> int:
        """Returns the window in which the side of a token with fewer neighbours has the most.

        A window at an end of the text has the most of its tokens anyway.
        """

        def context(window: int) -> int:
            before = token - self.starts[window]
            return min(before, self.room - 1 - before)

        last = bisect_right(self.starts, token)
        return max(range(max(last - 4, 0), last), key=context)

    def labelled(
        self, logits: Sequence[Float[np.ndarray, "T C"]], before: int, objective: LabelsWords
    ) -> LabelledWords:
        """Returns the labels, from the logits of each window, which has so many special ids before its tokens."""
        places = [(self.best_window(token), token) for token in self.firsts.values()]
        rows = [logits[window][before + token - self.starts[window]] for window, token in places]
        z = np.array(rows, np.float64).reshape(len(rows), len(objective.labels))
        powers = np.exp(z - z.max(1, keepdims=True))
        best, probabilities = z.argmax(1), powers.max(1) / powers.sum(1)
        units = [
            LabelledSpan(*self.units[unit], objective.labels[label], score)
            for unit, label, score in zip(self.firsts, best.tolist(), probabilities.tolist(), strict=True)
        ]
        words = [LabelledSpan(*place, OUTSIDE, 0.0) for place in self.words]
        for word, unit in self.first_units.items():
            words[word] = words[word]._replace(label=units[unit].label, score=units[unit].score)
        joins = np.array([False, *continues(best, objective.label_parts)])
        spans = list[LabelledSpan]()
        for group in np.split(np.arange(len(units)), np.flatnonzero(~joins)[1:]):
            members = [units[unit] for unit in group.tolist()]
            if members and (kind := objective.type_of(members[0].label)):
                score = sum(member.score for member in members) / len(members)
                spans.append(LabelledSpan(members[0].start, members[-1].end, kind, score))
        return LabelledWords(self.text, words, spans)
