"""Predicts the token at each [MASK] of each line.

Results are lines `index ||| mask ||| token ||| probability`, the most probable first. index counts input lines and mask the masks
of a line, both from 0. A line without a mask, or one that is not UTF-8, gets no result but a warning on stderr.
"""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flaxformer_lite.cli import input_lines
from flaxformer_lite.cli.answering import Answering, answer_lines
from flaxformer_lite.cli.input_lines import LineChunk, chosen_blocks, text_columns
from flaxformer_lite.cli.options import chosen_weights

if TYPE_CHECKING:
    from flaxformer_lite.run import Run, TokenPrediction


def add_arguments(parser: argparse.ArgumentParser) -> None:
    input_lines.add_arguments(parser)
    parser.add_argument("--top", type=int, default=5, metavar="K", help="number of tokens for each mask; default: 5")


def run(arguments: argparse.Namespace) -> None:
    if arguments.top < 1:
        raise ValueError(f"--top is {arguments.top}: it must be at least 1")
    blocks = chosen_blocks(arguments.files, "fill the [MASK] of", text_columns(arguments, arguments.files, wanted=1))
    from flaxformer_lite.run import load  # with JAX

    answer_lines(blocks, Filling(load(arguments.folder, **chosen_weights(arguments)), arguments.top))


@dataclass(frozen=True)
class Filling(Answering["list[list[TokenPrediction]]"]):
    """The most probable tokens at each mask of a text."""

    run: "Run"
    top: int
    """Number of tokens for each mask."""

    def answers(self, block: LineChunk) -> "list[list[list[TokenPrediction]]]":
        with block.reporting("filling") as report:
            return self.run.fill_mask(block.lines, self.top, **report)

    def written(self, index: int, answer: "list[list[TokenPrediction]]") -> list[str]:
        return [
            f"{index} ||| {number} ||| {visible(token)} ||| {probability:.6f}"
            for number, predictions in enumerate(answer)
            for token, probability, _ in predictions
        ]

    def unanswered(self, index: int) -> list[str]:
        return []


def visible(token: str) -> str:
    """Returns a token, white space as the sign that Python writes for it."""
    return token.encode("unicode_escape").decode() if token.isspace() else token
