"""Oracles: the texts of the files, and the rows of all steps one by one."""

import dataclasses
import functools
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from flaxformer_lite.config.train import TrainConfig
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.objectives import CausalLM
from flaxformer_lite.files.data import DataSource, JSONLines, ParallelText, PlainText
from flaxformer_lite.files.data.held_out import LEFT_OUT
from flaxformer_lite.files.records import Documents
from flaxformer_lite.run.recording import RecordPlace, located, open_recording
from flaxformer_lite.tools.recorder.seen import by_text
from flaxformer_lite.workdir import RunFolder
from tests.support.commands import Command, Said
from tests.support.experiments import tiniest_config, with_train
from tests.support.recorded_runs import DrawnRun, listen

SOURCES = [*(f"pair number {i:02} here" for i in range(1, 31)), "far too long " * 9, "pair number 07 here"]
"""Line 31 is too long, line 32 is line 7 again."""

Typed = Callable[..., Said]


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DrawnRun:
    """A run of 6 of 12 steps in 8 rows: the fifth step was wrong, and batches 3 to 4 were left out."""
    for side in ("source", "target"):
        (tmp_path / f"train.{side}").write_text("".join(f"{text[:20]} {side}\n" for text in SOURCES[:30]) + "\n")
        with (tmp_path / f"train.{side}").open("a") as file:
            file.writelines(f"{text} {side}\n" for text in SOURCES[30:])
    tiny = tiniest_config()
    data = ParallelText(source=f"{tmp_path}/train.source", target=f"{tmp_path}/train.target", empty_lines="drop")
    data = dataclasses.replace(tiny.data, train=data, eval=None, held_out=0.15, max_target_length=40)
    few = {"steps": 6, "checkpoint_every": 2, "max_skipped_steps": 1, "max_rollbacks": 1, "eval_every": 99}
    config = with_train(dataclasses.replace(tiny, data=data), **few, text_metrics=())
    run = DrawnRun(tmp_path / "run", config)
    listen(run, monkeypatch, wrong={4})
    path = run.folder / "config.json"
    path.write_text(path.read_text().replace('"steps": 6', '"steps": 12'))
    return run


def language_run(folder: Path, source: DataSource, steps: int, patch: pytest.MonkeyPatch) -> DrawnRun:
    """A run of a language model in one row or more a document."""
    tiny = tiniest_config()
    data = dataclasses.replace(tiny.data, train=source, eval=None, max_target_length=100)
    model = ModelConfig(num_encoder_layers=0, num_decoder_layers=1, vocab_size=60, d_model=4, num_heads=1, d_ff=4)
    train = TrainConfig(steps=steps, checkpoint_every=2)
    run = DrawnRun(folder / "run", dataclasses.replace(tiny, objective=CausalLM(), model=model, data=data, train=train))
    listen(run, patch)
    return run


@pytest.fixture
def typed(command: Command) -> Typed:
    return functools.partial(command, "seen")


@pytest.mark.parametrize("text", ["cafe\u0301", "CAFÉ in new\u00a0york", "in  New", "Straße"])
def test_a_text_is_looked_for_in_the_normal_form(text: str):
    matches, place = by_text(text), RecordPlace(0, "", ("", ""), 1)
    for pair in (Pair("ein Café in New York, STRASSE", "x"), Pair("", "café in new york strasse")):
        assert matches(place, pair)
    assert not matches(place, Pair("cafe", "York, Strase"))


def test_each_record_has_all_rows_that_read_it_or_the_reason_why_none_does(pairs: DrawnRun, typed: Typed):
    recording = open_recording(RunFolder(pairs.folder))
    by_line: dict[int, set[tuple[int, int]]] = {}
    for step in range(1, 13):
        for row in recording.rows(step):
            by_line.setdefault(row.places[0].line, set()).add((step, row.row))
    found = [json.loads(line) for line in typed(pairs.folder, "--pattern", "(?s).", "--json").lines]
    train = {record["line"]: record for record in found}
    assert [record["line"] for record in found] == sorted(train)
    for line, record in train.items():
        read = {(r["step"], r["row"]) for r in record["readings"] if r["step"] is not None}
        assert read == by_line.get(line, set())
        assert {r["state"] for r in record["readings"] if (r["step"] or 0) > 6} <= {"not yet"}
        assert bool(record["readings"]) != bool(record["never"])
    assert {r["state"] for record in found for r in record["readings"]} == {"read", "left out", "not yet"}
    assert {r["batch"] for record in found for r in record["readings"] if r["state"] == "left out"} == {2, 3}
    assert train[32]["never"].startswith("too long: it needs 125 + 125 tokens")  # after the blank line 31
    held = {*range(1, 31), 32, 33} - {*train}
    assert held and 31 not in train
    line = min(held)
    file = pairs.config.data.train.source
    (said,) = typed(pairs.folder, "--file", file, "--line", line).lines
    assert said in [f"{file}:{line}\tnever: it belongs to data.{split}" for split in ("eval", "test")]
    assert typed(pairs.folder, "--file", file, "--line", 31).out.startswith("never: no record")


