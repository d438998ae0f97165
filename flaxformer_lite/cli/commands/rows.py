"""Shows the rows of a step as the model read them: their files and lines, and their texts.

STEP is a step of the run, counted from 1, or a range such as 1000-1010. Without options a line has the step, the row, its places
and both texts, between tabs. The data is compared with what the run was trained on; if it has changed, the exit status is 2.
Nothing is written, and the run may be training.
"""

import argparse
import json
import re
from textwrap import shorten

from flaxformer_lite.base.console import Progress, note

SHOWN = 60
"""Characters of a text in a line."""
AT_ONCE = 100
"""Steps that are held; each time the texts are read once."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="the run folder")
    parser.add_argument("steps", metavar="STEP", help="the step, or a range such as 1000-1010")
    parser.add_argument("--losses", action="store_true", help="add the loss of each row, by the newest checkpoint")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--text", action="store_true", help="show all tokens that are read, and those to be predicted")
    group.add_argument("--json", action="store_true", help="write each row as JSON, with its arrays")


def run(arguments: argparse.Namespace) -> None:
    first, last = step_range(arguments.steps)
    from flaxformer_lite.run.recording import RecordedRow, open_recording, show_row  # with JAX
    from flaxformer_lite.workdir import open_run
    from flaxformer_lite.workdir.folder import finite

    with Progress() as progress:
        recording = open_recording(open_run(arguments.folder), progress)
    if recording.reached < last <= recording.config.train.steps:
        note(f"the run is known to have taken {recording.reached} steps: those after it are what it will read")

    loss_of = None
    if arguments.losses:
        from flaxformer_lite.tools.recorder.rerun import row_loss

        _, loss_of = row_loss(recording)

    def show(row: RecordedRow) -> str:
        loss = None if loss_of is None else loss_of(row.example)
        places = [str(place) for place in row.places]
        if arguments.json:
            names = ("step", "batch", "epoch", "row", "source", "target", "arrays")
            fields = {name: getattr(row, name) for name in names} | {"records": [p._asdict() for p in row.places]}
            return json.dumps(finite(fields if loss is None else fields | {"loss": loss}), ensure_ascii=False)
        shown = "" if loss is None else f"{loss:.4f}"
        if arguments.text:
            head = f"step {row.step}, row {row.row}: {', '.join(places)}{shown and f', loss {shown}'}"
            return "\n".join([head, *show_row(recording.config.model, row.example, recording.data.tokenizers)])
        texts = [shorten(text, SHOWN, placeholder=" …") for text in (row.source, row.target)]
        return "\t".join([str(row.step), str(row.row), ", ".join(places), *filter(None, [shown, *texts])])

    for start in range(first, last + 1, AT_ONCE):
        for row in recording.rows(*range(start, min(start + AT_ONCE, last + 1))):
            print(show(row))


def step_range(text: str) -> tuple[int, int]:
    """Returns the first and the last step of a range. Raises: ValueError if it is none."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    first, last = (0, -1) if match is None else (int(match[1]), int(match[2] or match[1]))
    if last < first:
        raise ValueError(f"STEP is {text!r}: give a step such as 1000, or a range such as 1000-1010")
    return first, last
