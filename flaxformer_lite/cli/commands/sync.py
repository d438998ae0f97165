"""Copy a run to another folder or URL, once or while it trains.

  flaxformer-lite sync runs/mine s3://BUCKET/mine
  flaxformer-lite sync runs/mine /mnt/copy/mine --every 60

The copy is a run: every command reads it. To continue it, copy a run of a folder back to a
folder, and a run of a bucket back to its URL.
"""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="FROM", help="folder or URL of the run")
    parser.add_argument("copy", metavar="TO", help="folder or URL: a new or empty place, or a copy of this run")
    help = "seconds between two copies, at least 1, until the training in FROM has ended; waits up to 5 minutes for its start"
    parser.add_argument("--every", type=float, metavar="SECONDS", help=help)


def run(arguments: argparse.Namespace) -> None:
    from flaxformer_lite.workdir.copies import sync  # with JAX

    if arguments.every is not None and not arguments.every >= 1:
        raise ValueError(f"--every is {arguments.every}: it must be at least 1 second")
    sync(arguments.run, arguments.copy, arguments.every)
