"""Writes the entities of each line, by the labels of its words: names, dates, or parts of speech.

--format jsonl writes one JSON object for each line: its text, and spans with start, end, label, score and text. Characters count
from 0. --format conll writes each word, a tab and its label, and an empty line after each text. With --words FIELD a line is a JSON
object, whose field has a list of words. Long texts are read in overlapping windows. A line that is not UTF-8, or that lacks its
words, is reported, and its answer is empty.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flaxformer_lite.cli import input_lines
from flaxformer_lite.cli.answering import Answering
from flaxformer_lite.cli.input_lines import LineChunk, TextColumns, chosen_blocks, text_columns
from flaxformer_lite.cli.options import chosen_weights
from flaxformer_lite.cli.output import add_output, is_joined_alone, write_answers
from flaxformer_lite.files.text.json_objects import field_value, json_object
from flaxformer_lite.files.text.tables import container, require_lines

if TYPE_CHECKING:
    from flaxformer_lite.run import LabelledWords, Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    input_lines.add_arguments(parser)
    parser.add_argument(
        "--format",
        choices=("jsonl", "conll"),
        default="jsonl",
        help="spans as JSON, or words with labels; default: jsonl",
    )
    parser.add_argument(
        "--words", metavar="FIELD", help="the lines are JSON objects; this field has the words of each, a list"
    )
    add_output(parser, "label")


def run(arguments: argparse.Namespace) -> None:
    if is_joined_alone(arguments):
        return
    if arguments.words and arguments.column:
        raise ValueError("--words is for lines of JSON, --column for a table: leave one of them out")
    for path in arguments.files:
        if not arguments.words and container(path) != "a table":
            require_lines(
                path, "write the words of each text as a list in JSON lines, and name its field by --words FIELD"
            )
    texts = TextColumns(whole_lines=True) if arguments.words else text_columns(arguments, arguments.files, wanted=1)
    blocks = chosen_blocks(arguments.files, "label", texts, arguments.pieces)
    from flaxformer_lite.run import load  # with JAX

    loaded = load(arguments.folder, **chosen_weights(arguments))
    write_answers(blocks, Labelling(loaded, arguments.format, arguments.words), arguments, loaded)


@dataclass(frozen=True)
class Labelling(Answering["LabelledWords"]):
    """Labels of the words of texts."""

    run: "Run"
    form: str
    """jsonl or conll."""
    field: str | None
    """The field of the words in lines of JSON; None: lines are texts."""

    @property
    def beside(self) -> Sequence[str]:
        return ["entities"] if self.form == "jsonl" else []

    def read(self, block: LineChunk, number: int) -> str | list[str]:
        """Returns the text of a line, or its words."""
        if self.field is None:
            return block.lines[number]
        record = json_object(block.lines[number], block.place(number))
        with block.naming(number):
            words = field_value(record, self.field)
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise ValueError(f"the field {self.field} has {str(words)[:40]!r}: it must be a list of texts")
        return words

    def answers(self, block: LineChunk) -> "list[LabelledWords]":
        with block.reporting("labelling") as report:
            return self.run.label(block.read, **report)

    def written(self, index: int, answer: "LabelledWords") -> list[str]:
        if self.form == "conll":
            words = [(" ".join(answer.text[word.start : word.end].split()), word.label) for word in answer.words]
            return [*map("\t".join, words), ""]
        spans = [
            {**span._asdict(), "score": round(span.score, 6), "text": answer.text[span.start : span.end]}
            for span in answer.spans
        ]
        return [json.dumps({"text": answer.text, "spans": spans}, ensure_ascii=False)]
