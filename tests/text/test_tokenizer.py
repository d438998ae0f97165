"""Oracles: hand-worked ids; laws: round trip, batch = one by one, saved = loaded, same text = same tokenizer."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from flaxformer_lite.text.characters import Bytes, Characters
from flaxformer_lite.text.kinds import FromRun, TokenizerConfig, load_tokenizer
from flaxformer_lite.text.special_ids import BOS, EOS, PAD, UNK
from flaxformer_lite.text.subwords import SentencePiece, SentencePieceTokenizer

BPE, UNIGRAM = SentencePiece(), SentencePiece(model_type="unigram")
KINDS = pytest.mark.parametrize(
    "config", [BPE, UNIGRAM, Characters(), Bytes()], ids=["bpe", "unigram", "characters", "bytes"]
)
VOCAB_SIZE = 307


def made_up_text(num_lines: int = 401) -> list[str]:
    """Lines of words from a small random vocabulary with umlauts, a CJK character and an emoji."""
    rng = random.Random(7)
    letters = "abcdefghijklmnoprstuwäöüß日🙂"
    words = ["".join(rng.choices(letters, k=rng.randint(1, 7))) for _ in range(397)]
    return [" ".join(rng.choices(words, k=rng.randint(1, 11))) for _ in range(num_lines)]


TEXT = made_up_text()


@KINDS
def test_text_comes_back(config: TokenizerConfig) -> None:
    tokenizer = config.train(TEXT, VOCAB_SIZE)
    for line in ["", *TEXT]:
        ids = tokenizer.encode(line)
        assert tokenizer.decode(ids) == line
        assert not {PAD, UNK, BOS, EOS} & set(ids)


@KINDS
def test_a_batch_is_its_texts_one_by_one(config: TokenizerConfig) -> None:
    tokenizer = config.train(TEXT, VOCAB_SIZE)
    assert tokenizer.encode_batch(["", *TEXT]) == [tokenizer.encode(line) for line in ["", *TEXT]]
    assert tokenizer.encode_batch([]) == []


@KINDS
def test_special_ids_are_skipped_in_text_and_shown_in_pieces(config: TokenizerConfig) -> None:
    tokenizer = config.train(TEXT, VOCAB_SIZE)
    ids = tokenizer.encode(TEXT[3])
    surrounded = [PAD, BOS, *ids[:2], UNK, *ids[2:], EOS, PAD]
    assert tokenizer.decode(surrounded) == TEXT[3]
    assert tokenizer.decode(np.array(surrounded, np.int32)) == TEXT[3]
    assert tokenizer.pieces(range(4)) == ["<pad>", "<unk>", "<s>", "</s>"]
    assert len(tokenizer.pieces(np.array(surrounded))) == len(surrounded)


@KINDS
def test_names_of_special_tokens_in_the_text_are_just_text(config: TokenizerConfig) -> None:
    tokenizer = config.train([*TEXT, "< / >"], VOCAB_SIZE)
    assert not {PAD, UNK, BOS, EOS} & set(tokenizer.encode("<pad> <unk> <s> </s>"))


@KINDS
def test_ids_past_the_vocabulary_are_refused(config: TokenizerConfig) -> None:
    tokenizer = config.train(TEXT, VOCAB_SIZE)
    tokenizer.decode([tokenizer.vocab_size - 1])
    for call in (tokenizer.decode, tokenizer.pieces):
        with pytest.raises(IndexError):
            call([tokenizer.vocab_size])


@KINDS
def test_saved_and_loaded_is_the_same(config: TokenizerConfig, tmp_path: Path) -> None:
    tokenizer = config.train(TEXT, VOCAB_SIZE)
    path = tokenizer.save(tmp_path / "run", "target_tokenizer")
    loaded = load_tokenizer(tmp_path / "run", "target_tokenizer")
    assert list((tmp_path / "run").iterdir()) == [path]
    assert type(loaded) is type(tokenizer)
    assert loaded.vocab_size == tokenizer.vocab_size
    assert loaded.encode_batch(TEXT) == tokenizer.encode_batch(TEXT)
    assert loaded.pieces(range(loaded.vocab_size)) == tokenizer.pieces(range(tokenizer.vocab_size))


def test_file_names_tell_the_kind(tmp_path: Path) -> None:
    names = [config.train(TEXT, VOCAB_SIZE).save(tmp_path).name for config in (BPE, Characters(), Bytes())]
    assert names == ["tokenizer.model", "tokenizer.characters.json", "tokenizer.bytes.json"]


@KINDS
def test_an_interrupted_save_leaves_the_old_file(
    config: TokenizerConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config.train(TEXT, VOCAB_SIZE).save(tmp_path)
    before = path.read_bytes()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        config.train(TEXT[::2], VOCAB_SIZE - 10 if config.kind != "bytes" else VOCAB_SIZE).save(tmp_path)
    assert path.read_bytes() == before
    load_tokenizer(tmp_path)


def test_folders_without_one_whole_tokenizer_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{tmp_path}: no tokenizer here; one of tokenizer\.model, .*bytes\.json"):
        load_tokenizer(tmp_path)
    Bytes().train(TEXT, VOCAB_SIZE).save(tmp_path)
    Characters().train(TEXT, VOCAB_SIZE).save(tmp_path)
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
        ("tokenizer.bytes.json", b'{"kind": "characters"}'),
        ("tokenizer.bytes.json", b"[]"),
    ],
)
def test_damaged_files_are_named(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{tmp_path / name}: not a whole tokenizer file") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_half_a_sentence_piece_model_is_damaged(tmp_path: Path) -> None:
    path = BPE.train(TEXT, VOCAB_SIZE).save(tmp_path)
    model = path.read_bytes()
    path.write_bytes(model[: model.index("▁".encode()) + 1])  # inside a record; between two, it is a smaller model
    with pytest.raises(ValueError, match="not a whole tokenizer file"):
        load_tokenizer(tmp_path)


def sentence_piece_model(folder: Path, **ids: int) -> SentencePieceTokenizer:
    """A model trained by SentencePiece itself, with special ids of its own."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=VOCAB_SIZE,
        minloglevel=2,
        **ids,
    )
    return load_tokenizer(folder)


