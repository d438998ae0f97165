"""Oracles: the words of a row worked out by hand, and the data itself; a dry run writes nothing where it is started."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.base.console import Progress
from flaxformer_lite.base.stores import LEDGER, Store
from flaxformer_lite.config import Config, load_config, to_json
from flaxformer_lite.core.data.records import Lengths, TokenPair
from flaxformer_lite.core.model.config import ModelConfig
from flaxformer_lite.core.objectives import SentenceEmbeddings
from flaxformer_lite.core.text.characters import Characters, CharacterTokenizer
from flaxformer_lite.core.text.tokenizer import Tokenizers
from flaxformer_lite.files.data import Dates, ParallelText
from flaxformer_lite.files.data import store as token_store
from flaxformer_lite.run.recording import show_row, tokens_as_text
from flaxformer_lite.tools.planning.dry_run import describe_settings, dry_run, shape_in_words
from flaxformer_lite.training.data import RunData, look_at_data, read_data
from flaxformer_lite.workdir import RunFolder
from flaxformer_lite.workdir.bucket import Ledger
from tests.support.experiments import tiny_config, use_one_device
from tests.support.objectives import example
from tests.support.tokenizers import gapped


def test_a_row_is_shown_without_its_padding_and_with_ids_that_only_the_objective_knows():
    tokenizer = CharacterTokenizer("ab\n")
    a, b, line = tokenizer.encode("ab\n")
    ids = np.array([a, 30, line, b, tokenizer.eos_id, 0, 0])
    assert tokens_as_text(tokenizer, ids) == "a <30> \\n b </s>"
    assert tokens_as_text(tokenizer, ids, np.array([1, 0, 0, 1, 1, 0, 0], bool)) == "a _ _ b </s>"
    assert tokens_as_text(tokenizer, np.full(70, a), most=60).endswith("a a … (70 tokens)")
    assert tokens_as_text(tokenizer, np.zeros(3, int)) == ""
    assert tokens_as_text(gapped(), np.array([7, 5, 0, 7])) == "c <5> b c"


@pytest.mark.parametrize(("encoders", "reader"), [(1, "encoder"), (0, "decoder")])
def test_the_texts_of_either_stack_are_shown(encoders: int, reader: str):
    """A row of vectors has a query and its candidates, which one stack reads."""
    tokenizer = CharacterTokenizer("ab")
    record = TokenPair(np.array(tokenizer.encode("ab")), np.array(tokenizer.encode("b")))
    objective, lengths = SentenceEmbeddings(), Lengths(6, 0)
    row = example(objective, objective.make_rows([record], lengths, 0, tokenizer)[0], lengths)
    model = ModelConfig(vocab_size=8, num_encoder_layers=encoders, num_decoder_layers=1 - encoders)
    shown = show_row(model, row, Tokenizers(tokenizer, tokenizer))
    assert shown[:2] == [f"  {reader} reads   <s> a b </s>", f"  {reader} reads   <s> b </s>"]


def test_the_settings_that_differ_from_the_defaults_are_a_line_a_group():
    """Oracle: by hand."""
    config = load_config("quickstart")
    lines = describe_settings(replace(config, optimizer=replace(config.optimizer, ema_decay=0.5), weights="ema"))
    groups = "data train optimizer model objective decode weights"
    assert [line.split()[0] for line in lines] == groups.split()
    told = "steps 800, eval_every 400, checkpoint_every 400, text_metrics ('exact_match',)"
    assert lines[1].split(maxsplit=1)[1] == told
    assert lines[2].split()[1:3] == ["schedule.kind", "'Cosine',"] and lines[6].split(maxsplit=1)[1] == "weights 'ema'"


def test_shapes_in_words():
    assert shape_in_words(128, 16, 12) == "128 x (16 + 12)"
    assert shape_in_words(8, 0, 512) == "8 x (512)"


@pytest.mark.parametrize("store", [None, "tokens"])
def test_a_dry_run_reads_the_token_store_of_the_run_and_writes_nothing_to_it(
    store: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Law: the data is that of the training, nothing is tokenized or trained again, and no file is touched."""
    home = tmp_path / "home"
    home.mkdir()
    pairs = Dates(num_examples=50).open()
    for name, texts in (("x.en", [pair.source for pair in pairs]), ("x.de", [pair.target for pair in pairs])):
        (home / name).write_text("".join(f"{text}\n" for text in texts))
    source = ParallelText(source=str(home / "x.en"), target=str(home / "x.de"))
    data = replace(tiny_config().data, train=source, store=None if store is None else str(home / store))
    config, run = tiny_config(data=data), RunFolder(home / "run")
    monkeypatch.setattr(token_store, "MOST_RECORDS", 20)

    def look(name: str, config: Config = config) -> RunData:
        before = touched()
        (tmp_path / name).mkdir()
        with Progress(1, silent=True) as progress:
            data = look_at_data(config, run, tmp_path / name, progress)
        assert touched() == before
        return data

    def touched() -> dict[Path, int]:
        return {file: file.stat().st_mtime_ns for file in (home, *home.rglob("*"))}

    first = look("first")
    with run.lock(config), Progress(1, silent=True) as progress:
        trained = read_data(config, run, progress)
    monkeypatch.setattr(token_store, "write_shard", None)
    monkeypatch.setattr(Characters, "train", None)
    again = look("again")
    assert first.train.fingerprint == trained.train.fingerprint == again.train.fingerprint
    look("shapes", replace(config, data=replace(data, bucket_lengths=(16,))))
    swapped = replace(source, source=source.target, target=source.source)
    with pytest.raises(TypeError):  # other data is trained on and tokenized
        look("other", replace(config, data=replace(data, train=swapped)))


