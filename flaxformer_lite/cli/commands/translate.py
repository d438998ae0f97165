"""Translates lines from files, from a pipe, or typed.

Only results go to stdout: one line for each input line, in order; of a TSV or CSV the table with one more column. The lines of a
pipe are translated as they arrive. A line that is not UTF-8 is reported, and its answer is empty. With --n-best each hypothesis is
a line `index ||| text ||| score`; index counts input lines from 0.
"""

import argparse

from flaxformer_lite.cli import input_lines
from flaxformer_lite.cli.input_lines import chosen_blocks, text_columns
from flaxformer_lite.cli.options import add_option, add_setting, add_translation
from flaxformer_lite.cli.output import add_output, is_joined_alone, write_answers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    input_lines.add_arguments(parser, engine="auto")
    add_translation(parser)
    n_best = "write the N best of the beam; default: decode.num_hypotheses, if above 1"
    add_setting(parser, "--n-best", "num_hypotheses", int, "N", n_best)
    add_option(parser, "--scores", action="store_true", help="add a tab and the score to each line")
    add_option(
        parser, "--ids", action="store_true", help="read and write token ids separated by spaces; EOS is not added"
    )
    add_output(parser, "translate")


def run(arguments: argparse.Namespace) -> None:
    if is_joined_alone(arguments):
        return
    from flaxformer_lite.cli import engines, translation

    texts = text_columns(arguments, arguments.files, wanted=1, first=True)
    blocks = chosen_blocks(arguments.files, "translate", texts, arguments.pieces)
    loaded = engines.without_jax(arguments) or translation.load_runs(arguments)
    translation.tell_direction(loaded, arguments)
    translating = translation.translating(loaded, arguments)
    write_answers(blocks, translating, arguments, loaded, translating.rater)
