"""Law: an exported tokenizer of a run trained here is imported with the same ids; one without a counterpart is noted."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.core.model.config import ModelConfig
from flaxformer_lite.core.objectives import CausalLM, MaskedLM, Seq2Seq
from flaxformer_lite.core.text import Bytes, Tokenizer, Tokenizers
from flaxformer_lite.files.chats.chat import read_chat_template
from flaxformer_lite.files.data.config import DataConfig
from flaxformer_lite.files.tokenizers.json_tokenizer import JsonTokenizer
from flaxformer_lite.files.tokenizers.kinds import HUB_FILES, FromRun, save_tokenizer, save_tokenizers
from flaxformer_lite.files.tokenizers.subwords import SentencePiece, SentencePieceTokenizer
from flaxformer_lite.interop.hf.tokenizer_export import write_tokenizers
from flaxformer_lite.interop.hf.tokenizer_files import Found, read_tokenizers
from flaxformer_lite.run import load, write_run
from flaxformer_lite.tasks.fill_mask.answers import mask_id
from flaxformer_lite.workdir.folder import RunFolder
from tests.support.commands import Command
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


def said_as_there(tokenizer: Tokenizer, model: ModelConfig) -> tuple[object, ...]:
    """What the tokenizer says in a folder, whose class of the library ends the texts of an encoder, but no prompt."""
    ids, found = tokenizer.encode(TEXT), said(tokenizer)
    if not isinstance(tokenizer, SentencePieceTokenizer):
        return found
    texts = ([2, *ids], [2, *ids, 2, ids[0]]) if not model.num_encoder_layers else ([*ids, 3], [*ids, 3, ids[0], 3])
    sizes = [len(ids) + 1, len(texts[1]) - len(ids) - 1]
    types = ([0] * sizes[0], [0] * sizes[0] + [1] * sizes[1])
    return (ids, *zip(texts, types, strict=True), *found[3:])


def there_and_back(folder: Path, tokenizers: Tokenizers, model: ModelConfig) -> tuple[list[str], Found]:
    folder.mkdir()
    notes = write_tokenizers(folder, tokenizers, model, 19)
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
    assert said(found.tokenizers.source) == said_as_there(source, model)


@pytest.mark.parametrize(("name", "model"), [("tokenizer.model", TRAINED_HERE["llama"]), ("spiece.model", BOTH)])
def test_tokens_that_were_added_to_pieces_go_out(name: str, model: ModelConfig, tmp_path: Path) -> None:
    """Their flags, the special ids around a text and the dummy prefix after a token are the same again."""
    there = tmp_path / "there"
    there.mkdir()
    (there / name).write_bytes(SENTENCE_PIECE.to_bytes())
    added = {str(SENTENCE_PIECE.vocab_size): {"content": "<end>", "special": True, "rstrip": True}}
    settings = {"added_tokens_decoder": added, "eos_token": "<end>", "add_bos_token": False, "add_eos_token": True}
    family = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0} if name == "spiece.model" else {"legacy": True}
    (there / "tokenizer_config.json").write_text(json.dumps(settings | family))
    first = read_tokenizers(there, {}, (1000, 1000)).tokenizers
    assert first is not None
    _, found = there_and_back(tmp_path / "out", first, model)
    assert found.tokenizers is not None and said(found.tokenizers.source) == said(first.source)
    text = "a<end> bb<end>ab"
    assert found.tokenizers.source.encode(text) == first.source.encode(text)
    assert first.source.with_special_tokens([5]).tokens == [5, SENTENCE_PIECE.vocab_size]


def test_both_sides_of_marian_go_out(tmp_path: Path) -> None:
    assert MARIAN is not None
    notes, found = there_and_back(tmp_path / "out", MARIAN, BOTH)
    assert notes == [] and found.tokenizers is not None
    for side in ("source", "target"):
        assert said(getattr(found.tokenizers, side)) == said(getattr(MARIAN, side))


def test_a_tokenizer_without_a_counterpart_is_noted(tmp_path: Path) -> None:
    single, model = Bytes().train([], 260), TRAINED_HERE["gpt2"]
    (note,), found = there_and_back(tmp_path / "bytes", Tokenizers(single, single), model)
    assert "it is a ByteTokenizer, which the library does not have" in note and found.tokenizers is None
    (note,), found = there_and_back(tmp_path / "sides", Tokenizers(SENTENCE_PIECE, single), BOTH)
    assert "only Marian has one for each side" in note and found.tokenizers is None
    alone = Tokenizers(SENTENCE_PIECE, SENTENCE_PIECE)
    (note,), found = there_and_back(tmp_path / "encoder", alone, TRAINED_HERE["bert"])
    assert "no SentencePiece model with an encoder-only model" in note and found.tokenizers is not None
    assert write_tokenizers(tmp_path, None, model, 19) == []


@pytest.mark.slow
def test_a_run_with_the_tokenizer_of_another_takes_it_along(tmp_path: Path, command: Command) -> None:
    data = DataConfig(tokenizer=FromRun(path="elsewhere"), max_source_length=19, max_target_length=19)
    for name, tokenizer in (("words", WORD_PIECES), ("bytes", Bytes().train([], 260))):
        model = dataclasses.replace(TRAINED_HERE["llama"], vocab_size=tokenizer.vocab_size)
        config = Config(model=model, objective=CausalLM(), data=data)
        run, out = tmp_path / name, tmp_path / f"{name}_out"
        write_run(
            RunFolder(run), config, 5, random_params(model), "a test", tokenizers=Tokenizers(tokenizer, tokenizer)
        )
        error = command("export", "hf", run, out).err
        assert ("the tokenizer is not in the folder" in error) == (name == "bytes")
    command("import", "hf", tmp_path / "words_out", tmp_path / "again")
    found = load(tmp_path / "again").tokenizers
    assert found is not None and said(found.source) == said(WORD_PIECES)


def trained(path: Path, model: ModelConfig, parent: Path, pairs: bool = False) -> Path:
    """A run with the tokenizer of another one, as a training makes it."""
    target = FromRun(path=str(parent), side="target") if pairs else None
    data = DataConfig(
        tokenizer=FromRun(path=str(parent)), target_tokenizer=target, max_source_length=19, max_target_length=19
    )
    config = Config(model=model, objective=Seq2Seq() if pairs else CausalLM(), data=data)
    write_run(
        *(RunFolder(path), config, 5, random_params(model), "a test"),
        add_files=lambda run: RunFolder(run).tokenizers(data, config.tokenizer_sizes, []),
    )
    return path


def files_in(folder: Path) -> dict[str, bytes]:
    found = (file for pattern in HUB_FILES for file in folder.glob(pattern))
    return {str(file.relative_to(folder)): file.read_bytes() for file in found}


def test_what_belongs_to_an_imported_tokenizer_travels_through_every_run_to_every_export(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: after two generations of fine-tuning and an average, every file of the tokenizer is as it was imported."""
    for system in ("hf", "ctranslate2"):  # the weights are not the subject
        monkeypatch.setattr(f"flaxformer_lite.interop.check.check_{system}", lambda *arguments: None)
    model = dataclasses.replace(TRAINED_HERE["llama"], vocab_size=WORD_PIECES.vocab_size)
    data = DataConfig(tokenizer=SentencePiece(), max_source_length=19, max_target_length=19)
    tokenizers = Tokenizers(WORD_PIECES, WORD_PIECES)
    first = Config(model=model, objective=CausalLM(), data=data)
    write_run(RunFolder(tmp_path / "first"), first, 5, random_params(model), "a test", tokenizers=tokenizers)
    theirs = tmp_path / "theirs"
    command("export", "hf", tmp_path / "first", theirs)
    settings = json.loads((theirs / "tokenizer_config.json").read_text())
    assert settings["model_max_length"] == 19
    settings |= {"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "[chat]"}]}
    (theirs / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 17, "bos_token": "[CLS]"}))
    (theirs / "additional_chat_templates").mkdir()
    (theirs / "additional_chat_templates" / "rag.jinja").write_text("[rag]")
    (theirs / "added_tokens.json").write_text("{}")
    expected = files_in(theirs)
    assert len(expected) == 5
    command("import", "hf", theirs, tmp_path / "0")
    for generation in (1, 2):
        trained(tmp_path / str(generation), model, tmp_path / str(generation - 1))
    trained(tmp_path / "3", model, tmp_path / "2")
    for name in ("0", "1", "2", "3"):
        found = read_chat_template(tmp_path / name, WORD_PIECES)
        assert found is not None and (found.source, found.tokens["bos_token"]) == ("[chat]", "[CLS]"), name
    for name in ("0", "3"):
        command("export", "hf", tmp_path / name, tmp_path / f"{name}-hf")
        assert files_in(tmp_path / f"{name}-hf") == expected, name
    command("export", "ctranslate2", tmp_path / "3", tmp_path / "ct2")
    assert files_in(tmp_path / "ct2") == expected
    # A template of one's own takes the place of theirs, and travels too: also with a tokenizer that was trained here.
    for parent in ("2", "first"):
        (tmp_path / parent / "chat_template.jinja").write_text("[own]")
        child = trained(tmp_path / f"{parent}-child", model, tmp_path / parent)
        for run in (tmp_path / parent, child):
            assert getattr(read_chat_template(run, WORD_PIECES), "source", None) == "[own]"
            command("export", "hf", run, tmp_path / f"{run.name}-own")
            files = files_in(tmp_path / f"{run.name}-own")
            assert files["chat_template.jinja"] == b"[own]" and files["tokenizer.json"] == expected["tokenizer.json"]
            assert "additional_chat_templates/rag.jinja" not in files, (
                run
            )  # of the templates that it takes the place of


