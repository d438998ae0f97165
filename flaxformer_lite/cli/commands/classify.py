"""Writes the class of each line, a tab, and its probability; for a regression, the number.

A line is one text, or two texts separated by a tab if the run was trained on pairs. A line with other columns, or one that is not
UTF-8, is reported, and its answer is empty. The result for a TSV or CSV is the same table with the answers as further columns.
"""

import argparse
import json
from collections.abc import Iterator

from flaxformer_lite.cli import input_lines
from flaxformer_lite.cli.input_lines import LineChunk, answer_lines, chosen_blocks, columns, text_columns
from flaxformer_lite.cli.options import chosen_weights


def add_arguments(parser: argparse.ArgumentParser) -> None:
    input_lines.add_arguments(parser)
    parser.add_argument(
        "--scores", action="store_true", help="write the probabilities of all classes, one JSON object for each line"
    )


def run(arguments: argparse.Namespace) -> None:
    blocks = chosen_blocks(arguments.files, "classify", text_columns(arguments, arguments.files, wanted=None))
    from flaxformer_lite.run import load  # with JAX

    loaded = load(arguments.folder, **chosen_weights(arguments))
    pooler = loaded.config.model.pooler
    regression = pooler is not None and pooler.num_classes == 1
    if arguments.scores and regression:
        raise ValueError("--scores is for classes, but model.pooler.num_classes is 1, a regression: leave it out")

    def check(block: LineChunk, number: int) -> None:
        text = text_of(block, number)
        with block.naming(number):
            loaded.check_pairs([text])

    def answer(block: LineChunk) -> Iterator[str]:
        with block.reporting("classifying") as report:
            labels = loaded.classify([text_of(block, number) for number in range(len(block.lines))], **report)
        for label, score, scores in labels:
            if arguments.scores:
                yield json.dumps({name: round(p, 6) for name, p in scores.items()}, ensure_ascii=False)
            else:
                yield f"{label}\t{score:.6f}" if label else f"{score:.6g}"

    names = ["scores"] if arguments.scores else ["label", "probability"]
    answer_lines(blocks, answer, check, beside=["value"] if regression else names)


def text_of(block: LineChunk, number: int) -> str | tuple[str, str]:
    """Returns the text of a line, or its pair of texts."""
    texts = columns(block, number)
    return texts[0] if len(texts) == 1 else (texts[0], texts[1])
