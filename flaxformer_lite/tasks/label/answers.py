"""Labels of the words of texts, read off the logits of their tokens: windows of long texts, words, and the spans of entities."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import MaxLen
from jaxtyping import Float

from flaxformer_lite.core.reading.objectives import OUTSIDE, LabelledWordTexts, continues
from flaxformer_lite.core.text import EncodedText
from flaxformer_lite.files.records.words import (
    Place,
    first_tokens,
    joined_words,
    overlapped,
    with_tokens,
    words_of_tokens,
)
from flaxformer_lite.files.text.words import units_of
from flaxformer_lite.tasks.task import Report, Task, Text, TextModel


def text_of(given: str | Sequence[str]) -> str:
    """Returns a text, or that of a list of words."""
    return given if isinstance(given, str) else joined_words(given)[0]


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


class WordsInWindows(NamedTuple):
    """The words of a text, and the windows of its tokens."""

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
    def of(
        cls, given: str | Sequence[str], tokens: Sequence[Place], room: int, whole: bool = False
    ) -> "WordsInWindows":
        """Returns the windows over a text or a list of words, whose tokens have these places in `text_of` it.

        whole: each word of a list is labelled by its first token, whatever units it has.
        """
        text, words = (given, None) if isinstance(given, str) else joined_words(given)
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
        self, logits: Sequence[Float[np.ndarray, "T C"]], before: int, objective: LabelledWordTexts
    ) -> LabelledWords:
        """Returns the labels, from the logits of each window. before: the number of special ids in front of each window."""
        places = [(self.best_window(token), token) for token in self.firsts.values()]
        rows = [logits[window][before + token - self.starts[window]] for window, token in places]
        z = np.array(rows, np.float64).reshape(len(rows), len(objective.labels))
        powers = np.exp(z - z.max(1, keepdims=True))
        best = z.argmax(1)
        probabilities = powers.max(1) / powers.sum(1)
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
            kind = objective.type_of(members[0].label) if members else ""
            if kind:
                score = sum(member.score for member in members) / len(members)
                spans.append(LabelledSpan(members[0].start, members[-1].end, kind, score))
        return LabelledWords(self.text, words, spans)


@dataclass(frozen=True)
class Label(Task[str | Sequence[str], LabelledWords]):
    """The labels of the words of each text, a string or a list of words, and the entities that they spell.

    Both are read in their `units_of`, as in training; units that one token reads together are one. They are the words of a
    string; a word of a list has the label of its first unit. A run without `data.train`, an imported one, reads words of lists
    whole, by their first piece. A text of more than `data.max_source_length` tokens is read in windows that overlap by half;
    each unit has the label from the window in which it has the most context. A word without a token is an O.
    """

    name = "label"
    reads = "words"
    asked = Text | Annotated[list[Text], MaxLen(100_000)]
    parts = 64

    def check(self, model: TextModel) -> None:
        self.require_records(model, "labels no words", "token_labels")

    def lengths(self, model: TextModel, asked: str | Sequence[str]) -> list[int]:
        return [model.length(text_of(asked))]

    def answered(self, model: TextModel, asked: Sequence[str | Sequence[str]], report: Report) -> list[LabelledWords]:
        config, tokenizer = model.config, model.tokenizer
        objective: Any = config.objective  # by `check`
        whole = [text_of(text) for text in asked]
        model.unknown.report(whole, report.warn)
        encoded = tokenizer.encode_spans(whole)
        around = tokenizer.with_special_tokens([-1]).tokens
        room = max(config.data.max_source_length - len(around) + 1, 1)
        whole_words = config.data.train is None
        read = [WordsInWindows.of(text, one.spans, room, whole_words) for text, one in zip(asked, encoded, strict=True)]
        for line, one in zip(report.lines, read, strict=True):
            lost = len(one.words) - len(one.first_units)
            if lost:
                report.warn(
                    f"line {line}: {lost} of its words have no token of this tokenizer, and get the label {OUTSIDE}"
                )
        windows = list[list[EncodedText]]()
        for one, of in zip(read, encoded, strict=True):
            windows.append([tokenizer.with_special_tokens(of.ids[start : start + room]) for start in one.starts])
        logits = model.class_logits(windows, report)
        return [one.labelled(of, around.index(-1), objective) for one, of in zip(read, logits, strict=True)]