def test_files_of_two_tokenizers_travel_with_both_alone(tmp_path: Path) -> None:
    """Law: files that describe two tokenizers do not come with one of them."""
    model = dataclasses.replace(BOTH, vocab_size=60, share_source_target=False)
    assert MARIAN is not None
    save_tokenizers(MARIAN, tmp_path / "0")
    shutil.copytree(FIXTURES / "tokenizers/marian_separate", tmp_path / "0" / "huggingface")
    assert files_in(trained(tmp_path / "1", model, tmp_path / "0", pairs=True) / "huggingface").keys() == {
        *("source.spm", "target.spm", "vocab.json", "target_vocab.json", "tokenizer_config.json")
    }
    trained(tmp_path / "2", model, tmp_path / "0")
    assert not (tmp_path / "2" / "huggingface").exists()


def test_files_of_a_tokenizer_travel_from_a_url(tmp_path: Path) -> None:
    """Law: the same files come from a run at a URL, and a start that fails leaves none of them."""
    save_tokenizer(WORD_PIECES, tmp_path / "0")
    (tmp_path / "0/huggingface/additional_chat_templates").mkdir(parents=True)
    for name in ("tokenizer.json", "chat_template.jinja", "additional_chat_templates/rag.jinja"):
        (tmp_path / "0/huggingface" / name).write_text(name)
    for parent in (str(tmp_path / "0"), f"file://{tmp_path}/0"):
        data, folder = DataConfig(tokenizer=FromRun(path=parent)), RunFolder(tmp_path / "1")
        config = Config(model=TRAINED_HERE["llama"], data=data)
        with pytest.raises(ValueError, match="a mistake"), folder.lock(config):  # noqa: PT012
            folder.tokenizers(data, (1000, 1000), [])
            assert files_in(tmp_path / "1/huggingface") == files_in(tmp_path / "0/huggingface") != {}
            raise ValueError("a mistake")
        assert not (tmp_path / "1").exists()


def test_a_mask_that_the_tokenizer_lacks_is_in_the_config_there_and_back(tmp_path: Path, command: Command) -> None:
    """SentencePiece has no mask: a masked language model uses an id above its own, which no file of the tokenizer knows."""
    mask = SENTENCE_PIECE.vocab_size
    model = dataclasses.replace(TRAINED_HERE["bert"], vocab_size=mask + 1, pooler=None)
    data = DataConfig(tokenizer=SentencePiece(), max_source_length=19, max_target_length=19)
    config = Config(model=model, objective=MaskedLM(mask_token=mask), data=data)
    tokenizers = Tokenizers(SENTENCE_PIECE, SENTENCE_PIECE)
    write_run(RunFolder(tmp_path / "run"), config, 5, random_params(model), "a test", tokenizers=tokenizers)
    command("export", "hf", tmp_path / "run", tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["mask_token_id"] == mask
    command("import", "hf", tmp_path / "out", tmp_path / "back")
    assert mask_id(load(tmp_path / "back").text_model) == mask
