"""From the flight recorder: near duplicates of the evaluation data, and the rows of batches whose loss was a spike."""

import math
import re
from collections import Counter

from flaxformer_lite.run.recording import open_recording
from flaxformer_lite.tools.recorder.near import NEAR, near_duplicates
from flaxformer_lite.tools.recorder.rerun import row_loss
from flaxformer_lite.tools.report import plots
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


def spike_parts(run: RunFacts) -> tuple[dict[str, plots.Chart], list[Table]]:
    """Returns the losses of each batch whose loss was a spike beside those of the batch before, and its rows, highest loss first.

    One bad row stands alone in the picture. If both batches look alike, no row was to blame, but an update before.
    """
    recording = open_recording(run.folder)
    at, loss_of = row_loss(recording)
    note, found = f"each row by itself, by the parameters of step {at}, without dropout", spikes(run)
    steps = {number: step for step, batch in found for number in (batch - 1, batch) if number >= 0}
    rows = [(loss_of(row.example), row) for row in recording.rows_of_batches(steps)]
    rows = sorted((pair for pair in rows if not math.isnan(pair[0])), key=lambda pair: -pair[0])
    charts, tables = dict[str, plots.Chart](), list[Table]()
    for step, batch in found:
        title = f"{run.name}: rows of batch {batch}, whose loss was a spike at step {step}"
        of_batch = {number: [(loss, row) for loss, row in rows if row.batch == number] for number in (batch - 1, batch)}
        counts = {f"batch {number}": Counter(loss for loss, _ in own) for number, own in of_batch.items() if own}
        charts[title] = plots.histogram(title, counts, "loss", note, items="rows", least=0)
        lines = [
            [f"{loss:.3f}", str(row.row), ", ".join(map(str, row.places)), row.source, row.target]
            for loss, row in of_batch[batch][:MOST_LINES]
        ]
        tables.append(Table(title, ["loss", "row", "place", "source", "target"], lines, note))
    return charts, tables
