"""Makes a new run folder with one more language, for a run that translates between several.

The language gets a token and pieces of its own, whose embeddings are made from those of relatives. All other languages are
translated as before, bit for bit. Fine-tune the new run on pairs of the language, mixed with old ones.
"""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="the run folder")
    parser.add_argument("output", metavar="NEW", help="the new run folder")
    parser.add_argument("--language", metavar="CODE", required=True, help="code of the new language, such as xyz_Latn")
    parser.add_argument("--like", metavar="CODE", required=True, help="a related language of the run")
    parser.add_argument(
        "--pieces", metavar="N", type=int, required=True, help="vocabulary to learn; what the run lacks of it is added"
    )
    parser.add_argument(
        "--from", dest="text", metavar="FILE", required=True, help="text of the language, a file or pattern"
    )
    parser.add_argument("--weights", help="last, best, ema or average:N; by default the config's weights")


def run(arguments: argparse.Namespace) -> None:
    from flaxformer_lite.run.extending import extend  # with JAX

    given = {name: getattr(arguments, name) for name in ("language", "like", "pieces", "text", "weights")}
    extend(arguments.folder, arguments.output, **given)
