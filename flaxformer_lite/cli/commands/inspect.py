"""Shows what a run is, in a few lines, then parameters with shapes and counts, checkpoints with metrics, and a SHA-256.

Of a folder of tokens (`data.store`, or RUN/.tokens) it shows what was tokenized, and whether it is whole. With --verify it compares
every file of a run, its token store included, or of a folder of tokens, with what was written; the exit status is 1 if one is
damaged or missing. With --sharding it shows how `train.mesh` shards the training state over devices, of a run or a config file.
"""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="RUN", help="the run folder, a folder of tokens, or with --sharding a config file"
    )
    parser.add_argument("--step", type=int, help="the checkpoint to show; default: the newest")
    parser.add_argument("--weights", help="last, best, ema or average:N; default: last")
    parser.add_argument("--verify", action="store_true", help="compare every file with what was written")
    parser.add_argument("--sharding", action="store_true", help="show how the training state is sharded over devices")
    parser.add_argument(
        "--devices",
        type=int,
        help="with --sharding: number of devices; default: that of the mesh, or of this machine",
    )
    parser.add_argument("--mesh", metavar="AXIS=N,…", help="with --sharding: in place of train.mesh")
    parser.add_argument("--json", action="store_true", help="write JSON")


def run(arguments: argparse.Namespace) -> None:
    from flaxformer_lite.cli import inspection  # with JAX

    inspection.run(arguments)
