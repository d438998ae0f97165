"""Trains the experiment of a config file: `python train.py CONFIG [--workdir RUN] [overrides]`.

`python train.py CONFIG --help` lists every setting. The same command again goes on where the run folder stands.
"""

import argparse
import os
import sys
from pathlib import Path


def main() -> None:
    """Reads the command line; a user's mistake becomes one line and exit status 2."""
    parser = argparse.ArgumentParser(
        prog="train.py", description=__doc__, allow_abbrev=False, add_help=False, exit_on_error=False
    )
    parser.add_argument("config", nargs="?", metavar="CONFIG", help="a file of configs/, or a run folder's config.json")
    parser.add_argument("--workdir", metavar="RUN", help="the run folder; by default runs/<name of the config file>")
    group = parser.add_argument_group("several processes (docs/scaling.md)")
    group.add_argument("--coordinator", metavar="HOST:PORT", help="where all meet: an address of the first process")
    group.add_argument("--num-processes", type=int, metavar="N", help="number of processes that meet there")
    group.add_argument("--process-id", type=int, metavar="I", help="number of this process, from 0 to N - 1")
    group.add_argument(
        "--join-seconds", type=int, metavar="S", default=300, help="seconds to wait for the others (300)"
    )
    if (
        sys.stderr is None
    ):  # as after `2>&-`; otherwise the next file that is opened would be what libraries write their errors to
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        arguments, overrides = parser.parse_known_args()
    except argparse.ArgumentError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    if arguments.config is None:
        parser.print_help(sys.stdout if "--help" in overrides or "-h" in overrides else sys.stderr)
        sys.exit(0 if "--help" in overrides or "-h" in overrides else 2)

    from flaxformer_lite.training.multihost.ending import exit_process

    try:
        from flaxformer_lite.config.load import load_config
        from flaxformer_lite.training.loop import train
        from flaxformer_lite.training.multihost.meeting import ProcessConfig, join

        processes = ProcessConfig(
            coordinator=arguments.coordinator,
            num_processes=arguments.num_processes,
            process_id=arguments.process_id,
            join_seconds=arguments.join_seconds,
        )
        config = load_config(arguments.config, overrides)
        join(processes)
        train(config, arguments.workdir or default_workdir(Path(arguments.config)))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        exit_process(2)
    except KeyboardInterrupt:
        exit_process(130)


def default_workdir(config: Path) -> Path:
    """`runs/<config name>`; for the config.json of a run, that run's folder."""
    return config.parent if config.name == "config.json" else Path("runs") / config.stem


if __name__ == "__main__":
    main()
