"""Tables from the flight recorder: near duplicates of the evaluation data, and the rows of batches whose loss was a spike."""

import re

from flaxformer_lite.run.recording import open_recording
from flaxformer_lite.tools.recorder.near import NEAR, near_duplicates
from flaxformer_lite.tools.recorder.rerun import newest_row_losses
from flaxformer_lite.tools.report.facts import RunFacts
from flaxformer_lite.tools.report.scores import Table

MOST_LINES = 20
"""Lines of a table."""
MOST_SPIKES = 3
"""Spikes whose rows are shown, the newest ones."""


def near_table(run: RunFacts) -> Table:
    """Returns the records of `data.eval` that are nearly in the training data. Raises: ValueError if that is large."""
    if run.config.data.store is not None or (run.folder.path / ".tokens").is_dir():
        raise ValueError(
            f"the training data is large: `flaxformer-lite seen {run.path} --near eval` lists near duplicates"
        )
    found = near_duplicates(run.config)
    near = [one for one in found if one.share >= NEAR]
    lines = [one.in_words().split("\t") for one in near[:MOST_LINES]]
    counted = f"{len(near):,} of {len(found):,} records have {NEAR:.0%} of their n-grams in one record of data.train"
    head = ["share", "data.eval", "data.train", "text", "text in training"]
    return Table(f"{run.name}: evaluation data that is nearly in the training data", head, lines, counted)


def spikes(run: RunFacts) -> list[tuple[int, int]]:
    """Returns step and batch of the newest loss spikes in train.log, each once."""
    log = run.folder.path / "train.log"
    text = log.read_text(encoding="utf-8") if log.is_file() else ""
    found = re.findall(r"step +(\d+)  a loss spike on batch (\d+):", text)
    return list(dict.fromkeys((int(step), int(batch)) for step, batch in found))[-MOST_SPIKES:]


def spike_tables(run: RunFacts) -> list[Table]:
    """Returns the rows of each batch whose loss was a spike, those of the highest losses by the newest checkpoint first."""
    recording = open_recording(run.folder)
    at, losses_of = newest_row_losses(recording)
    tables, found = [], spikes(run)
    rows_of = recording.rows_of_batches({batch: step for step, batch in found})
    for step, batch in found:
        losses = losses_of(recording.data.train.batch(batch))
        rows = sorted((row for row in rows_of if row.batch == batch), key=lambda row: -losses[row.row])[:MOST_LINES]
        lines = [
            [f"{losses[row.row]:.3f}", str(row.row), ", ".join(map(str, row.places)), row.source, row.target]
            for row in rows
        ]
        head = ["loss", "row", "place", "source", "target"]
        note = f"each row by itself, by the parameters of step {at}, without dropout"
        tables.append(
            Table(f"{run.name}: rows of batch {batch}, whose loss was a spike at step {step}", head, lines, note)
        )
    return tables