def test_a_text_is_found_on_either_side_and_as_often_as_it_is_there(pairs: DrawnRun, typed: Typed, command: Command):
    for side in ("source", "target"):
        lines = [line.split("\t")[0] for line in typed(pairs.folder, f"number 07 here {side}").lines]
        assert [line.rpartition(":")[2] for line in lines if not line.startswith(" ")] == ["7", "33"]
    assert typed(pairs.folder, "number .7").out.startswith("never: no record"), "a text is no pattern"
    for words in (
        [],
        ["x", "--pattern", "y"],
        ["--file", "x"],
        ["--file", "x", "--line", "1"],
        ["--pattern", "("],
        [" "],
    ):
        command.mistake("seen", pairs.folder, *words)


def test_a_pair_that_shares_a_text_with_a_held_out_one_has_that_reason(pairs: DrawnRun, typed: Typed):
    """By hand: the target of a held-out pair comes again behind another source, which the training does not hold out."""
    data = pairs.config.data
    evaluated = data.source("eval")
    assert evaluated is not None and isinstance(data.train, ParallelText)
    target = next(iter(evaluated.stream())).target
    source = next(iter(data.source("train").stream())).source.upper()  # type: ignore[union-attr]
    for path, text in ((data.train.source, source), (data.train.target, target)):
        with open(path, "a") as file:
            file.write(text + "\n")
    matches = by_text(target)
    places = [place.line for place, pair in located(pairs.config, LEFT_OUT) if matches(place, pair)]
    assert places == [len(SOURCES) + 2]


def test_of_long_answers_the_first_part_is_shown(
    pairs: DrawnRun, typed: Typed, command: Command, monkeypatch: pytest.MonkeyPatch
):
    """Oracle: all lines. The path of a file may be another than that of the config."""
    path = os.path.relpath(pairs.config.data.train.source)
    (whole,) = typed(pairs.folder, "--file", path, "--line", 32, "--json").lines
    assert json.loads(whole)["line"] == 32
    several = typed(pairs.folder, "--pattern", ".", "--json").lines
    monkeypatch.setattr("flaxformer_lite.tools.recorder.seen.READINGS_SHOWN", 1)
    monkeypatch.setattr("flaxformer_lite.cli.commands.seen.MOST_RECORDS", 2)
    out, err = typed(pairs.folder, "--pattern", ".")
    assert "30 more records" in err and "have taken 6 of 12 steps" in err
    assert out.count("train.source:") == 2
    read = next(one for one in map(json.loads, several) if sum(r["state"] == "read" for r in one["readings"]) > 1)
    names = [f"step {r['step']} row {r['row']}" for r in read["readings"] if r["state"] == "read"]
    assert f"rows: {names[0]}, …\n" in typed(pairs.folder, read["source"]).out
    monkeypatch.setattr("flaxformer_lite.tools.recorder.seen.READINGS_SHOWN", len(names))
    assert f"rows: {', '.join(names)}\n" in typed(pairs.folder, read["source"]).out
    monkeypatch.setattr("flaxformer_lite.tools.recorder.seen.MOST_FOUND", len(several) - 1)
    command.mistake("seen", pairs.folder, "--pattern", ".")


def test_a_text_with_line_breaks_is_one_line_of_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed):
    """By hand: the text of line 3 has two line breaks, but line 5 is another record."""
    texts = [f"text {i} of a file" for i in range(1, 41)]
    texts[2] = "text 3\nof a\nfile"
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    run = language_run(tmp_path, JSONLines(path=str(path), record=Documents()), 2, monkeypatch)
    for line, text in ((3, "text 3"), (5, "text 5 of a file")):
        (found,) = map(json.loads, typed(run.folder, "--file", path, "--line", line, "--json").lines)
        assert (found["line"], found["target"].split("\n")[0]) == (line, text)


def test_of_a_long_document_the_rows_with_the_text_are_shown(tmp_path: Path, monkeypatch, typed: Typed):
    """Oracle: the needle is in one piece of ten, which comes once an epoch."""
    words = [f"w{i:03}" for i in range(200)]
    (tmp_path / "a.txt").write_text("\n".join([" ".join(words), "another document of a few words"]) + "\n")
    run = language_run(tmp_path, PlainText(path=f"{tmp_path}/a.txt", documents="lines"), 6, monkeypatch)
    (needle,) = map(json.loads, typed(run.folder, "w050 w051", "--json").lines)
    recording = open_recording(RunFolder(run.folder))
    found = [row for step in range(1, 7) for row in recording.rows(step) if "w050 w051" in row.target]
    expected = [(row.step, row.row, epoch) for epoch, row in enumerate(found, 1)]
    assert [(r["step"], r["row"], r["epoch"]) for r in needle["readings"]] == expected != []
    assert [row.epoch for row in found] == [epoch for _, _, epoch in expected]
    (spread,) = map(json.loads, typed(run.folder, " ".join(words[:60]), "--json").lines)
    assert len(spread["readings"]) > len(expected)
