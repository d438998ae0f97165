"""Trains the experiment of a config: `flaxformer-lite train CONFIG [--workdir RUN] [--SETTING VALUE …]`.

CONFIG is a Python file, a run folder, or a name that `flaxformer-lite configs` lists. With --help after CONFIG
every setting is listed. The same command again continues from the last checkpoint in the run folder. In a checkout,
`python train.py CONFIG` is the same.

With --sweep or --seeds, each combination of the values and seeds is a run in a folder below -o. The runs that are
missing are trained, one after the other; in the end there is a table of the best evaluations, and a chart in -o.
"""

import argparse
import json
from pathlib import Path

from flaxformer_lite.base.remote_files import is_store, is_url

TAKES_SETTINGS = True
"""Options that are not its own are settings of CONFIG."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="a config file, a run folder, or a name such as quickstart")
    parser.add_argument(
        "--workdir",
        metavar="RUN",
        help="the run folder, or a place in a bucket, such as gs://BUCKET/RUN; by default runs/<name of the config>",
    )
    parser.add_argument(
        "--continue-with-changes",
        action="store_true",
        help="continue the run with another learning rate, decay, clipping or dropout; docs/training.md lists the settings",
    )
    parser.add_argument(
        "--debug-step", type=int, metavar="S", help="train nothing: repeat step S of the run and find its first NaN"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="train nothing and write nothing: show the settings, the model, the batches, the memory of a step, and one example",
    )
    parser.add_argument("--json", action="store_true", help="write each row of metrics.jsonl to stdout too")
    group = parser.add_argument_group("several runs (docs/training.md)")
    group.add_argument(
        "--sweep",
        metavar="SETTING=VALUE,VALUE",
        action="append",
        default=[],
        help="a run for each value; may be repeated, for all combinations",
    )
    group.add_argument(
        "--seeds", type=int, metavar="N", help="N runs of each combination, with seeds from train.seed on"
    )
    group.add_argument("-o", "--output", metavar="FOLDER", help="the folder of the runs")
    group.add_argument("--part", metavar="K/N", help="train only this share of the runs, such as 1/4")
    group = parser.add_argument_group("several processes (docs/scaling.md)")
    group.add_argument("--coordinator", metavar="HOST:PORT", help="where all meet: an address of the first process")
    group.add_argument("--num-processes", type=int, metavar="N", help="number of processes of the training")
    group.add_argument("--process-id", type=int, metavar="I", help="number of this process, from 0 to N - 1")
    group.add_argument(
        "--join-seconds", type=int, metavar="S", default=300, help="seconds to wait for the others (300)"
    )


def run(arguments: argparse.Namespace) -> None:
    train = run_one if not arguments.sweep and arguments.seeds is None else run_sweep
    train(arguments)


def run_one(arguments: argparse.Namespace) -> None:
    """Raises: ValueError for an option that is for several runs."""
    for option in ("output", "part"):
        if getattr(arguments, option) is not None:
            raise ValueError(f"--{option} is for several runs: add --sweep or --seeds, or leave it out")
    from flaxformer_lite.config.load import load_config  # with JAX

    workdir = arguments.workdir or default_workdir(arguments.config)
    config = load_config(arguments.config, arguments.flags)
    if arguments.dry_run:
        from flaxformer_lite.tools.planning.dry_run import dry_run

        print(*dry_run(config, workdir), sep="\n")
        return
    from flaxformer_lite.training.hooks import EachRow
    from flaxformer_lite.training.loop import train  # after the settings: a mistake in them needs no checkpoints
    from flaxformer_lite.training.multihost.meeting import connect_processes

    connect_processes(arguments.coordinator, arguments.num_processes, arguments.process_id, arguments.join_seconds)
    if arguments.debug_step is None:
        hooks = [EachRow(lambda row: print(json.dumps(row), flush=True))] if arguments.json else []
        train(config, workdir, hooks, with_changes=arguments.continue_with_changes)
    else:
        from flaxformer_lite.tools.ops.debug_step import debug_step

        print(*debug_step(config, workdir, arguments.debug_step), sep="\n")


OF_ONE_RUN = ("workdir", "dry_run", "debug_step", "json", "coordinator", "num_processes", "process_id")
"""The options that a sweep has no use for."""


def run_sweep(arguments: argparse.Namespace) -> None:
    """Raises: ValueError without a folder for the runs, and for an option that is for one run."""
    typed = [name for name in OF_ONE_RUN if vars(arguments)[name] not in (None, False)]
    if typed:
        raise ValueError(f"--{typed[0].replace('_', '-')} is for one run: leave it out, or --sweep and --seeds")
    if arguments.output is None:
        raise ValueError("several runs need a folder: add -o FOLDER, such as -o runs/sweep")
    from flaxformer_lite.tools.corpus.part import WHOLE, typed_part
    from flaxformer_lite.tools.sweep import sweep  # with JAX

    lines = sweep(
        arguments.config,
        arguments.output,
        options=arguments.flags,
        sweeps=arguments.sweep,
        seeds=arguments.seeds,
        part=WHOLE if arguments.part is None else typed_part(arguments.part),
        with_changes=arguments.continue_with_changes,
    )
    if lines is not None:
        print(*lines, sep="\n")


def default_workdir(config: str) -> str:
    """Returns `runs/<config name>`; for a run folder or its config.json, also in a store, that folder.

    Raises: ValueError for another URL, which says of no folder that it is a run's.
    """
    folder, _, name = config.rstrip("/").rpartition("/")
    if is_store(config) and (name == "config.json" or not name.endswith((".json", ".py"))):
        return folder if name == "config.json" else config
    if is_url(config):
        raise ValueError(f"{config} is a URL: choose a run folder with --workdir")
    path = Path(config)
    if (path / "config.json").is_file():
        return config
    return str(path.parent if path.name == "config.json" else Path("runs") / path.stem)
