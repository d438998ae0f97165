"""Tunes a model on a file of examples: `flaxformer-lite fit google-bert/bert-base-uncased reviews.csv -o runs/reviews`.

The fields say the task: a text with a class, several or a number; words with labels, or texts with spans; questions on texts; pairs
that belong together; queries with candidates; conversations. A tenth of the rows chooses the best step, another is for the scores.
Settings as `train` has them come last: `--train.steps 500`. Every choice is in RUN/config.json. Stopped, it ends with exit
status 130, and the same command continues. It ends with scores, a report, an export, and the line that uses the run.
"""

import argparse

from flaxformer_lite.cli.options import add_hours

TAKES_SETTINGS = True
"""Options that are not its own are settings of the training."""
OWN_HELP = True
"""Its help lists its own options: the config with the settings is there only once the data and the model are read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a run folder, a Hugging Face folder, or ORG/NAME of the hub")
    parser.add_argument(
        "data",
        metavar="DATA",
        nargs="+",
        help="a CSV or TSV with a header, JSON lines, CoNLL, Parquet, a folder of a search, or a data set of the hub, "
        "NAME[:CONFIG][@SPLIT]",
    )
    parser.add_argument(
        "-o", "--output", metavar="RUN", required=True, help="the run folder; a new one, or one to continue"
    )
    parser.add_argument("--task", metavar="TASK", help="the task, needed if several tasks or none read the fields")
    parser.add_argument(
        "--eval", metavar="FILE", help="data that chooses the best step; default: held-out rows of DATA"
    )
    parser.add_argument("--test", metavar="FILE", help="data for the scores; default: held-out rows of DATA")
    parser.add_argument("--text", metavar="NAME", nargs="+", default=[], help="the field of the text, or those of two")
    parser.add_argument(
        "--label", metavar="NAME", nargs="+", default=[], help="the field of the label, or one for each label"
    )
    add_hours(parser, "time for all of it, from 0.05 on; default: what the rows are worth")


def run(arguments: argparse.Namespace) -> None:
    if len(arguments.data) > 1:
        raise ValueError(
            f"{len(arguments.data)} files: `fit` reads one; two make a translator: "
            f"flaxformer-lite pair {' '.join(arguments.data)} -o {arguments.output}"
        )
    from flaxformer_lite.tools.fit import fit  # with JAX

    names = ("task", "eval", "test", "text", "label", "hours")
    given = {name: getattr(arguments, name) for name in names}
    run = fit(arguments.model, arguments.data[0], arguments.output, settings=arguments.flags, tell=print, **given)
    if run.stopped:
        raise KeyboardInterrupt
