"""Translates lines from files, from a pipe, or typed.

Only results go to stdout: one line for each input line, in order; of a TSV or CSV the table with one more column. The lines of a
pipe are translated as they arrive. A line that is not UTF-8 is reported, and its answer is empty. With --n-best each hypothesis is
a line `index ||| text ||| score`; index counts input lines from 0.
"""

import argparse
import itertools
from collections.abc import Iterator, Sequence

from flaxformer_lite.cli import input_lines
from flaxformer_lite.cli.input_lines import LineChunk, answer_lines, chosen_blocks, text_columns
from flaxformer_lite.cli.options import add_setting, add_translation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    input_lines.add_arguments(parser)
    add_translation(parser)
    n_best = "write the N best of the beam; default: decode.num_hypotheses, if above 1"
    add_setting(parser, "--n-best", "num_hypotheses", int, "N", n_best)
    parser.add_argument("--scores", action="store_true", help="add a tab and the score to each line")
    parser.add_argument(
        "--ids", action="store_true", help="read and write token ids separated by spaces; EOS is not added"
    )


def run(arguments: argparse.Namespace) -> None:
    from flaxformer_lite.cli import translation  # with JAX

    texts = text_columns(arguments, arguments.files, wanted=1, first=True)
    blocks = chosen_blocks(arguments.files, "translate", texts)
    loaded = translation.load_runs(arguments)
    translation.tell_direction(loaded, arguments)
    decode = translation.decode_settings(loaded, arguments)
    forced = translation.forced_texts(loaded, arguments)
    if forced and arguments.ids:
        raise ValueError("--terms, --placeholders and --prefix are texts: leave them or --ids out")
    typed, configured = arguments.num_hypotheses, loaded.translation_decoder(**decode).config.num_hypotheses
    n_best = typed is not None or (configured > 1 and not arguments.minimum_risk)
    metrics, indices = translation.metrics_of(loaded.config), itertools.count()

    def written(hypotheses: Sequence[tuple[str, float]]) -> list[str]:
        index = next(indices)
        if n_best:
            return [f"{index} ||| {text} ||| {score:.6f}" for text, score in hypotheses]
        text, score = hypotheses[0]
        return [f"{text}\t{score:.6f}" if arguments.scores else text]

    def answer(block: LineChunk) -> Iterator[str]:
        translations = translation.translated(loaded, block, decode, forced, ids=arguments.ids)
        for hypotheses in translation.chosen(translations, arguments, metrics):
            yield from written(hypotheses)

    def check(block: LineChunk, number: int) -> None:
        source = block.token_ids(number)
        with block.naming(number):
            loaded.check_sources([source])

    beside = [] if n_best else ["translation", "score"] if arguments.scores else ["translation"]
    answer_lines(blocks, answer, check if arguments.ids else None, lambda: written([("", 0.0)]), beside)
