"""Makes a translator from two parallel files, or from a TSV or CSV: `flaxformer-lite pair a.en a.de -o runs/en-de [--hours 2]`.

It cleans the pairs, holds out validation and test, chooses a config, trains, scores, exports to CTranslate2 and writes a report.
A `--teacher` translates the sources and the lines of `--mono`, and the translator learns from these too; `--start` begins from a
trained model. Both are run folders, Hugging Face folders, or ORG/NAME of the hub. A `--filter` leaves out the pairs that it rates
worst.
Stopped, it ends with exit status 130, and the same command continues. Every choice is in RUN/config.json, a config for `train`.
"""

import argparse
from pathlib import Path

from flaxformer_lite.cli.options import add_hours, typed
from flaxformer_lite.engine import ENGINES

RULE_NAMES = (
    "empty",
    "encoding",
    "markup",
    "identical",
    "duplicate",
    "length",
    "language",
    "translation",
    "cut",
    "repeats",
)
"""The rules of the cleaning, at the end those for the translations of a teacher; named here too, because their file needs JAX."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="a file of sources and one of targets, or one TSV or CSV with both"
    )
    parser.add_argument(
        "--columns",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        default=[],
        help="the columns of the table: numbers from 0, or names in its header; default: the only two",
    )
    parser.add_argument(
        "-o", "--output", metavar="RUN", required=True, help="the run folder; a new one, or one to continue"
    )
    add_hours(parser, "time for all but the teacher's translations, from 0.05 on; default: what the text is worth")
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default="auto",
        help="what translates the held-out text, and for teachers; auto: CTranslate2 on a CPU where it is installed and obeys all "
        "settings",
    )
    parser.add_argument(
        "--keep",
        metavar="RULE",
        action="append",
        default=[],
        choices=RULE_NAMES,
        help=f"keep the pairs that this rule would remove; may be repeated: {', '.join(RULE_NAMES)}",
    )
    add_models(parser)


def add_models(parser: argparse.ArgumentParser) -> None:
    model = "a run folder, a Hugging Face folder, or ORG/NAME of the hub"
    parser.add_argument(
        "--teacher",
        dest="teachers",
        metavar="MODEL",
        action="append",
        default=[],
        help=f"what translates the sources and --mono, {model}; may be repeated: several are an ensemble",
    )
    mono = "files of further lines of the source language, for the teacher; may be repeated"
    parser.add_argument("--mono", metavar="FILE", nargs="+", action="extend", default=[], help=mono)
    share = "the share of the training rows that are the teacher's, between 0 and 1; default: every pair comes equally often"
    parser.add_argument("--taught", dest="share", type=float, metavar="SHARE", help=share)
    parser.add_argument(
        "--start", metavar="MODEL", help=f"what the training starts from, {model}; default: a new model"
    )
    parser.add_argument(
        "--trim", action="store_true", help="leave out the tokens of --start that neither the sentences nor --mono need"
    )
    parser.add_argument(
        "--from", dest="source", metavar="CODE", help="the source's language, for all models of several"
    )
    parser.add_argument("--to", dest="target", metavar="CODE", help="the target's language, for all models of several")
    like = "a language of --start that the new one of --from and --to is like; needs --pieces"
    parser.add_argument("--like", metavar="CODE", help=like)
    parser.add_argument(
        "--filter",
        metavar="RUN",
        help="a metric without reference, which rates the pairs of people in the training: the worst are left out",
    )
    parser.add_argument("--best", type=float, metavar="SHARE", help="the share of them that stays; default: 0.9")
    parser.add_argument("--pieces", type=int, metavar="N", help="most pieces to add for the new language")


def run(arguments: argparse.Namespace) -> None:
    if len(arguments.files) > 2:
        raise ValueError(f"{len(arguments.files)} files: give a file of sources and one of targets, or one table")
    columns = [int(column) if column.isdecimal() else column for column in arguments.columns]
    if len({*columns}) < len(columns):
        raise ValueError(f"--columns are both {columns[0]!r}: choose two columns")
    from flaxformer_lite.tools.pair import Models, make  # with JAX

    folder = Path(arguments.output)
    models = typed(Models, arguments)
    options = {
        "columns": columns,
        "keep": arguments.keep,
        "hours": arguments.hours,
        "engine": arguments.engine,
        "models": models,
    }
    if make(arguments.files, folder, tell=print, **options) is None:
        raise KeyboardInterrupt
    print(
        f"\nflaxformer-lite translate {folder} < FILE\nflaxformer-lite serve {folder}\nflaxformer-lite evaluate {folder}"
    )
