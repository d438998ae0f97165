"""Translates lines from files, from a pipe, or typed.

Only results go to stdout: one line for each input line, in order. The lines of a pipe are translated as they arrive. A line that is
not UTF-8 is reported, and its answer is empty. With --n-best
each hypothesis is a line `index ||| text ||| score`; index counts input lines from 0.
"""

import argparse
import sys
from typing import Any

from flaxformer_lite.cli import input_lines, translation
from flaxformer_lite.cli.input_lines import LineChunk, chosen_blocks
from flaxformer_lite.cli.options import add_setting
from flaxformer_lite.cli.translation import chosen, decode_settings, load_runs
from flaxformer_lite.inference import ScoredText
from flaxformer_lite.run import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    input_lines.add_arguments(parser)
    translation.add_arguments(parser)
    add_setting(
        parser,
        "--n-best",
        "num_hypotheses",
        int,
        "N",
        "write the N best of the beam; default: decode.num_hypotheses, if above 1",
    )
    parser.add_argument("--scores", action="store_true", help="add a tab and the score to each line")
    parser.add_argument(
        "--ids", action="store_true", help="read and write token ids separated by spaces; EOS is not added"
    )


def run(arguments: argparse.Namespace) -> None:
    blocks = chosen_blocks(arguments.files, "translate", keep_bad=True)
    loaded = load_runs(arguments)
    decode = decode_settings(loaded, arguments)
    typed, configured = arguments.num_hypotheses, loaded.translation_decoder(**decode).config.num_hypotheses
    n_best = typed is not None or (configured > 1 and not arguments.minimum_risk)
    index = 0
    translate_block = translated_ids if arguments.ids else translated
    for block in blocks:
        for hypotheses in chosen(loaded, translate_block(loaded, block, decode), arguments):
            for line in written(index, hypotheses, n_best=n_best, scores=arguments.scores):
                print(line)
            index += 1
        sys.stdout.flush()


def translated(loaded: Run, block: LineChunk, decode: dict[str, Any]) -> list[list[ScoredText]]:
    with block.reporting("translating") as report:
        return loaded.hypotheses(block.lines, **report, **decode)


def translated_ids(loaded: Run, block: LineChunk, decode: dict[str, Any]) -> list[list[ScoredText]]:
    sources = [block.token_ids(number) for number in range(len(block.lines))]
    with block.reporting("translating") as report:
        del report["warn"]  # nothing is cut
        answers = loaded.hypotheses_of_ids(sources, name=block.name, **report, **decode)
    return [[ScoredText(" ".join(map(str, h.tokens)), h.score) for h in answer] for answer in answers]


def written(index: int, hypotheses: list[ScoredText], *, n_best: bool, scores: bool) -> list[str]:
    """Returns the lines to write for input line `index`."""
    if n_best:
        return [f"{index} ||| {text} ||| {score:.6f}" for text, score in hypotheses]
    text, score = hypotheses[0]
    return [f"{text}\t{score:.6f}" if scores else text]
