"""A task that the package does not have: where words are in a text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import pytest
from annotated_types import Ge, Le

from flaxformer_lite.tasks import tasks
from flaxformer_lite.tasks.task import Report, Task, Text, TextModel
from flaxformer_lite.tools.serve import endpoints, runs


class Question(NamedTuple):
    word: Text
    text: Text


class Place(NamedTuple):
    found: str
    start: int
    share: float


@dataclass(frozen=True)
class Find(Task[Question, list[Place]]):
    """The places of a word in a text, without a model."""

    top: Annotated[int, Ge(1), Le(9)] = 2

    name = "find"
    reads = "questions"
    asked = Question
    field = "questions"

    def check(self, model: TextModel) -> None:
        if model.config.model.num_decoder_layers:
            raise ValueError("it finds no words")

    def lengths(self, model: TextModel, asked: Question) -> list[int]:
        return [model.length(asked.word, asked.text)]

    def refusal(self, model: TextModel, asked: Question) -> str:
        return "" if asked.word else "has no word: write one"

    def answered(self, model: TextModel, asked: Sequence[Question], report: Report) -> list[list[Place]]:
        found = [[one.start() for one in re.finditer(re.escape(word), text)] for word, text in asked]
        return [
            [Place(one.word, start, 1 / (2 + start)) for start in starts[: self.top]]
            for one, starts in zip(asked, found, strict=True)
        ]


def serve_it(patch: pytest.MonkeyPatch) -> None:
    """Lets servers that are made from now on have the task."""
    for module in (endpoints, runs):
        patch.setattr(module, "tasks", lambda: (*tasks(), Find()))


ASKED: dict[str, Any] = {"word": "ab", "text": "ab cab ab"}
PLACES = [
    {"found": "ab", "start": 0, "share": 0.5},
    {"found": "ab", "start": 4, "share": 1 / 6},
    {"found": "ab", "start": 7, "share": 1 / 9},
]
