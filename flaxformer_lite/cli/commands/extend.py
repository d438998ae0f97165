"""Makes a new run folder with one more language, for a run that translates between several.

The language gets a token, and the tokenizer new pieces, whose embeddings are made from those of relatives. The share of old lines
that are cut otherwise is printed. Fine-tune the new run on pairs of the language, mixed with old ones.
"""

import argparse

from flaxformer_lite.cli.options import add_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("output", metavar="NEW", help="the new run folder")
    parser.add_argument("--language", metavar="CODE", required=True, help="code of the new language, such as xyz_Latn")
    parser.add_argument("--like", metavar="CODE", required=True, help="a related language of the run")
    parser.add_argument("--pieces", metavar="N", type=int, required=True, help="most pieces to add to the vocabulary")
    parser.add_argument(
        "--from", dest="text", metavar="FILE", nargs="+", required=True, help="text of the language, files or patterns"
    )
    parser.add_argument(
        "--old",
        metavar="FILE",
        nargs="+",
        help="text of the run's languages, files or patterns; by default the run's training data",
    )
    parser.add_argument(
        "--tokenizer",
        choices=("shared", "own"),
        default="shared",
        help="shared: one for all languages. own: another for the new language, which keeps every bit of the others, and no export",
    )
    parser.add_argument("--weights", help="last, best, ema or average:N; by default the config's weights")


def run(arguments: argparse.Namespace) -> None:
    from flaxformer_lite.run.extending import extend  # with JAX

    given = {
        name: getattr(arguments, name) for name in ("language", "like", "pieces", "text", "old", "tokenizer", "weights")
    }
    extend(arguments.folder, arguments.output, **given)