@pytest.mark.slow
def test_a_dry_run_shows_what_training_would_see_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    use_one_device(monkeypatch)
    monkeypatch.chdir(tmp_path)
    config = tiny_config()
    lines = dry_run(config, tmp_path / "run")
    assert len(lines) <= 40 and lines[1].startswith("train       steps 12, ")
    lines = lines[len(describe_settings(config)) :]
    assert lines[0].startswith("model       encoder of 2 layers and decoder of 2 layers, d_model 12")
    lacking = "position_padding_id, positions"
    assert lines[1] == f"exports to  Hugging Face: no ({lacking}); CTranslate2: yes"
    assert lines[3].startswith("data        200 training pairs in ")
    assert "MiB for a step of" in lines[5]
    read, given, predicted = (line[18:].replace(" ", "") for line in lines[-3:])
    assert is_date(given.removeprefix("<s>")) and predicted == given.removeprefix("<s>") + "</s>"
    assert read.endswith("</s>")
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_reads_a_run_at_a_url_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also at a URL where no run is yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store, config, found = Store(f"file://{tmp_path}/run"), tiny_config(), list[object]()

    def look(config: Config, run: RunFolder, scratch: Path, progress: Progress) -> RunData:
        found.append((run.name, (run.path / "config.json").is_file() and run.typed_config()))
        raise ValueError("seen")

    monkeypatch.setattr("flaxformer_lite.tools.planning.dry_run.look_at_data", look)
    for content in None, to_json(config).encode():
        if content is not None:
            store.write("config.json", content)
            store.write(LEDGER, Ledger(start=1).as_json())
        before = {*tmp_path.rglob("*")}
        with pytest.raises(ValueError, match=r"^seen$"):
            dry_run(config, store.url)
        assert {*tmp_path.rglob("*")} == before
    assert found == [(store.url, False), (store.url, config)]
    Store(f"file://{tmp_path}/other").write("notes", b"mine")
    with pytest.raises(ValueError, match=r"holds files, such as notes, but no .run.json: choose an empty place"):
        dry_run(config, f"file://{tmp_path}/other")


def is_date(text: str) -> bool:
    year, month, day = text.split("-")
    return len(year) == 4 and 1 <= int(month) <= 12 and 1 <= int(day) <= 31