def test_a_sentence_piece_model_from_elsewhere_has_its_own_special_ids(tmp_path: Path) -> None:
    """As T5's: padding, end, unknown, no beginning; and as Llama's, without padding, where the unknown fills the rows."""
    tokenizer = sentence_piece_model(tmp_path, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    assert tokenizer.special == (0, 2, None, 1, None, BOS, VOCAB_SIZE)
    ids = tokenizer.encode(TEXT[3])
    assert tokenizer.decode([0, *ids, 2, 1]) == TEXT[3]
    assert 3 in {i for line in TEXT for i in tokenizer.encode(line)}, "id 3 is a piece like any other"
    assert tokenizer.with_special_tokens(ids) == ([*ids, 1], [0] * (len(ids) + 1))
    assert tokenizer.with_special_tokens([7], [8, 9]) == ([7, 1, 8, 9, 1], [0, 0, 1, 1, 1])
    assert sentence_piece_model(tmp_path).special[:4] == (0, 0, 1, 2)


@KINDS
def test_special_ids_stand_around_a_text(config: TokenizerConfig) -> None:
    tokenizer = config.train(TEXT, VOCAB_SIZE)
    assert tokenizer.special == (PAD, UNK, BOS, EOS, None, BOS, tokenizer.vocab_size)
    assert tokenizer.with_special_tokens([7, 8]) == ([BOS, 7, 8, EOS], [0] * 4)
    assert tokenizer.with_special_tokens([7], [8, 9]) == ([BOS, 7, EOS, 8, 9, EOS], [0, 0, 0, 1, 1, 1])
    assert tokenizer.as_source([7, 8]) == [7, 8, EOS]


def test_the_tokenizer_of_a_run_is_taken_as_it_is(tmp_path: Path) -> None:
    whole, other = BPE.train(TEXT, VOCAB_SIZE), Characters().train(TEXT, VOCAB_SIZE)
    whole.save(tmp_path)
    other.save(tmp_path, "target_tokenizer")
    assert FromRun(path=str(tmp_path)).train(["nothing of this"], VOCAB_SIZE).to_bytes() == whole.to_bytes()
    assert FromRun(path=str(tmp_path), side="target").train([], VOCAB_SIZE).to_bytes() == other.to_bytes()
    with pytest.raises(
        ValueError, match=rf"leaves {VOCAB_SIZE - 1} ids for text, but the tokenizer of .* has {VOCAB_SIZE}"
    ):
        FromRun(path=str(tmp_path)).train([], VOCAB_SIZE - 1)
    with pytest.raises(ValueError, match="no tokenizer here"):
        FromRun(path=str(tmp_path / "nowhere")).train([], VOCAB_SIZE)


@pytest.mark.parametrize("config", [BPE, UNIGRAM], ids=["bpe", "unigram"])
def test_the_same_text_gives_the_same_subwords_quietly(
    config: SentencePiece, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = config.train(TEXT, VOCAB_SIZE), config.train(iter(TEXT), VOCAB_SIZE)
    assert first.to_bytes() == second.to_bytes()
    assert first.vocab_size == VOCAB_SIZE
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("config", [BPE, UNIGRAM], ids=["bpe", "unigram"])
def test_the_error_gives_the_largest_possible_vocabulary(config: SentencePiece) -> None:
    text = ["the cat sat on the mat", "a dog ran", "the dog sat"]
    with pytest.raises(ValueError, match=r"^model\.vocab_size is 1009: .* the largest possible is \d+$") as caught:
        config.train(text, 1009)
    largest = int(str(caught.value).split()[-1])
    assert config.train(text, largest).vocab_size == largest
    with pytest.raises(ValueError, match=f"largest possible is {largest}$"):
        config.train(text, largest + 1)


def test_the_error_gives_the_smallest_possible_vocabulary() -> None:
    text = ["abc", "bcd"]  # 4 letters, the sign for a space, 4 special ids
    with pytest.raises(ValueError, match=r"model\.vocab_size is 8: .* need 9;"):
        BPE.train(text, 8)
    assert BPE.train(text, 9).vocab_size == 9


def test_subwords_are_learnt_from_long_lines_too() -> None:
    tokenizer = BPE.train(["short", "lang " * 2003], 17)  # SentencePiece's own limit is 4,192 bytes
    assert UNK not in tokenizer.encode("lang")


def test_sentence_piece_folds_spaces_and_keeps_other_characters() -> None:
    tokenizer = BPE.train(["a b ﬁ"], 9)
    assert tokenizer.decode(tokenizer.encode("  a   b ﬁ ")) == "a b ﬁ"
    folded = SentencePiece(normalization="nmt_nfkc").train(["a b ﬁ"], 9)
    assert folded.decode(folded.encode("ﬁ")) == "fi"


def test_the_two_kinds_of_subwords_differ() -> None:
    bpe, unigram = (set(config.train(TEXT, VOCAB_SIZE).pieces(range(VOCAB_SIZE))) for config in (BPE, UNIGRAM))
    assert bpe != unigram


def test_the_first_merge_of_a_tiny_text() -> None:
    # The sign for a space and the letters; "ab" is the only pair that occurs more than once.
    tokenizer = BPE.train(["xab yab", "zab"], 4 + 6 + 1)
    assert sorted(tokenizer.pieces(range(4, 11))) == ["a", "ab", "b", "x", "y", "z", "▁"]
    assert tokenizer.pieces(tokenizer.encode("xab ay")) == ["▁", "x", "ab", "▁", "a", "y"]


def test_characters_by_frequency_then_code_point() -> None:
    tokenizer = Characters().train(["banana", "", "cab"], 8)  # a: 4, b: 2, n: 2, c: 1
    assert tokenizer.pieces(range(4, 8)) == ["a", "b", "n", "c"]
    assert Characters().train(["banana", "cab"], 100).vocab_size == 8
    small = Characters().train(["banana", "cab"], 6)
    assert small.encode("banana") == [5, 4, UNK, 4, UNK, 4]
    assert small.decode(small.encode("banana")) == "baaa"


def test_bytes_of_a_hand_worked_word() -> None:
    tokenizer = Bytes().train(["anything"], 260)
    assert tokenizer.encode("é a") == [0xC3 + 4, 0xA9 + 4, 0x20 + 4, 0x61 + 4]
    assert tokenizer.pieces(tokenizer.encode("é a")) == ["<0xC3>", "<0xA9>", "<0x20>", "a"]
    assert tokenizer.decode([0xC3 + 4, 0x61 + 4]) == "\ufffda"


def test_impossible_settings_are_explained() -> None:
    for config in (BPE, Characters()):
        with pytest.raises(ValueError, match=r"model\.vocab_size is 4: "):
            config.train(TEXT, 4)
        with pytest.raises(ValueError, match="no text to learn from"):
            config.train(["", "  "], VOCAB_SIZE)
    with pytest.raises(ValueError, match=r"model\.vocab_size is 259: bytes need 260"):
        Bytes().train(TEXT, 259)
    with pytest.raises(ValueError, match=r"data\.tokenizer\.character_coverage is 1\.5: "):
        SentencePiece(character_coverage=1.5)
