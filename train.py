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

    from flaxformer_lite.training.multihost import exit_process, join

    try:
        from flaxformer_lite.config.load import load_config
        from flaxformer_lite.training.loop import train

        config = join(load_config(arguments.config, overrides))
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
