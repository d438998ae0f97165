"""Writes hard negatives for a training: documents that a run's vectors find near a query, and that are no positive of it.

ROWS has JSON lines with a `query` and one or several texts that answer it in `positive`. OUT.jsonl has the same lines with
`negatives`, nearest first: texts of the corpus, compared by their normal form, so that no positive is among them.
"""

import argparse
from pathlib import Path

from flaxformer_lite.cli.options import add_run, add_weights, chosen_weights


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser, "the run folder, of a model that embeds")
    parser.add_argument("rows", metavar="ROWS", help="JSON lines with query and positive")
    parser.add_argument(
        "--corpus",
        metavar="FOLDER",
        required=True,
        help="folder with corpus.jsonl, or such a file: _id, title and text",
    )
    parser.add_argument("-o", "--output", metavar="OUT.jsonl", required=True, help="the new file")
    parser.add_argument("--negatives", type=int, default=5, metavar="N", help="the most for each query; default: 5")
    ranks = "the first and the last rank of negatives, such as 11-100 to leave out the nearest ten; default: 1-100"
    parser.add_argument("--ranks", default="1-100", metavar="FIRST-LAST", help=ranks)
    margin = "leave out documents whose cosine is not lower by M than that of each positive: they may answer the query"
    parser.add_argument("--margin", type=float, metavar="M", help=margin)
    add_weights(parser)


def run(arguments: argparse.Namespace) -> None:
    from flaxformer_lite.run import load  # with JAX
    from flaxformer_lite.tools.search.mining import Mining, mine

    mining = Mining.typed(arguments.negatives, arguments.ranks, arguments.margin)
    loaded = load(arguments.folder, **chosen_weights(arguments))
    mine(loaded, Path(arguments.rows), Path(arguments.corpus), Path(arguments.output), mining)
