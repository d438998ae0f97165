"""Repeats steps of a run without a row or a line of its data, and shows what it changes: losses, metrics, answers.

The steps are taken twice from the newest checkpoint before STEP, with all rows and with the weight 0 for what --without names; all
else is equal. ROW is the number of a row of STEP, as `rows` shows it; FILE:LINE is left out of all steps that are repeated.
Nothing is written.
"""

import argparse
import json
import re

from flaxformer_lite.base.console import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="the run folder")
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
    from flaxformer_lite.tools.recorder.rerun import rerun, without_record, without_row
    from flaxformer_lite.tools.recorder.seen import find_line
    from flaxformer_lite.workdir import open_run
    from flaxformer_lite.workdir.folder import finite

    place = re.fullmatch(r"(?:(.+):)?(\d+)", arguments.without)
    if place is None:
        raise ValueError(f"--without is {arguments.without!r}: give the number of a row, or FILE:LINE")
    with Progress() as progress:
        recording = open_recording(open_run(arguments.folder), progress)
        progress.total = arguments.step + arguments.steps - 1
        if place[1] is None:
            without = without_row(arguments.step, int(place[2]))
        else:
            records = [record.record for record, _ in find_line(recording, place[1], int(place[2]))["train"]]
            if len(records) != 1:
                raise ValueError(
                    f"--without is {arguments.without!r}: it must be a line of one record of data.train, but {len(records)} have "
                    "it; give the number of a row"
                )
            without = without_record(recording, records[0])
        result = rerun(recording, arguments.step, arguments.steps, without, arguments.answer, progress)
    if arguments.json:
        print(json.dumps(finite(result.__dict__), ensure_ascii=False))
        return
    origin = f"checkpoint {result.start}" if result.start else "the beginning"
    print(f"from {origin}; left out in step {', '.join(map(str, result.changed))}")
    print(f"{'':<24}{'with':>12}{'without':>12}{'difference':>12}")
    figures = {f"loss of step {step}": pair for step, pair in result.losses.items()}
    for name, (whole, less) in (figures | {f"eval {name}": pair for name, pair in result.metrics.items()}).items():
        print(f"{name:<24}{whole:>12.6f}{less:>12.6f}{less - whole:>+12.6f}")
    for text, (before, after) in result.answers.items():
        print(f"{text}\n  with     {before}\n  without  {after if after != before else 'the same'}")
