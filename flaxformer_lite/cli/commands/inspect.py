"""Shows what a run is, in a few lines, then parameters with shapes and counts, checkpoints with metrics, and a SHA-256.

For a folder of tokens (`data.store`, or RUN/.tokens) it shows what was tokenized, and whether it is whole. With --verify it
compares every file of a run, its token store included, or of a folder of tokens, with what was written; the exit status is 1 if
one is damaged or missing.
"""

import argparse

from flaxformer_lite.cli.options import add_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser, "the run folder, or a folder of tokens")
    parser.add_argument("--step", type=int, help="the checkpoint to show; default: the newest")
    parser.add_argument("--weights", help="last, best, ema or average:N; default: last")
    parser.add_argument("--verify", action="store_true", help="compare every file with what was written")
    parser.add_argument("--json", action="store_true", help="write JSON")


def run(arguments: argparse.Namespace) -> None:
    from flaxformer_lite.cli import inspection  # with JAX

    inspection.run(arguments)
