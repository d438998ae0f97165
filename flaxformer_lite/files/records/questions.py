"""Questions on texts that have the answers, as SQuAD has them. The label of a pair has the place of each answer, in JSON."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from flaxformer_lite.core.reading.objectives import ANSWER, AnswerWindows
from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.core.text.pairs import EncodedPair, Extent, Pair
from flaxformer_lite.files.chats.messages import by_rows
from flaxformer_lite.files.records.base import Field, FileRow, Reading, Record
from flaxformer_lite.files.text.json_objects import field_value

READS_ANSWERS = 1
"""Changes with the way in which answers are read: stores of their tokens are then made anew."""


@dataclass(frozen=True, kw_only=True)
class Questions(Record):
    """A question on a text, with the answers that stand in the text. For the objective `answer_spans`.

    A row of SQuAD's own files, with `data`, `paragraphs` and `qas`, is all of its questions.
    """

    kind: Literal["questions"] = "questions"
    question: Field = "question"
    """Field of the question; `a.b` for a nested one. In a table a column: a number from 0, or a name in the header."""
    text: Field = "context"
    """Field of the text."""
    answers: Field = "answers"
    """Field of the answers: a list of objects with `text` and `answer_start`, in characters from 0; an object of two such lists; or
    the text of one answer. Training learns the first. An empty list or text, or `is_impossible`: the text has no answer."""
    start: Field | None = None
    """Field of the start of an answer that is a text; None: the answer stands in the text once."""

    reads, published, shares_target = "questions", True, True
    names, beside = ("question", "text"), ("is_impossible",)

    def rows(self, rows: Iterator[FileRow]) -> Iterator[FileRow]:
        """Yields the questions of all rows, those of SQuAD's nested form with their number."""
        for file, number, row in rows:
            if not isinstance(row, dict) or not isinstance(row.get("data"), list):
                yield file, number, row
                continue
            try:
                for count, (text, asked) in enumerate(questions_in(row["data"]), 1):
                    named = {self.question: asked["question"], self.text: text, self.answers: asked["answers"]}
                    yield file, count, {**asked, **named}
            except (KeyError, TypeError) as error:
                yield file, number, ValueError(f"it has data, but is not as SQuAD's files are ({error!r})")

    def label_in(self, row: Any) -> str:
        _, text = self.asked(row)
        given = field_value(row, self.answers)
        if str(row.get("is_impossible")).lower() in ("true", "1") or given in (None, ""):
            given = []
        elif isinstance(given, str):
            start = None if self.start is None else field_value(row, self.start)
            given = [{"text": given, "answer_start": start}]
        elif isinstance(given, Mapping):
            given = by_rows(given)
        if not isinstance(given, list):
            raise ValueError(
                f"the answers are {str(given)[:60]!r}: they must be a list, each with text and answer_start"
            )
        return json.dumps(list(dict.fromkeys(answer_span(answer, text) for answer in given)))

    @classmethod
    def reader(cls, tokenizers: Tokenizers, reading: Reading) -> Tokenizers:
        return QuestionTokenizers(tokenizers.source, tokenizers.target, reading.objective)


def questions_in(articles: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Returns the questions of articles in SQuAD's nested form, each with its text."""
    asked = list[tuple[Any, Any]]()
    for article in articles:
        for paragraph in article["paragraphs"]:
            asked += [(paragraph["context"], question) for question in paragraph["qas"]]
    return asked


def answer_span(answer: object, text: str) -> tuple[int, int]:
    """Returns the place of an answer in a text. Raises: ValueError if it does not stand there."""
    said, start = answer, None
    if isinstance(answer, Mapping):
        said, start = answer.get("text"), answer.get("answer_start")
    if not isinstance(said, str) or not said.strip():
        raise ValueError(
            f"the answer is {str(answer)[:60]!r}: it must have a text, and answer_start if the text has it twice"
        )
    if start in (None, ""):
        count = text.count(said)
        if count != 1:
            raise ValueError(f"the answer {said[:60]!r} stands in the text {count} times: give its answer_start")
        start = text.index(said)
    first = int(start) if str(start).isdecimal() else len(text)
    place = first, first + len(said)
    if text[slice(*place)] != said:
        raise ValueError(
            f"the answer {said[:60]!r} starts at {start}, where the text has {text[slice(*place)][:60]!r}: correct one of them, "
            "counted in characters from 0"
        )
    return place


def answer_texts(pair: Pair) -> list[str]:
    """Returns the right answers of a pair."""
    return [pair.target[start:stop] for start, stop in json.loads(pair.label)]


@dataclass(frozen=True)
class QuestionTokenizers(Tokenizers):
    """Reads questions with their texts, and the tokens of the first answer."""

    objective: AnswerWindows

    @property
    def reading(self) -> str:
        return f"questions {READS_ANSWERS} {self.objective.unanswerable}"

    def refusal(self, pair: Pair) -> str | None:
        if not pair.label:
            return "it has no answers: set the record of its source to Questions"
        if not json.loads(pair.label):
            return (
                None
                if self.objective.unanswerable
                else "it has no answer, but objective.unanswerable is False: set it to True"
            )
        (encoded,) = self.encode_pairs([pair])
        return "its answer has no token of this tokenizer" if encoded.extent else None

    def encode_pairs(self, pairs: Sequence[Pair]) -> Iterator[EncodedPair]:
        questions = self.source.encode_batch([pair.source for pair in pairs])
        texts = self.target.encode_spans([pair.target for pair in pairs])
        for pair, question, (ids, spans) in zip(pairs, questions, texts, strict=True):
            start, stop = next(iter(json.loads(pair.label or "[]")), (0, 0))
            tokens = [i for i, (first, behind) in enumerate(spans) if first < stop and start < behind]
            if tokens:
                yield EncodedPair(question, ids, arrays={ANSWER: np.array([tokens[0], tokens[-1]], np.int32)})
            elif not stop and pair.label and self.objective.unanswerable:
                yield EncodedPair(question, ids)
            else:  # reported with its file and line, by `refusal`
                yield EncodedPair([], [], extent=Extent.REFUSED)
