"""Oracle: transformers, by tests/fixtures/tokenizers (tests/makers/make_tokenizer_reference.py)."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite.interop.hf.tokenizer_files import read_tokenizers
from flaxformer_lite.run import load
from flaxformer_lite.text.kinds import load_tokenizer
from flaxformer_lite.text.marian import MarianTokenizer
from flaxformer_lite.text.tokenizer import Tokenizers
from tests.support.commands import type_command
from tests.support.experiments import use_one_device
from tests.support.hf_folders import DATA
from tests.support.paths import FIXTURES

FILES = FIXTURES / "tokenizers"
MANY = (10_000, 10_000)


def read(folder: Path, model_type: str = "") -> Tokenizers:
    found = read_tokenizers(folder, {"model_type": model_type}, MANY)
    assert found.tokenizers is not None, found.note
    return found.tokenizers


def expected(name: str) -> dict[str, Any]:
    return json.loads((FILES / name / "expected.json").read_text(encoding="utf-8"))


def copied(name: str, folder: Path, **settings: Any) -> Path:
    """A fixture's folder with other settings of the tokenizer."""
    copy = Path(shutil.copytree(FILES / name, folder / name))
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    return copy


@pytest.mark.parametrize("name", ["marian", "marian_separate"])
def test_marian_reads_and_writes_as_the_library(name: str, tmp_path: Path) -> None:
    """Both sides, saved and loaded: language codes, pieces without an id, pieces of the other side, spaces."""
    found, theirs = read(FILES / name), expected(name)
    found.source.save(tmp_path)
    found.target.save(tmp_path, "target_tokenizer")
    for side, tokenizer in {
        "source": load_tokenizer(tmp_path),
        "target": load_tokenizer(tmp_path, "target_tokenizer"),
    }.items():
        assert [tokenizer.as_source(tokenizer.encode(row["text"])) for row in theirs[side]] == [
            row["ids"] for row in theirs[side]
        ]
    target = load_tokenizer(tmp_path, "target_tokenizer")
    for row in theirs["answers"] + theirs["target"]:
        assert target.decode(row["ids"]) == row["back"]
    assert target.special[:5] == (40, 1, None, 0, None)
    assert target.vocab_size == (47 if name == "marian_separate" else 41)


@pytest.mark.parametrize("name", ["bert", "bert_cased", "roberta", "gpt2"])
def test_vocabularies_in_text_files_are_read_as_by_the_library(name: str) -> None:
    tokenizer, theirs = read(FILES / name).source, expected(name)
    for row in theirs["texts"]:
        ids = tokenizer.with_special_tokens(tokenizer.encode(row["text"])).tokens
        assert ids == row["ids"], row["text"]
        assert tokenizer.decode(ids) == row["back"], row["text"]
    for row in theirs["pairs"]:
        assert tokenizer.with_special_tokens(*map(tokenizer.encode, row["pair"])) == (row["ids"], row["types"])


def test_the_model_decides_the_class_if_the_folder_does_not(tmp_path: Path) -> None:
    """BART's is RoBERTa's, whose mask takes the space before it along; others are refused by name."""
    folder = copied("roberta", tmp_path)
    tokenizer = read(folder, "bart").source
    row = next(row for row in expected("roberta")["texts"] if "<mask>" in row["text"])
    assert tokenizer.with_special_tokens(tokenizer.encode(row["text"])).tokens == row["ids"]
    assert tokenizer.mask_id is not None and tokenizer.eos_id == 2 and tokenizer.pad_id == 1
    assert (
        "a Qwen2Tokenizer in other files" in read_tokenizers(folder, {"tokenizer_class": "Qwen2Tokenizer"}, MANY).note
    )
    assert "no vocabulary" in read_tokenizers(tmp_path, {"model_type": "bert"}, MANY).note
    assert "reads 20" in read_tokenizers(folder, {"model_type": "bart"}, (20, 20)).note


def test_damaged_vocabularies_are_refused(tmp_path: Path) -> None:
    folder = copied("marian", tmp_path)
    model = (folder / "source.spm").read_bytes()
    for ids, what in (
        ({"a": 0, "b": 0}, "id of its own"),
        ({"a": "0"}, "id of its own"),
        ({"a": 0}, "special token: <pad>"),
    ):
        with pytest.raises(ValueError, match=what):
            MarianTokenizer(model, ids)
    (folder / "source.spm").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"source\.spm with vocab\.json"):
        read(folder)
    folder = copied("bert", tmp_path, cls_token="[BEGIN]")
    with pytest.raises(ValueError, match=r"vocab\.txt holds no BertTokenizer that can be read: .*lacks .* \[BEGIN\]"):
        read(folder, "bert")
    folder = copied("gpt2", tmp_path, added_tokens_decoder={"7000": {"content": "<far>"}})
    with pytest.raises(ValueError, match="'<far>' should be the added token 7000"):
        read(folder, "gpt2")
    MarianTokenizer(model, {"<pad>": 0, "<unk>": 1, "</s>": 7}).save(tmp_path)
    hollow = load_tokenizer(tmp_path)
    assert hollow.vocab_size == 8 and hollow.decode([3, 7]) == "" and hollow.word_starts([3, 3]) == [True, False]
    path = tmp_path / "tokenizer.marian.json"
    path.write_text('{"kind": "marian", "model": "", "ids": []}')
    with pytest.raises(ValueError, match='"ids" is missing or of another type: it must be a dict'):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("token", [5, {"content": 5}, {"text": "</s>"}])
def test_special_tokens_that_are_no_strings_are_refused(token: Any, tmp_path: Path) -> None:
    for name, role in (("marian", "eos_token"), ("gpt2", "bos_token")):
        with pytest.raises(
            ValueError, match=r"a special token is .*: it must be a string, or an object with its content"
        ):
            read(copied(name, tmp_path, **{role: token}), name)
        shutil.rmtree(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "complaint"), [("gpt2", "number from 0 to 16777215"), ("marian", "from 0 to 16777215")]
)
def test_an_id_without_bounds_is_refused(name: str, complaint: str, tmp_path: Path) -> None:
    """It took a minute, or a list of that length."""
    folder = Path(shutil.copytree(FILES / name, tmp_path / name))
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    (folder / "vocab.json").write_text(json.dumps(vocabulary | {"far": 2**40}), encoding="utf-8")
    with pytest.raises(ValueError, match=complaint):
        read(folder, name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shared", "separate"])
def test_an_imported_marian_translates_text(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Returns the text of the predicted ids; it is the same after an export."""
    use_one_device(monkeypatch)
    name = "marian" if kind == "shared" else "marian_separate"
    folder = Path(shutil.copytree(DATA / "marian" / kind, tmp_path / "folder"))
    shutil.copytree(FILES / name, folder, dirs_exist_ok=True)
    type_command(monkeypatch, "import", "hf", folder, tmp_path / "run")
    assert "no tokenizer" not in capsys.readouterr().err
    run, rows = load(tmp_path / "run"), [row for row in expected(name)["source"] if row["text"]]
    target = run.required_tokenizers.target
    answers = run.hypotheses_of_ids([row["ids"] for row in rows], beam_size=1)
    texts = run.translate([row["text"] for row in rows], beam_size=1)
    assert texts == [target.decode(best.tokens) for best, *_ in answers] and any(texts)
    type_command(monkeypatch, "export", "hf", tmp_path / "run", tmp_path / "out")
    for path in FILES.glob(f"{name}/*[!d].*"):
        assert path.name == "expected.json" or (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
