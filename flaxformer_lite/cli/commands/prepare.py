"""Tokenizes the training data of a config ahead: `flaxformer-lite prepare CONFIG --data.store FOLDER [--SETTING VALUE …]`.

A training with the same data, tokenizer and data.store then starts at once. With --part each of several hosts that share the folder
makes a part; the last one to end makes the store whole. A build that was stopped continues from its finished shards.
"""

import argparse
import json

TAKES_SETTINGS = True
"""Options that are not its own are settings of CONFIG."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="a config file, a run folder, or a name such as gpt2_small")
    parser.add_argument(
        "--part", metavar="K/N", default="1/1", help="make only this part of N, such as 1/4; default: all"
    )


def run(arguments: argparse.Namespace) -> None:
    from flaxformer_lite.base.console import Progress
    from flaxformer_lite.config.load import load_config  # with JAX, which the command's help does not need
    from flaxformer_lite.files.data.store import list_stores
    from flaxformer_lite.tools.corpus.part import typed_part
    from flaxformer_lite.tools.ops.stores import make_stores

    share = typed_part(arguments.part)
    config = load_config(arguments.config, arguments.flags)
    with Progress() as progress:
        stores = make_stores(config, progress, share)
    for store in stores:
        print(json.dumps(list_stores(store)[0], indent=2))
