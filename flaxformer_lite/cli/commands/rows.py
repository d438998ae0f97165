"""Shows the rows of a step as the model read them: their files and lines, and their texts.

STEP is a step of the run, counted from 1, or a range such as 1000-1010. Without options a line has the step, the row, its places
and both texts, between tabs. The data is compared with what the run was trained on; if it has changed, the exit status is 2.
Nothing is written, and the run may be training.
"""

import argparse
import re
from collections.abc import Callable
from functools import partial

from flaxformer_lite.base.console import Progress, note
from flaxformer_lite.cli.options import add_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("steps", metavar="STEP", help="the step, or a range such as 1000-1010")
    parser.add_argument("--losses", action="store_true", help="add the loss of each row, by the newest checkpoint")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--text", action="store_true", help="show all tokens that are read, and those to be predicted")
    group.add_argument("--json", action="store_true", help="write each row as JSON, with its arrays")


def run(arguments: argparse.Namespace) -> None:
    first, last = step_range(arguments.steps)
    from flaxformer_lite.run.recording import open_recording  # with JAX
    from flaxformer_lite.tools.recorder.rows import in_full, row_as_json, row_in_words, rows_with_losses
    from flaxformer_lite.workdir import open_run

    with Progress() as progress:
        recording = open_recording(open_run(arguments.folder), progress)
    if recording.reached < last <= recording.config.train.steps:
        note(f"the run is known to have taken {recording.reached} steps: those after it are what it will read")
    written: Callable[..., str] = partial(in_full, recording) if arguments.text else row_in_words
    if arguments.json:
        written = row_as_json
    for row, loss in rows_with_losses(recording, first, last, arguments.losses):
        print(written(row, loss))


def step_range(text: str) -> tuple[int, int]:
    """Returns the first and the last step of a range. Raises: ValueError if the text is not a range."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    first, last = (0, -1) if match is None else (int(match[1]), int(match[2] or match[1]))
    if last < first:
        raise ValueError(f"STEP is {text!r}: give a step such as 1000, or a range such as 1000-1010")
    return first, last
