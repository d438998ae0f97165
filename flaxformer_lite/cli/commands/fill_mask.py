"""Predicts the token at each [MASK] of each line.

Results are lines `index ||| mask ||| token ||| probability`, the most probable first. index counts input lines and mask the masks
of a line, both from 0. A line without a mask, or one that is not UTF-8, gets no result but a warning on stderr.
"""

import argparse
import itertools
from collections.abc import Iterator

from flaxformer_lite.cli import input_lines
from flaxformer_lite.cli.input_lines import LineChunk, answer_lines, chosen_blocks, text_columns
from flaxformer_lite.cli.options import chosen_weights


def add_arguments(parser: argparse.ArgumentParser) -> None:
    input_lines.add_arguments(parser)
    parser.add_argument("--top", type=int, default=5, metavar="K", help="number of tokens for each mask; default: 5")


def run(arguments: argparse.Namespace) -> None:
    if arguments.top < 1:
        raise ValueError(f"--top is {arguments.top}: it must be at least 1")
    blocks = chosen_blocks(arguments.files, "fill the [MASK] of", text_columns(arguments, arguments.files, wanted=1))
    from flaxformer_lite.run import load  # with JAX

    loaded, indices = load(arguments.folder, **chosen_weights(arguments)), itertools.count()

    def answer(block: LineChunk) -> Iterator[str]:
        with block.reporting("filling") as report:
            fillings = loaded.fill_mask(block.lines, arguments.top, **report)
        for masks in fillings:
            index = next(indices)
            for number, predictions in enumerate(masks):
                for token, probability, _ in predictions:
                    written = token.encode("unicode_escape").decode() if token.isspace() else token
                    yield f"{index} ||| {number} ||| {written} ||| {probability:.6f}"

    def empty() -> list[str]:
        next(indices)
        return []

    answer_lines(blocks, answer, empty=empty)
