"""Predicts the token at each [MASK] of each line.

Results are lines `index ||| mask ||| token ||| probability`, the most probable first. index counts input lines and mask the masks
of a line, both from 0. A line without a mask, or one that is not UTF-8, gets no result but a warning on stderr.
"""

import argparse
import itertools
import sys
from typing import TYPE_CHECKING

from flaxformer_lite.cli import input_lines
from flaxformer_lite.cli.input_lines import LineChunk, chosen_blocks
from flaxformer_lite.cli.options import chosen_weights

if TYPE_CHECKING:
    import flaxformer_lite.run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    input_lines.add_arguments(parser)
    parser.add_argument("--top", type=int, default=5, metavar="K", help="number of tokens for each mask; default: 5")


def run(arguments: argparse.Namespace) -> None:
    if arguments.top < 1:
        raise ValueError(f"--top is {arguments.top}: it must be at least 1")
    index = 0
    blocks = chosen_blocks(arguments.files, "fill the [MASK] of")
    from flaxformer_lite.run import load  # with JAX

    loaded = load(arguments.folder, **chosen_weights(arguments))
    for part in itertools.chain.from_iterable(block.answerable() for block in blocks):
        for masks in [[]] if part is None else filled(loaded, part, arguments.top):
            for number, predictions in enumerate(masks):
                for prediction in predictions:
                    token = (
                        prediction.token.encode("unicode_escape").decode()
                        if prediction.token.isspace()
                        else prediction.token
                    )
                    print(f"{index} ||| {number} ||| {token} ||| {prediction.probability:.6f}")
            index += 1
        sys.stdout.flush()


def filled(
    loaded: "flaxformer_lite.run.Run", block: LineChunk, top: int
) -> "list[list[list[flaxformer_lite.run.TokenPrediction]]]":
    with block.reporting("filling") as report:
        return loaded.fill_mask(block.lines, top, **report)
