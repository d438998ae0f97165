"""The rows of the steps of a run, with their losses, as a line, in full and as JSON."""

import json
from collections.abc import Iterator
from textwrap import shorten

from flaxformer_lite.run.recording import RecordedRow, Recording, show_row
from flaxformer_lite.tools.recorder.rerun import row_loss
from flaxformer_lite.workdir.folder import finite

TEXT_CHARACTERS = 60
"""Characters of a text in a line."""
STEPS_AT_ONCE = 100
"""Steps that are held; each time the texts are read once."""


def rows_with_losses(
    recording: Recording, first: int, last: int, losses: bool = False
) -> Iterator[tuple[RecordedRow, float | None]]:
    """Yields the rows of steps, the last one included, each with its loss by the newest checkpoint if `losses` are wanted."""
    loss_of = row_loss(recording)[1] if losses else None
    for start in range(first, last + 1, STEPS_AT_ONCE):
        for row in recording.rows(*range(start, min(start + STEPS_AT_ONCE, last + 1))):
            yield row, None if loss_of is None else loss_of(row.example)


def row_as_json(row: RecordedRow, loss: float | None = None) -> str:
    """Returns a row with its arrays."""
    names = ("step", "batch", "epoch", "row", "source", "target", "arrays")
    values = {name: getattr(row, name) for name in names} | {"records": [place._asdict() for place in row.places]}
    return json.dumps(finite(values if loss is None else values | {"loss": loss}), ensure_ascii=False)


def in_full(recording: Recording, row: RecordedRow, loss: float | None = None) -> str:
    """Returns a row with all tokens that are read, and those to be predicted."""
    shown = "" if loss is None else f", loss {loss:.4f}"
    head = f"step {row.step}, row {row.row}: {', '.join(map(str, row.places))}{shown}"
    return "\n".join([head, *show_row(recording.config.model, row.example, recording.data.tokenizers)])


def row_in_words(row: RecordedRow, loss: float | None = None) -> str:
    """Returns a row in a line: its step, its number, the places of its records, its loss and its texts."""
    texts = [shorten(text, TEXT_CHARACTERS, placeholder=" …") for text in (row.source, row.target)]
    shown = ["" if loss is None else f"{loss:.4f}", *texts]
    return "\t".join([str(row.step), str(row.row), ", ".join(map(str, row.places)), *filter(None, shown)])
