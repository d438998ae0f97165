"""Averages the parameters of a run's newest checkpoints into a run folder of its own, ready for use.

(`--weights average:N` does the same on the fly, for any command.)
"""

import argparse
import dataclasses
import sys

from flaxformer_lite.config import to_json
from flaxformer_lite.run import load
from flaxformer_lite.run_folder import RunFolder, write_whole
from flaxformer_lite.trainer import Memory, open_checkpoints


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="the run folder")
    parser.add_argument("output", metavar="OUT", help="the folder to make")
    parser.add_argument("--last", type=int, metavar="N", help="how many of the newest; by default train.keep_latest")


def run(arguments: argparse.Namespace) -> None:
    output = RunFolder(arguments.output)
    if output.path.exists():
        raise ValueError(f"{output.path} exists already: give a folder that does not")
    last = RunFolder(arguments.folder).config().train.keep_latest if arguments.last is None else arguments.last
    loaded = load(arguments.folder, weights=f"average:{last}")
    config = dataclasses.replace(loaded.config, weights="last")
    loaded.tokenizers.source.save(output.path)
    if config.data.target_tokenizer is not None:
        loaded.tokenizers.target.save(output.path, "target_tokenizer")
    memory = Memory(data="", parameters_only=f"the average of {last} checkpoints of {loaded.folder.path}")
    with open_checkpoints(config, output, read_only=False) as checkpoints:
        checkpoints.save(loaded.step, {"params": loaded.params}, dataclasses.asdict(memory))
    # Written last: without it the folder is no run.
    write_whole(output.path / "config.json", to_json(config))
    print(f"{memory.parameters_only} is in {output.path}", file=sys.stderr)
