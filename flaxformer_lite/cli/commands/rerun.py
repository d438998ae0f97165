"""Repeats steps of a run without a row or a line of its data, and shows what it changes: losses, metrics, answers.

The steps are taken twice from the newest checkpoint before STEP, with all rows and with the weight 0 for what --without names; all
else is equal. ROW is the number of a row of STEP, as `rows` shows it; FILE:LINE is left out of all steps that are repeated.
Nothing is written.
"""

import argparse
import json
import re

from flaxformer_lite.base.console import Progress
from flaxformer_lite.cli.options import add_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("step", metavar="STEP", type=int, help="the first step that is repeated")
    parser.add_argument(
        "--without", metavar="ROW|FILE:LINE", required=True, help="the row or the line that is left out"
    )
    parser.add_argument(
        "--steps", type=int, default=1, metavar="N", help="number of steps that are repeated; default: 1"
    )
    parser.add_argument(
        "--answer",
        metavar="TEXT",
        action="append",
        default=[],
        help="a text to translate or to continue; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="write JSON")


def run(arguments: argparse.Namespace) -> None:
    from flaxformer_lite.run.recording import open_recording  # with JAX
    from flaxformer_lite.tools.recorder.rerun import rerun, without_typed
    from flaxformer_lite.workdir import open_run
    from flaxformer_lite.workdir.folder import finite

    step, steps, typed = arguments.step, arguments.steps, arguments.without
    if re.fullmatch(r"(?:(.+):)?(\d+)", typed) is None:
        raise ValueError(f"--without is {typed!r}: give the number of a row, or FILE:LINE")
    with Progress() as progress:
        recording = open_recording(open_run(arguments.folder), progress)
        progress.total = step + steps - 1
        result = rerun(recording, step, steps, without_typed(recording, step, typed), arguments.answer, progress)
    print(json.dumps(finite(result.__dict__), ensure_ascii=False) if arguments.json else result.in_words())
