"""Translates lines from files, from a pipe, or typed.

Only results go to stdout: one line for each input line, in order; of a TSV or CSV the table with one more column. The lines of a
pipe are translated as they arrive. A line that is not UTF-8 is reported, and its answer is empty. With --n-best each hypothesis is
a line `index ||| text ||| score`; index counts input lines from 0.
"""

import argparse
import functools

from flaxformer_lite.cli.input_lines import chosen_blocks, text_columns
from flaxformer_lite.cli.options import (
    TranslationOptions,
    add_lines,
    add_option,
    add_output,
    add_setting,
    add_translation,
    chosen_output,
    chosen_weights,
    run_by_engine,
    typed,
    typed_settings,
)
from flaxformer_lite.cli.output import write_answers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_lines(parser, engine="auto")
    add_translation(parser)
    n_best = "write the N best of the beam; default: decode.num_hypotheses, if above 1"
    add_setting(parser, "--n-best", "num_hypotheses", int, "N", n_best)
    add_option(parser, "--scores", action="store_true", help="add a tab and the score to each line")
    add_option(
        parser, "--ids", action="store_true", help="read and write token ids separated by spaces; EOS is not added"
    )
    add_output(parser, "translate")


def run(arguments: argparse.Namespace) -> None:
    output = chosen_output(arguments)
    folder = arguments.folder
    if output.join_if_alone():
        return
    from flaxformer_lite.cli import translation
    from flaxformer_lite.engine.engine_run import open_obeying

    texts = text_columns(folder, arguments.files, arguments.column, wanted=1, first=True)
    blocks = chosen_blocks(arguments.files, "translate", texts, arguments.pieces)
    wanted = typed(TranslationOptions, arguments)
    decode = typed_settings(arguments)
    forced = wanted.forced()
    engine = run_by_engine(arguments, functools.partial(open_obeying, "Translator", lambda own: own.changed(decode)))
    loaded = (
        translation.load_runs(folder, wanted, chosen_weights(arguments), forced)
        if engine is None
        else translation.in_direction(engine, wanted)
    )
    translation.tell_direction(loaded, wanted)
    translating = translation.translating(loaded, decode, wanted, forced, ids=arguments.ids, scores=arguments.scores)
    rater = [translating.best_by] if wanted.best_by else []
    write_answers(blocks, translating, chosen_output(arguments), [loaded, *rater])  # the engine decides the answers
