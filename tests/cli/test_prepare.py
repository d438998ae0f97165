"""Laws of `prepare`: parts of several hosts are one store, which a training reads and `inspect` shows; mistakes are one line."""

import dataclasses
import json
from pathlib import Path

from flaxformer_lite.core.data.token_arrays import TokenArrays
from flaxformer_lite.files.data import store as token_store
from flaxformer_lite.files.data.reading import tokenize
from flaxformer_lite.files.data.store import TokenStore, train_tokenizers
from tests.support.commands import Command
from tests.support.experiments import tiny_config, write_config_file


def test_hosts_prepare_their_parts_and_inspect_shows_them(tmp_path: Path, command: Command, monkeypatch):
    monkeypatch.setattr(token_store, "MOST_RECORDS", 100)
    config = write_config_file(tmp_path / "tiny.json", tiny_config())
    prepare = ["prepare", config, "--data.store", tmp_path / "stores"]
    out, err = command(*prepare, "--part", "2/2")
    assert not json.loads(out)["whole"] and "part 2/2 is made; other parts are missing" in err
    assert not json.loads(command("inspect", tmp_path / "stores").out)[0]["whole"]
    found = json.loads(command(*prepare, "--part", "1/2").out)
    assert json.loads(command("inspect", tmp_path / "stores").out) == [found] and found["whole"]

    source = tiny_config().data.train
    data = dataclasses.replace(tiny_config().data, store=str(tmp_path / "stores"))
    tokenizers = train_tokenizers(data, tiny_config().tokenizer_sizes, [])  # no pair is read: it is there
    store = TokenStore.of(tmp_path / "stores", source, tokenizers)
    monkeypatch.setattr(token_store, "write_shard", None)
    assert store.build(tokenizers, lambda *_: None)
    memory = TokenArrays.of(tokenize(source.open(), tokenizers))
    assert store.records.fingerprint() == memory.fingerprint() and found["records"] == len(memory)
    assert [found["source_tokens"], found["target_tokens"]] == memory.sizes.sum(0).tolist()


def test_mistakes(tmp_path: Path, command: Command):
    said = command.mistake("prepare", write_config_file(tmp_path / "tiny.json", tiny_config()))
    assert "data.store is None: prepare needs all three; choose a folder with --data.store" in said
