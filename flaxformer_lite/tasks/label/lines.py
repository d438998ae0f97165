"""Writes the entities of each line, by the labels of its words: names, dates, or parts of speech.

--format jsonl writes one JSON object for each line: its text, and spans with start, end, label, score and text. Characters count
from 0. --format conll writes each word, a tab and its label, and an empty line after each text. With --words FIELD a line is a JSON
object, whose field has a list of words. Long texts are read in overlapping windows. A line that is not UTF-8, or that lacks its
words, is reported, and its answer is empty.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flaxformer_lite.files.text.json_objects import field_value, object_in
from flaxformer_lite.tasks.lines import Columns, TaskLines

if TYPE_CHECKING:
    from flaxformer_lite.tasks.label.answers import LabelledWords
    from flaxformer_lite.tasks.task import TextModel


@dataclass(frozen=True)
class Lines(TaskLines["LabelledWords"]):
    format: str
    """jsonl or conll."""
    words: str | None
    """The field of the words in lines of JSON; None: lines are texts."""
    column: Sequence[str] = ()

    verb = "label"
    doing = "labelling"

    @classmethod
    def add_arguments(cls, add: Callable[..., None]) -> None:
        add(
            "--format",
            choices=("jsonl", "conll"),
            default="jsonl",
            help="spans as JSON, or words with labels; default: jsonl",
        )
        add("--words", metavar="FIELD", help="the lines are JSON objects; this field has the words of each, a list")

    def __post_init__(self) -> None:
        if self.words and self.column:
            raise ValueError("--words is for lines of JSON, --column for a table: leave one of them out")

    @property
    def texts(self) -> int:
        return 0 if self.words else 1

    def columns(self, model: "TextModel") -> Columns["LabelledWords"]:
        return {"entities": entities_as_json} if self.format == "jsonl" else {}

    def read(self, texts: Sequence[str]) -> str | list[str]:
        """Returns the text of a line, or its words."""
        if not self.words:
            return texts[0]
        words = field_value(object_in(texts[0]), self.words)
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError(f"the field {self.words} has {str(words)[:40]!r}: it must be a list of texts")
        return words

    def written(self, read: object, answer: "LabelledWords", model: "TextModel") -> Sequence[Sequence[str]]:
        if self.format == "jsonl":
            return super().written(read, answer, model)
        return [*([" ".join(answer.text[one.start : one.end].split()), one.label] for one in answer.words), []]


def entities_as_json(answer: "LabelledWords") -> str:
    """Returns a text with its entities."""
    spans = [
        {**span._asdict(), "score": round(span.score, 6), "text": answer.text[span.start : span.end]}
        for span in answer.spans
    ]
    return json.dumps({"text": answer.text, "spans": spans}, ensure_ascii=False)
