"""Laws of every kind of tokenizer in a folder: saved = loaded, and what is missing or damaged is named."""

from pathlib import Path

import pytest

from flaxformer_lite.core.text.characters import Bytes, Characters
from flaxformer_lite.files.tokenizers import FromRun, SentencePiece, load_tokenizer, save_tokenizer
from tests.support.tokenizers import TEXT, VOCAB_SIZE

BPE = SentencePiece()


def test_file_names_tell_the_kind(tmp_path: Path) -> None:
    names = [save_tokenizer(config.train(TEXT, VOCAB_SIZE), tmp_path).name for config in (BPE, Characters(), Bytes())]
    assert names == ["tokenizer.model", "tokenizer.characters.json", "tokenizer.bytes.json"]


def test_folders_without_one_whole_tokenizer_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{tmp_path}: no tokenizer here; one of tokenizer\.model, .*bytes\.json"):
        load_tokenizer(tmp_path)
    save_tokenizer(Bytes().train(TEXT, VOCAB_SIZE), tmp_path)
    save_tokenizer(Characters().train(TEXT, VOCAB_SIZE), tmp_path)
    with pytest.raises(ValueError, match=rf"{tmp_path}: more than one tokenizer, tokenizer\.characters"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.model", b""),
        ("tokenizer.model", b"no model at all"),
        ("tokenizer.characters.json", b""),
        ("tokenizer.characters.json", b'{"kind": "characters", "char'),
        ("tokenizer.characters.json", b"\xff\xff"),
        ("tokenizer.characters.json", b'{"kind": "characters"}'),
        ("tokenizer.characters.json", b'{"kind": "characters", "characters": ["a", "bc"]}'),
        ("tokenizer.characters.json", b'{"kind": "characters", "characters": ["a", "a"]}'),
        ("tokenizer.hf.json", b'{"kind": "tokenizers", "tokenizer": "{}", "special": {}}'),
        ("tokenizer.hf.json", b'{"kind": "tokenizers"}'),
        ("tokenizer.bytes.json", b'{"kind": "characters"}'),
        ("tokenizer.bytes.json", b"[]"),
    ],
)
def test_damaged_files_are_named(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{tmp_path / name}: not a whole tokenizer file") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_the_tokenizer_of_a_run_is_taken_as_it_is(tmp_path: Path) -> None:
    whole, other = BPE.train(TEXT, VOCAB_SIZE), Characters().train(TEXT, VOCAB_SIZE)
    save_tokenizer(whole, tmp_path)
    save_tokenizer(other, tmp_path, "target_tokenizer")
    assert FromRun(path=str(tmp_path)).train(["nothing of this"], VOCAB_SIZE).to_bytes() == whole.to_bytes()
    assert FromRun(path=str(tmp_path), side="target").train([], VOCAB_SIZE).to_bytes() == other.to_bytes()
    with pytest.raises(
        ValueError, match=rf"leaves {VOCAB_SIZE - 1} ids for text, but the tokenizer of .* has {VOCAB_SIZE}"
    ):
        FromRun(path=str(tmp_path)).train([], VOCAB_SIZE - 1)
    with pytest.raises(ValueError, match="no tokenizer here"):
        FromRun(path=str(tmp_path / "nowhere")).train([], VOCAB_SIZE)
