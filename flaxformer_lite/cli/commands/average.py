"""Averages the parameters of a run's newest checkpoints and writes them as a new run folder.

Every command does the same without a new folder by `--weights average:N`.
"""

import argparse
import dataclasses

from flaxformer_lite.base.atomic_files import atomic_write, require_absent
from flaxformer_lite.base.console import counted, note


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="the run folder")
    parser.add_argument("output", metavar="OUT", help="the new run folder")
    parser.add_argument(
        "--last",
        type=int,
        metavar="N",
        help="number of newest checkpoints; default: train.keep_latest, or all if there are fewer",
    )


def run(arguments: argparse.Namespace) -> None:
    from flaxformer_lite.run import load, write_run  # with JAX
    from flaxformer_lite.text.kinds import copy_hub_files
    from flaxformer_lite.workdir import RunFolder, open_checkpoints, open_run

    output = RunFolder(arguments.output)
    require_absent(output.path)
    last = arguments.last
    if last is None:
        folder = open_run(arguments.folder)
        config = folder.config()
        with open_checkpoints(config, folder, read_only=True) as checkpoints:
            last = max(len(checkpoints.newest_regular(config.train.keep_latest)), 1)
    loaded = load(arguments.folder, weights=f"average:{last}")
    origin = f"the average of {counted(last, 'checkpoint')} of {loaded.folder.path}"
    config = dataclasses.replace(loaded.config, weights="last")
    with atomic_write(output.path) as unfinished:
        write_run(
            *(RunFolder(unfinished), config, loaded.step, loaded.params, origin),
            tokenizers=loaded.tokenizers,
            add_files=lambda run: copy_hub_files(loaded.folder.path, run / "huggingface"),
        )
    note(f"{origin} is in {output.path}")
