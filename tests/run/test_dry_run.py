"""Oracles: the words of a row worked out by hand, and the data itself; a dry run writes nothing where it is started."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flaxformer_lite.config import from_json
from flaxformer_lite.console import Progress
from flaxformer_lite.data import shards
from flaxformer_lite.data.store import TokenStore
from flaxformer_lite.run.dry_run import dry_run, pieces, shape_in_words
from flaxformer_lite.text.characters import CharacterTokenizer
from flaxformer_lite.training.data import read_data
from flaxformer_lite.training.multihost.agreement import Processes
from flaxformer_lite.workdir import RunFolder
from tests.support.experiments import tiny_config, use_one_device
from tests.support.tokenizers import gapped


def test_a_row_is_shown_without_its_padding_and_with_ids_that_only_the_objective_knows():
    tokenizer = CharacterTokenizer("ab\n")
    a, b, line = tokenizer.encode("ab\n")
    ids = np.array([a, 30, line, b, tokenizer.eos_id, 0, 0])
    assert pieces(tokenizer, ids) == "a <30> \\n b </s>"
    assert pieces(tokenizer, ids, np.array([1, 0, 0, 1, 1, 0, 0], bool)) == "a _ _ b </s>"
    assert pieces(tokenizer, np.full(70, a)).endswith("a a … (70 tokens)")
    assert pieces(tokenizer, np.zeros(3, int)) == ""
    assert pieces(gapped(), np.array([7, 5, 0, 7])) == "c <5> b c"


def test_shapes_in_words():
    assert shape_in_words(128, 16, 12) == "128 x (16 + 12)"
    assert shape_in_words(8, 0, 512) == "8 x (512)"


@pytest.mark.slow
def test_a_dry_run_shows_what_training_would_see_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    use_one_device(monkeypatch)
    monkeypatch.chdir(tmp_path)
    config = tiny_config()
    text, *lines = dry_run(config, tmp_path / "none")
    assert from_json(text) == config and json.loads(text)["train"]["steps"] == 12
    assert lines[0].startswith("model       encoder of 2 layers and decoder of 2 layers, d_model 12")
    lacking = "attention, positions, feed_forward_bias, norm, scale_embeddings"
    assert lines[1] == f"exports to  Hugging Face: no ({lacking}); CTranslate2: yes"
    assert lines[3].startswith("data        200 training pairs in ")
    assert "MiB for a step of" in lines[5]
    read, given, predicted = (line[18:].replace(" ", "") for line in lines[-3:])
    assert is_date(given.removeprefix("<s>")) and predicted == given.removeprefix("<s>") + "</s>"
    assert read.endswith("</s>")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_tokens_of_a_run_are_read_and_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Law: the tokenizer and a whole store of the same data are the run's, whose files stay; other data has its own."""
    use_one_device(monkeypatch)
    monkeypatch.setattr(shards, "MOST_RECORDS", 90)  # three shards
    monkeypatch.setattr("flaxformer_lite.run.dry_run.describe_memory", lambda *_: "")  # which compiles a step
    run, config = RunFolder(tmp_path / "run"), tiny_config()
    with run.lock(config), Progress(1) as progress:
        read_data(config, run, progress, Processes(), lambda: None)
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    built: list[Path] = []
    build = TokenStore._build

    def counted(store: TokenStore, *arguments: Any) -> bool:
        built.append(store.folder)
        return build(store, *arguments)

    monkeypatch.setattr(TokenStore, "_build", counted)
    dry_run(config, run.path)
    assert built == [] and {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before
    dry_run(dataclasses.replace(config, data=dataclasses.replace(config.data, bucket_lengths=(16,))), run.path)
    assert len(built) == 1 and run.path not in built[0].parents


def is_date(text: str) -> bool:
    year, month, day = text.split("-")
    return len(year) == 4 and 1 <= int(month) <= 12 and 1 <= int(day) <= 31
