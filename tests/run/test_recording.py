"""Oracles: the arrays that the trainer's own step received, and the lines of the files of data, read without the package."""

import itertools
import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from flaxformer_lite.run.recording import RecordedRow, Recording, RecordPlace, open_recording
from flaxformer_lite.workdir import RunFolder
from tests.support.commands import Command
from tests.support.objectives import unmasked
from tests.support.recorded_runs import STEPS, DrawnRun, draw_run


def check_batches(run: DrawnRun) -> None:
    """What a host received of each step are these rows of it, bit for bit."""
    recording = open_recording(RunFolder(run.folder))
    for step, (rows, received) in run.received.items():
        whole = recording.batch(step)
        assert jax.tree.structure(whole) == jax.tree.structure(received), run.drawn
        for here, there in zip(jax.tree.leaves(whole), jax.tree.leaves(received), strict=True):
            np.testing.assert_array_equal(here[rows], there, f"{run.drawn}, step {step}")


def text_at(run: DrawnRun, file: str, line: int) -> str:
    """The lines from there to the next blank one: all that a document may have."""
    return "\n".join(itertools.takewhile(bool, run.texts[file][line - 1 :]))


def check_places(run: DrawnRun, recording: Recording, row: RecordedRow) -> None:
    """The texts of a row stand at the places that it names."""
    texts = [text_at(run, place.files[0], place.line) for place in row.places]
    kind, tokenizer = run.config.objective.kind, recording.data.tokenizers.target
    if kind == "seq2seq":
        assert row.source == run.texts[row.places[0].files[0]][row.places[0].line - 1]
        return
    inputs = row.example.inputs
    if kind == "span_corruption":
        visible = tokenizer.decode(tokenizer.with_pieces(inputs.source_tokens.tolist()))
        assert set(visible) <= set(texts[0])
        return
    tokens = inputs.target_tokens if kind == "causal_lm" else np.array(unmasked(row.example))
    segments = inputs.target_segments if kind == "causal_lm" else inputs.source_segments
    types = inputs.token_types if len(row.places) > 1 and segments.max() == 1 else np.zeros_like(tokens)
    for number, text in enumerate(texts):
        own = (types == number) & (segments == 1) if types.any() else segments == number + 1
        assert tokenizer.decode(tokens[own].tolist()) in text, run.drawn


def check_run(run: DrawnRun) -> None:
    check_batches(run)
    recording = open_recording(RunFolder(run.folder))
    read = set()
    for step in range(1, STEPS + 1):
        batch, rows = recording.batch(step), recording.rows(step)
        mask = batch.inputs.target_mask if batch.inputs.source_mask is None else batch.inputs.source_mask
        assert len(rows) == int(mask.any(-1).sum()), run.drawn
        for row in rows:
            assert row.step == step
            jax.tree.map(
                lambda whole, own, row=row: np.testing.assert_array_equal(whole[row.row], own), batch, row.example
            )
            check_places(run, recording, row)
            read |= {(place.record, step, row.row) for place in row.places}
    records = sorted({record for record, *_ in read})
    found = recording.readings(records)
    assert {(r.record, r.step, r.row) for r in found if r.step is not None} == read, run.drawn
    skipped = set(recording.loop_state.skipped_steps)
    assert {r.step for r in found if r.state == "skipped"} == skipped & {r.step for r in found}, run.drawn
    assert all(r.state in ("read", "skipped", "left out") for r in found)
    one = records[len(records) // 2]
    assert recording.readings([one]) == [r for r in found if r.record == one]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_the_rows_of_a_step_are_those_that_the_trainer_received(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    check_run(draw_run(seed, tmp_path, monkeypatch, check_batches))


def test_beyond_the_newest_step_are_the_rows_to_come(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch):
    run = draw_run(1, tmp_path, monkeypatch)
    config = run.folder / "config.json"
    config.write_text(config.read_text().replace(f'"steps": {STEPS}', f'"steps": {STEPS + 5}'))
    recording = open_recording(RunFolder(run.folder))
    (run.folder / "metrics.jsonl").unlink()  # the newest checkpoint knows it too
    assert recording.reached == open_recording(RunFolder(run.folder)).reached == STEPS
    assert str(RecordPlace(0, "of a mixture", ("a.en", "a.de"), 3)) == "of a mixture: a.en:3"
    record = recording.rows(STEPS + 5)[0].places[0].record
    states = {(r.step or 0) > STEPS: r.state for r in recording.readings([record])}
    assert states[True] == "not yet" and states[False] != "not yet"
    said = command("rows", run.folder, STEPS + 5)
    assert f"the run is known to have taken {STEPS} steps" in said.err
    with pytest.raises(ValueError, match=f"step is {STEPS + 6}: the run has the steps 1 to {STEPS + 5}"):
        recording.rows(STEPS + 6)


@pytest.mark.slow
def test_changed_data_and_runs_that_trained_nothing_are_refused(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """Law: no answer where it could be wrong; a file that was only touched is the same data."""
    run = draw_run(1, tmp_path, monkeypatch)
    before = open_recording(RunFolder(run.folder)).rows(3)
    file = Path(next(iter(run.texts)))
    text = file.read_text()
    file.write_text(text)
    assert [row.places for row in open_recording(RunFolder(run.folder)).rows(3)] == [row.places for row in before]
    file.write_text(text.replace("a", "b", 1))
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    status, said = command.ended("rows", run.folder, 3)
    assert status == 2 and "is not the data that" in said.notes[-1]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == written
    config = run.folder / "config.json"
    text = config.read_text()
    config.write_text(re.sub(r'"max_target_length": \d+', '"max_target_length": 19', text))
    with pytest.raises(ValueError, match="differs from the settings that checkpoint"):
        open_recording(RunFolder(run.folder))
    config.write_text(text)
    for checkpoint in (run.folder / "checkpoints").iterdir():
        shutil.rmtree(checkpoint)
    open_recording(RunFolder(run.folder))
    assert "has no checkpoint yet" in capsys.readouterr().err
    imported = {"meta": {"parameters_only": "a hub"}}
    monkeypatch.setattr("flaxformer_lite.run.recording.manifests", lambda checkpoints: iter([(1, imported)]))
    with pytest.raises(ValueError, match="took no step of a training"):
        open_recording(RunFolder(run.folder))


def test_the_command_and_python_show_the_same_rows(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch):
    run = draw_run(11, tmp_path, monkeypatch)
    expected = [row for step in (2, 3) for row in open_recording(RunFolder(run.folder)).rows(step)]
    found = [json.loads(line) for line in command("rows", run.folder, "2-3", "--json").lines]
    assert [(one["step"], one["row"], one["source"], one["arrays"]) for one in found] == [
        (row.step, row.row, row.source, row.arrays) for row in expected
    ]
    heads = [line.split("\t")[:3] for line in command("rows", run.folder, "2-3").lines]
    assert heads == [[str(row.step), str(row.row), str(row.places[0])] for row in expected]
    heads = [line for line in command("rows", run.folder, 2, "--text").lines if line.startswith("step ")]
    assert len(heads) == sum(row.step == 2 for row in expected)
    for steps in ("2-", "x", "3-2"):
        assert steps in command.mistake("rows", run.folder, steps)
