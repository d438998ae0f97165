"""Law: an exported tokenizer of a run trained here is imported with the same ids; one without a counterpart is noted."""

import dataclasses
import json
from pathlib import Path

import pytest

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.data.config import DataConfig
from flaxformer_lite.interop.hf.tokenizer_export import write_tokenizers
from flaxformer_lite.interop.hf.tokenizer_files import Found, read_tokenizers
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.objectives import CausalLM, MaskedLM
from flaxformer_lite.run import load, write_run
from flaxformer_lite.text.characters import Bytes
from flaxformer_lite.text.json_tokenizer import JsonTokenizer
from flaxformer_lite.text.kinds import FromRun
from flaxformer_lite.text.subwords import SentencePiece
from flaxformer_lite.text.tokenizer import Tokenizer, Tokenizers
from flaxformer_lite.workdir.folder import RunFolder
from tests.support.commands import type_command
from tests.support.hf_folders import DECODER, TRAINED_HERE, random_params
from tests.support.paths import FIXTURES
from tests.support.tokenizers import NAMES, bytes_joined, word_pieces

TEXT = "a bb ab, über eggs"
WORD_PIECES = JsonTokenizer.of(
    word_pieces().to_str(), {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
)
BYTES_JOINED = JsonTokenizer.of(bytes_joined().to_str(), NAMES)
MARIAN = read_tokenizers(FIXTURES / "tokenizers/marian_separate", {}, (1000, 1000)).tokenizers
SENTENCE_PIECE = SentencePiece().train(["a bb ab, eggs", "über bags and eggs"], 30)
BOTH = ModelConfig(**{**DECODER, "num_encoder_layers": 1})


def said(tokenizer: Tokenizer) -> tuple[object, ...]:
    ids = tokenizer.encode(TEXT)
    return (
        ids,
        tokenizer.with_special_tokens(ids),
        tokenizer.with_special_tokens(ids, ids[:1]),
        tokenizer.special,
        tokenizer.decode(ids),
    )


def there_and_back(folder: Path, tokenizers: Tokenizers, model: ModelConfig) -> tuple[list[str], Found]:
    folder.mkdir()
    notes = write_tokenizers(folder, tokenizers, model)
    return notes, read_tokenizers(folder, {}, (1000, 1000))


@pytest.mark.parametrize(
    ("source", "model", "told"),
    [
        (WORD_PIECES, TRAINED_HERE["bert"], []),
        (BYTES_JOINED, TRAINED_HERE["gpt2"], []),
        (SENTENCE_PIECE, TRAINED_HERE["llama"], ["tokenizer.model as it is read here if it is of the kind bpe"]),
        (SENTENCE_PIECE, BOTH, ["spiece.model as it is read here if it is of the kind unigram"]),
    ],
)
def test_an_exported_tokenizer_is_imported_with_the_same_ids(
    source: Tokenizer, model: ModelConfig, told: list[str], tmp_path: Path
) -> None:
    notes, found = there_and_back(tmp_path / "out", Tokenizers(source, source), model)
    assert len(notes) == len(told) and all(words in note for words, note in zip(told, notes, strict=True))
    assert found.tokenizers is not None
    assert said(found.tokenizers.source) == said(source)


def test_both_sides_of_marian_go_out(tmp_path: Path) -> None:
    assert MARIAN is not None
    notes, found = there_and_back(tmp_path / "out", MARIAN, BOTH)
    assert notes == [] and found.tokenizers is not None
    for side in ("source", "target"):
        assert said(getattr(found.tokenizers, side)) == said(getattr(MARIAN, side))


def test_a_tokenizer_without_a_counterpart_is_noted(tmp_path: Path) -> None:
    single, model = Bytes().train([], 260), TRAINED_HERE["gpt2"]
    (note,), found = there_and_back(tmp_path / "bytes", Tokenizers(single, single), model)
    assert "it is a ByteTokenizer, which has no counterpart" in note and found.tokenizers is None
    (note,), found = there_and_back(tmp_path / "sides", Tokenizers(SENTENCE_PIECE, single), BOTH)
    assert "only Marian has one for each side" in note and found.tokenizers is None
    alone = Tokenizers(SENTENCE_PIECE, SENTENCE_PIECE)
    (note,), found = there_and_back(tmp_path / "encoder", alone, TRAINED_HERE["bert"])
    assert "no SentencePiece model with an encoder alone" in note and found.tokenizers is not None
    assert write_tokenizers(tmp_path, None, model) == []


def test_a_run_with_the_tokenizer_of_another_takes_it_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    data = DataConfig(tokenizer=FromRun(path="elsewhere"), max_source_length=19, max_target_length=19)
    for name, tokenizer in (("words", WORD_PIECES), ("bytes", Bytes().train([], 260))):
        model = dataclasses.replace(TRAINED_HERE["llama"], vocab_size=tokenizer.vocab_size)
        config = Config(model=model, objective=CausalLM(), data=data)
        run, out = tmp_path / name, tmp_path / f"{name}_out"
        write_run(
            RunFolder(run), config, 5, random_params(model), "a test", tokenizers=Tokenizers(tokenizer, tokenizer)
        )
        type_command(monkeypatch, "export", "hf", run, out)
        error = capsys.readouterr().err
        assert ("the tokenizer is not in the folder" in error) == (name == "bytes")
    type_command(monkeypatch, "import", "hf", tmp_path / "words_out", tmp_path / "again")
    found = load(tmp_path / "again").tokenizers
    assert found is not None and said(found.source) == said(WORD_PIECES)


def test_a_mask_that_the_tokenizer_lacks_is_in_the_config_there_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SentencePiece has no mask: a masked language model uses an id above its own, which no file of the tokenizer knows."""
    mask = SENTENCE_PIECE.vocab_size
    model = dataclasses.replace(TRAINED_HERE["bert"], vocab_size=mask + 1, pooler=None)
    data = DataConfig(tokenizer=SentencePiece(), max_source_length=19, max_target_length=19)
    config = Config(model=model, objective=MaskedLM(mask_token=mask), data=data)
    tokenizers = Tokenizers(SENTENCE_PIECE, SENTENCE_PIECE)
    write_run(RunFolder(tmp_path / "run"), config, 5, random_params(model), "a test", tokenizers=tokenizers)
    type_command(monkeypatch, "export", "hf", tmp_path / "run", tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["mask_token_id"] == mask
    type_command(monkeypatch, "import", "hf", tmp_path / "out", tmp_path / "back")
    assert load(tmp_path / "back").predictor.mask_id() == mask
