"""Writes the answer to the question of each line in the text behind it, a tab, and a probability.

A line is a question, a tab and a text; a table or JSON lines have both in fields. If the text has no answer, nothing stands before
the tab. --format jsonl writes one JSON object for each line: answer, start, stop and score. Characters count from 0. Long texts
are read in overlapping windows. A line that is not UTF-8, or that lacks its text, is reported, and its answer is empty.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flaxformer_lite.tasks.lines import Columns, TaskLines

if TYPE_CHECKING:
    from flaxformer_lite.tasks.answer.answers import FoundAnswer, Question
    from flaxformer_lite.tasks.task import TextModel


@dataclass(frozen=True)
class Lines(TaskLines["FoundAnswer"]):
    format: str
    """text or jsonl."""

    verb = "answer, a question, a tab and a text, of"
    doing = "answering"
    texts = 2

    @classmethod
    def add_arguments(cls, add: Callable[..., None]) -> None:
        add(
            "--format",
            choices=("text", "jsonl"),
            default="text",
            help="only the answers, or with their places; default: text",
        )

    def columns(self, model: "TextModel") -> Columns["FoundAnswer"]:
        if self.format == "text":
            return {"answer": lambda one: " ".join(one.answer.split()), "score": lambda one: f"{one.score:.6f}"}
        return {"answer": lambda one: json.dumps(one._asdict() | {"score": round(one.score, 6)}, ensure_ascii=False)}

    def read(self, texts: Sequence[str]) -> "Question":
        from flaxformer_lite.tasks.answer.answers import Question

        return Question(*texts)
