"""Writes the class of each line, a tab, and its probability; for a regression, the number.

If texts have any number of labels, each line gets one JSON object of those above `objective.threshold` with their probabilities,
most probable first; `{}` for none.
A line is one text, or two texts separated by a tab if the run was trained on pairs. A line with other columns, or one that is not
UTF-8, is reported, and its answer is empty. The result for a TSV or CSV is the same table with the answers as further columns.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flaxformer_lite.cli import input_lines
from flaxformer_lite.cli.answering import Answering
from flaxformer_lite.cli.input_lines import LineChunk, chosen_blocks, columns, text_columns
from flaxformer_lite.cli.options import chosen_weights
from flaxformer_lite.cli.output import add_output, is_joined_alone, write_answers

if TYPE_CHECKING:
    from flaxformer_lite.run import ClassPrediction, Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    input_lines.add_arguments(parser)
    parser.add_argument(
        "--scores", action="store_true", help="write the probabilities of all classes, one JSON object for each line"
    )
    add_output(parser, "classify")


def run(arguments: argparse.Namespace) -> None:
    if is_joined_alone(arguments):
        return
    texts = text_columns(arguments, arguments.files, wanted=None)
    blocks = chosen_blocks(arguments.files, "classify", texts, arguments.pieces)
    from flaxformer_lite.run import load  # with JAX

    classifying = Classifying(load(arguments.folder, **chosen_weights(arguments)), arguments.scores)
    if classifying.scores and classifying.regression:
        raise ValueError("--scores is for classes, but model.pooler.num_classes is 1, a regression: leave it out")
    write_answers(blocks, classifying, arguments, classifying.run)


@dataclass(frozen=True)
class Classifying(Answering["ClassPrediction"]):
    """Classes of texts and pairs of texts, or their numbers."""

    run: "Run"
    scores: bool
    """Whether the probabilities of all classes are written."""

    @property
    def regression(self) -> bool:
        pooler = self.run.config.model.pooler
        return pooler is not None and pooler.num_classes == 1 and not self.several_labels

    @property
    def several_labels(self) -> bool:
        return self.run.config.objective.label_threshold is not None

    @property
    def beside(self) -> Sequence[str]:
        if self.scores:
            return ["scores"]
        if self.several_labels:
            return ["labels"]
        return ["value"] if self.regression else ["label", "probability"]

    def read(self, block: LineChunk, number: int) -> str | tuple[str, str]:
        """Returns the text of a line, or its pair of texts."""
        texts = columns(block, number)
        text = texts[0] if len(texts) == 1 else (texts[0], texts[1])
        with block.naming(number):
            self.run.check_pairs([text])
        return text

    def answers(self, block: LineChunk) -> "list[ClassPrediction]":
        with block.reporting("classifying") as report:
            return self.run.classify(block.read, **report)

    def written(self, index: int, answer: "ClassPrediction") -> list[str]:
        if self.scores or self.several_labels:
            names = answer.scores if self.scores else answer.labels
            scores = {name: round(answer.scores[name], 6) for name in names}
            return [json.dumps(scores, ensure_ascii=False)]
        return [f"{answer.label}\t{answer.score:.6f}" if answer.label else f"{answer.score:.6g}"]
