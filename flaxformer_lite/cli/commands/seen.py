"""Finds records of the training data, and the steps that read them: by a text, a file and line, or a pattern.

Each record has a line with its place and its text, and a line with the steps and rows that read it, or the reason why none does:
too long, left out by the objective, held out, not reached yet. If the data has changed since the training, the exit status is 2.
Nothing is written, and the run may be training.
"""

import argparse
import json
from typing import TYPE_CHECKING

from flaxformer_lite.base.console import Progress, note
from flaxformer_lite.cli.options import add_run

if TYPE_CHECKING:  # it needs JAX
    from flaxformer_lite.run.recording import Recording
    from flaxformer_lite.tools.recorder.seen import Sightings

MOST_RECORDS = 20
"""Records that are shown without --json."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("text", metavar="TEXT", nargs="?", help="a part of a source or of a target")
    parser.add_argument("--file", help="a file of the training data, with --line")
    parser.add_argument("--line", type=int, metavar="N", help="the number of the line, from 1")
    parser.add_argument("--pattern", metavar="REGEX", help="a regular expression for a part of a source or of a target")
    parser.add_argument("--json", action="store_true", help="write every record as JSON, with all its readings")


def run(arguments: argparse.Namespace) -> None:
    check_question(arguments)
    from flaxformer_lite.run.recording import open_recording  # with JAX
    from flaxformer_lite.tools.recorder.seen import look_for, question
    from flaxformer_lite.workdir import open_run

    asked = question(arguments.text, arguments.pattern, arguments.file, arguments.line)
    with Progress() as progress:
        recording = open_recording(open_run(arguments.folder), progress)
        progress.update("looking for it")
        answer = look_for(recording, asked, arguments.text or "", train_alone=arguments.json)
    print_sightings(answer, recording, arguments.json)


def check_question(arguments: argparse.Namespace) -> None:
    """Raises: ValueError unless one question is asked."""
    if (arguments.file is None) != (arguments.line is None):
        raise ValueError("--file and --line belong together: give both")
    if sum(value is not None for value in (arguments.text, arguments.file, arguments.pattern)) != 1:
        raise ValueError("give one of TEXT, --file with --line, and --pattern: they are different questions")


def print_sightings(answer: "Sightings", recording: "Recording", as_json: bool) -> None:
    """Prints the records that were looked for: all of them as JSON, or the first ones in words."""
    if as_json:
        for record in answer.seen:
            print(json.dumps(record.as_json(), ensure_ascii=False))
        return
    lines = answer.in_words()
    print(*lines[:MOST_RECORDS] or ["never: no record of data.train, data.eval or data.test has it"], sep="\n")
    if len(lines) > MOST_RECORDS:
        note(f"{len(lines) - MOST_RECORDS:,} more records: --json writes those of data.train")
    if recording.reached < recording.config.train.steps:
        note(f"the run is known to have taken {recording.reached} of {recording.config.train.steps} steps")
