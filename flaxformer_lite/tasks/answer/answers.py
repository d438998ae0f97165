"""The part of a text that answers a question: the best place in all windows of the text, and the figures of SQuAD."""

import itertools
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack

import numpy as np
from jaxtyping import Float
from numpy.lib.stride_tricks import sliding_window_view

from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.reading.objectives import Window
from flaxformer_lite.files.records.questions import answer_texts
from flaxformer_lite.tasks.task import Report, Reporting, Task, Text, TextModel

COMPARED = 20
"""Answers to a question whose scores a probability is made of, as in the programs that report SQuAD's figures."""


class Question(NamedTuple):
    question: Text
    context: Text
    """The text that may have the answer."""


class FoundAnswer(NamedTuple):
    """A part of a text, from its character `start` to before `stop`."""

    answer: str
    """Empty: the text has no answer."""
    start: int
    stop: int
    score: float
    """The probability among the best answers: the softmax of their two logits together."""


@dataclass(frozen=True)
class Answer(Task[Question, FoundAnswer]):
    """The answer to each question, a part of its text. A long text is read in windows, as in training.

    It is the answer of at most `objective.longest_answer` tokens with the highest sum of its two logits. With
    `objective.unanswerable` it is empty if the first position of each window has a higher sum, by more than `objective.threshold`.
    """

    name = "answer"
    reads = "questions"
    asked = Question
    field = "questions"
    parts = 64

    def check(self, model: TextModel) -> None:
        self.require_records(model, "answers no questions", "answer_spans")

    def lengths(self, model: TextModel, asked: Question) -> list[int]:
        return [model.length(*asked)]

    def answered(self, model: TextModel, asked: Sequence[Question], report: Report) -> list[FoundAnswer]:
        objective: Any = model.config.objective  # by `check`
        tokenizer = model.tokenizer
        model.unknown.report(list(itertools.chain.from_iterable(asked)), report.warn)
        room = objective.room(model.config.data.max_source_length, tokenizer)
        questions = tokenizer.encode_batch([question for question, _ in asked])
        for line, question in zip(report.lines, questions, strict=True):
            if len(question) > room // 2:
                report.warn(f"line {line}: the question has {len(question)} tokens, and the first {room // 2} are read")
        texts = tokenizer.encode_spans([text for _, text in asked])
        windows = list[list[Window]]()
        for question, (ids, _) in zip(questions, texts, strict=True):
            starts = objective.starts(len(question), len(ids), room)
            windows.append([objective.window(question, ids, start, room, tokenizer) for start in starts])
        logits = model.class_logits([[one.read for one in of_text] for of_text in windows], report)
        return [
            best_answer(text, spans, of_text, found, objective)
            for (_, text), (_, spans), of_text, found in zip(asked, texts, windows, logits, strict=True)
        ]

    def texts(self, model: TextModel, pairs: Sequence[Pair], **report: Unpack[Reporting]) -> list[str]:
        asked = [Question(pair.source, pair.target) for pair in pairs]
        return [one.answer for one in self.answers(model, asked, **report)]

    def figures(self, pairs: Sequence[Pair], texts: Sequence[str]) -> dict[str, float]:
        """Returns the shares of exact matches and the mean F1 of words, each with the best of the right answers.

        Reference: Rajpurkar et al. 2016, arXiv:1606.05250, section 6.1; Rajpurkar et al. 2018, arXiv:1806.03822.
        """
        found = []
        for pair, text in zip(pairs, texts, strict=True):
            right = list(filter(None, map(words, answer_texts(pair)))) or [[]]
            said = words(text)
            is_exact = max(said == answer for answer in right)
            found.append([is_exact, max(shared(said, answer) for answer in right)])
        exact, f1 = np.mean(found, axis=0, dtype=np.float64).tolist()
        return {"answer_exact": exact, "answer_f1": f1}


def best_answer(
    text: str, spans: Sequence[tuple[int, int]], windows: Sequence[Window], logits: Sequence[Any], objective: Any
) -> FoundAnswer:
    """Returns the best answer in a text whose tokens have these places, by the logits of its windows."""
    scores = dict[tuple[int, int], float]()
    for one, of_window in zip(windows, logits, strict=True):
        for place, score in best_spans(one, np.asarray(of_window, np.float64), objective.longest_answer):
            scores[place] = max(score, scores.get(place, score))
    best = sorted(scores, key=lambda place: (-scores[place], place))[:COMPARED]
    none = min(float(np.sum(of_window[0], dtype=np.float64)) for of_window in logits)
    compared = np.array([scores[place] for place in best] + [none] * objective.unanswerable)
    powers = np.exp(compared - compared.max(initial=none))
    shares = (powers / powers.sum()).tolist()
    if not best or (objective.unanswerable and none - compared[0] > objective.threshold):
        return FoundAnswer("", 0, 0, shares[-1] if shares else 0.0)
    start, (_, stop) = spans[best[0][0]][0], spans[best[0][1]]
    answer = text[start:stop].strip()
    start = text.index(answer, start)  # a token may have the space before it
    return FoundAnswer(answer, start, start + len(answer), shares[0])


def best_spans(
    window: Window, logits: Float[np.ndarray, "T 2"], longest: int
) -> Iterator[tuple[tuple[int, int], float]]:
    """Yields the first and the last token of the best answers in a window, each with its score."""
    first, last = logits[window.before : window.before + window.size].T
    behind = np.append(last, np.full(longest, -np.inf))
    table = first[:, None] + sliding_window_view(behind, longest)[: window.size]
    for cell in np.argsort(-table, axis=None, kind="stable")[:COMPARED].tolist():
        start = window.start + cell // longest
        more = cell % longest
        score = table.flat[cell]
        if np.isfinite(score):
            yield (start, start + more), float(score)


def words(text: str) -> list[str]:
    """Returns the words of an answer in lower case, without punctuation and English articles."""
    bare = text.lower().translate(dict.fromkeys(map(ord, string.punctuation)))
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def shared(found: list[str], right: list[str]) -> float:
    """Returns the F1 score of the words of an answer; 1 if both have none."""
    both = (Counter(found) & Counter(right)).total()
    return 2 * both / (len(found) + len(right)) if found or right else 1.0
