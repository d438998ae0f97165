"""Finds records of the training data, and the steps that read them: by a text, a file and line, or a pattern.

Each record has a line with its place and its text, and a line with the steps and rows that read it, or the reason why none does:
too long, left out by the objective, held out, not reached yet. If the data has changed since the training, the exit status is 2.
Nothing is written, and the run may be training.
"""

import argparse
import json
from typing import TYPE_CHECKING

from flaxformer_lite.base.console import Progress, note

if TYPE_CHECKING:  # it needs JAX
    from flaxformer_lite.run.recording import Recording

MOST_RECORDS = 20
"""Records that are shown without --json."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="the run folder")
    parser.add_argument("text", metavar="TEXT", nargs="?", help="a part of a source or of a target")
    parser.add_argument("--file", help="a file of the training data, with --line")
    parser.add_argument("--line", type=int, metavar="N", help="the number of the line, from 1")
    parser.add_argument("--pattern", metavar="REGEX", help="a regular expression for a part of a source or of a target")
    parser.add_argument(
        "--near",
        choices=("eval", "test"),
        help="list the records of data.eval or data.test that are nearly in the training data, nearest first",
    )
    parser.add_argument("--json", action="store_true", help="write every record as JSON, with all its readings")


def run(arguments: argparse.Namespace) -> None:
    if (arguments.file is None) != (arguments.line is None):
        raise ValueError("--file and --line belong together: give both")
    if sum(value is not None for value in (arguments.text, arguments.file, arguments.pattern, arguments.near)) != 1:
        raise ValueError("give one of TEXT, --file with --line, --pattern, and --near: they are different questions")
    from flaxformer_lite.files.data.held_out import LEFT_OUT, PARTS
    from flaxformer_lite.run.recording import open_recording  # with JAX
    from flaxformer_lite.tools.recorder.seen import by_pattern, by_text, find, find_line, seen
    from flaxformer_lite.workdir import open_run

    matches = None
    if arguments.text is not None:
        matches = by_text(arguments.text)
    elif arguments.pattern is not None:
        matches = by_pattern(arguments.pattern)
    with Progress() as progress:
        recording = open_recording(open_run(arguments.folder), progress)
        progress.update("looking for it")
        if arguments.near is not None:
            show_near(recording, arguments)
            return
        if matches is None:
            records = find_line(recording, arguments.file, arguments.line)
        else:
            splits = PARTS[:1] if arguments.json else PARTS
            records = {split: list(find(recording, matches, split)) for split in splits}
        sightings = seen(recording, records["train"], arguments.text or "")
    if arguments.json:
        for record in sightings:
            print(json.dumps(record.as_json(), ensure_ascii=False))
        return
    reasons = {split: f"it belongs to data.{split}" for split in PARTS[1:]}
    reasons[LEFT_OUT] = "left out, as data.eval or data.test has one of its texts"
    held = [f"{place}\tnever: {reason}" for split, reason in reasons.items() for place, _ in records[split]]
    lines = [*held, *(record.in_words() for record in sightings)]
    print(*lines[:MOST_RECORDS] or ["never: no record of data.train, data.eval or data.test has it"], sep="\n")
    if len(lines) > MOST_RECORDS:
        note(f"{len(lines) - MOST_RECORDS:,} more records: --json writes those of data.train")
    if recording.reached < recording.config.train.steps:
        note(f"the run is known to have taken {recording.reached} of {recording.config.train.steps} steps")


def show_near(recording: "Recording", arguments: argparse.Namespace) -> None:
    from flaxformer_lite.tools.recorder.near import NEAR, near_duplicates

    records = near_duplicates(recording.config, arguments.near)
    if arguments.json:
        for near in records:
            print(json.dumps(near.as_json(), ensure_ascii=False))
        return
    for near in [near for near in records if near.share >= NEAR][:MOST_RECORDS]:
        print(near.in_words())
    many = sum(near.share >= NEAR for near in records)
    note(
        f"{many:,} of {len(records):,} records of data.{arguments.near} have {NEAR:.0%} of their n-grams in one of data.train"
    )
