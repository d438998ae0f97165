"""Worked by hand: a row of a step as a line and as JSON; rows of a real run: test_rerun.py and tests/run/test_recording.py."""

import json

import numpy as np

from flaxformer_lite.core.objectives.batch import host_row
from flaxformer_lite.run.recording import RecordedRow, RecordPlace
from flaxformer_lite.tools.recorder.rows import row_as_json, row_in_words

ROW = RecordedRow(
    step=7,
    batch=6,
    epoch=1,
    row=2,
    places=(RecordPlace(3, "news", ("de.txt", "en.txt"), 4),),
    example=host_row(np.array([5, 1]), np.array([1.0, np.nan]), target_tokens=np.array([2, 5])),
    source="Guten Tag",
    target="word " * 20,
)


def test_a_row_in_a_line():
    assert row_in_words(ROW, 0.25).split("\t")[:4] == ["7", "2", "news: de.txt:4", "0.2500"]
    text = row_in_words(ROW).split("\t")[-1]
    assert text.endswith(" …") and len(text) <= 60


def test_a_row_as_json():
    row = json.loads(row_as_json(ROW, 0.25))
    assert (row["step"], row["batch"], row["loss"], row["source"]) == (7, 6, 0.25, "Guten Tag")
    assert row["records"] == [{"record": 3, "part": "news", "files": ["de.txt", "en.txt"], "line": 4}]
    assert row["arrays"]["targets"] == [5, 1] and row["arrays"]["weights"] == [1.0, None], "JSON has no NaN"
