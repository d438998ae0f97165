"""Writes what trained runs predict for a config's training data: `flaxformer-lite teach CONFIG --teacher RUN`.

A student that trains with the config learns from these probabilities, and not from the words alone: its objective is a
Distillation of flaxformer_lite.tools.research, whose objective.predictions is the file. Several runs predict together, by the
mean of their probabilities. Other options are settings of CONFIG, as for `train`.
"""

import argparse
from pathlib import Path

from flaxformer_lite.base.atomic_files import require_writable
from flaxformer_lite.cli.options import add_weights, chosen_weights

TAKES_SETTINGS = True
"""Options that are not its own are settings of CONFIG."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="the student's config file, or a name such as quickstart")
    parser.add_argument(
        "--teacher",
        metavar="RUN",
        action="append",
        required=True,
        help="the run folder of a teacher; may be repeated: several are an ensemble",
    )
    parser.add_argument(
        "--top", type=int, default=16, metavar="K", help="tokens that are kept for each position; default: 16"
    )
    add_weights(parser)


def run(arguments: argparse.Namespace) -> None:
    from flaxformer_lite.base.console import Progress, note
    from flaxformer_lite.config.load import load_config  # with JAX, which the command's help does not need
    from flaxformer_lite.run import load_ensemble
    from flaxformer_lite.tools.research.teaching import predict_targets

    config = load_config(arguments.config, arguments.flags)
    path = getattr(config.objective, "predictions", None)
    if path is None:
        raise ValueError(
            f"objective.kind is '{config.objective.kind}', which names no file to write: set the objective to "
            "Distillation(predictions=FILE) of flaxformer_lite.tools.research"
        )
    require_writable(Path(path))  # before the hours of a large corpus
    teacher = load_ensemble(arguments.teacher, **chosen_weights(arguments))
    with Progress() as progress:
        progress.update("teaching")
        predictions = predict_targets(teacher, config, arguments.top, progress.within)
    predictions.write(Path(path))
    note(f"{path}: {len(predictions):,} pairs, {predictions.top} tokens for each of {len(predictions.ids):,} positions")
