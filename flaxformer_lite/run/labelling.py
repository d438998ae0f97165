"""Labels of the words of texts, read off the logits of their tokens: windows of long texts, words, and the spans of entities."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from flaxformer_lite.core.objectives.token_labels import OUTSIDE, continues
from flaxformer_lite.files.text.word_labels import (
    LabelsWords,
    Place,
    first_tokens,
    joined,
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
    """Words as a list gave them, or those of a text that its tokens can tell apart."""
    firsts: dict[int, int]
    """The first token of each word that has one."""
    starts: list[int]
    """The first token of each window: two neighbours share half of their tokens."""
    room: int
    """Tokens in a window."""
    number: int
    """Tokens in the text."""

    @classmethod
    def of(cls, given: str | Sequence[str], tokens: Sequence[Place], room: int) -> "Windows":
        """Returns the windows over a text or a list of words, whose tokens have these places in `text_of` it."""
        if isinstance(given, str):
            text, words = given, with_tokens(given, units_of(given), tokens)
        else:
            text, words = joined(given)
        last = max(len(tokens) - room, 0)
        starts = [*range(0, last, max(room // 2, 1)), last]
        return cls(text, words, first_tokens(words_of_tokens(text, words, tokens)), starts, room, len(tokens))

    def best_window(self, token: int) -> int:
        """Returns the window in which the side of a token with fewer neighbours has the most; an end of the text counts as many."""

        def context(window: int) -> int:
            start, stop = self.starts[window], self.starts[window] + self.room
            before = token - start if start else self.number
            return min(before, stop - 1 - token if stop < self.number else self.number)

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
        words = [LabelledSpan(*place, OUTSIDE, 0.0) for place in self.words]
        for word, label, score in zip(self.firsts, best.tolist(), probabilities.tolist(), strict=True):
            words[word] = words[word]._replace(label=objective.labels[label], score=score)
        joins = np.array([False, *continues(best, objective.label_parts)])
        spans = list[LabelledSpan]()
        for group in np.split(np.array([*self.firsts], np.int64), np.flatnonzero(~joins)[1:]):
            members = [words[word] for word in group.tolist()]
            if members and (kind := objective.type_of(members[0].label)):
                score = sum(member.score for member in members) / len(members)
                spans.append(LabelledSpan(members[0].start, members[-1].end, kind, score))
        return LabelledWords(self.text, words, spans)
