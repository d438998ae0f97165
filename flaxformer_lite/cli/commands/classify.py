"""Writes the class of each line, a tab, and its probability; for a regression, the number.

A line is one text, or two texts separated by a tab if the run was trained on pairs. A line with other columns, or one that is not
UTF-8, is reported, and its answer is empty.
"""

import argparse
import functools
import json
import sys
from typing import TYPE_CHECKING

from flaxformer_lite.cli import input_lines
from flaxformer_lite.cli.input_lines import LineChunk, chosen_blocks, columns
from flaxformer_lite.cli.options import chosen_weights

if TYPE_CHECKING:
    import flaxformer_lite.run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    input_lines.add_arguments(parser)
    parser.add_argument(
        "--scores", action="store_true", help="write the probabilities of all classes, one JSON object for each line"
    )


def run(arguments: argparse.Namespace) -> None:
    blocks = chosen_blocks(arguments.files, "classify")
    from flaxformer_lite.run import load  # with JAX

    loaded = load(arguments.folder, **chosen_weights(arguments))
    pooler = loaded.config.model.pooler
    if arguments.scores and pooler is not None and pooler.num_classes == 1:
        raise ValueError("--scores is for classes, but model.pooler.num_classes is 1, a regression: leave it out")
    for block in blocks:
        for part in block.answerable(functools.partial(check, loaded, block)):
            for answer in [None] if part is None else answers(loaded, part):
                print("" if answer is None else written(answer, scores=arguments.scores))
        sys.stdout.flush()


def check(loaded: "flaxformer_lite.run.Run", block: LineChunk, number: int) -> None:
    """Raises: ValueError if line `number` has other texts than the run reads."""
    text = text_of(block, number)
    with block.naming(number):
        loaded.check_pairs([text])


def text_of(block: LineChunk, number: int) -> str | tuple[str, str]:
    """Returns the text of a line, or its pair of texts."""
    texts = columns(block, number)
    return texts[0] if len(texts) == 1 else (texts[0], texts[1])


def answers(loaded: "flaxformer_lite.run.Run", block: LineChunk) -> "list[flaxformer_lite.run.ClassPrediction]":
    with block.reporting("classifying") as report:
        return loaded.classify([text_of(block, number) for number in range(len(block.lines))], **report)


def written(answer: "flaxformer_lite.run.ClassPrediction", *, scores: bool) -> str:
    """Returns the line to write for a prediction."""
    if scores:
        return json.dumps({name: round(p, 6) for name, p in answer.scores.items()}, ensure_ascii=False)
    return f"{answer.label}\t{answer.score:.6f}" if answer.label else f"{answer.score:.6g}"
