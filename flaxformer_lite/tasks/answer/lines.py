"""Writes the answer to the question of each line in the text behind it, a tab, and a probability.

A line is a question, a tab and a text; a table or JSON lines have both in fields. If the text has no answer, nothing stands before
the tab. --format jsonl writes one JSON object for each line: answer, start, stop and score. Characters count from 0. Long texts
are read in overlapping windows. A line that is not UTF-8, or that lacks its text, is reported, and its answer is empty.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flaxformer_lite.tasks.lines import TaskLines

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
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--format", choices=("text", "jsonl"), default="text", help="answers alone, or with places; default: text"
        )

    def beside(self, model: "TextModel") -> Sequence[str]:
        return ["answer", "score"] if self.format == "text" else ["answer"]

    def read(self, texts: Sequence[str]) -> "Question":
        from flaxformer_lite.tasks.answer.answers import Question  # with JAX

        return Question(*texts)

    def written(self, read: "Question", answer: "FoundAnswer", model: "TextModel") -> list[str]:
        if self.format == "text":
            return [f"{' '.join(answer.answer.split())}\t{answer.score:.6f}"]
        return [json.dumps({**answer._asdict(), "score": round(answer.score, 6)}, ensure_ascii=False)]
