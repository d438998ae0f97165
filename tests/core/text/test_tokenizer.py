"""Laws of every tokenizer trained here: round trip, batch = one by one, saved = loaded, special ids are no text."""

from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.core.text.characters import Bytes, Characters, CharacterTokenizer
from flaxformer_lite.core.text.special_ids import BOS, EOS, PAD, UNK
from flaxformer_lite.core.text.tokenizer import truncate_longest_first
from flaxformer_lite.files.tokenizers.kinds import TokenizerConfig, load_tokenizer, save_tokenizer
from flaxformer_lite.files.tokenizers.subwords import SentencePiece, sample_lines
from tests.support.tokenizers import TEXT, VOCAB_SIZE

BPE, UNIGRAM = SentencePiece(), SentencePiece(model_type="unigram")
KINDS = pytest.mark.parametrize(
    "config", [BPE, UNIGRAM, Characters(), Bytes()], ids=["bpe", "unigram", "characters", "bytes"]
)


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
    path = save_tokenizer(tokenizer, tmp_path / "run", "target_tokenizer")
    loaded = load_tokenizer(tmp_path / "run", "target_tokenizer")
    assert list((tmp_path / "run").iterdir()) == [path]
    assert type(loaded) is type(tokenizer)
    assert loaded.vocab_size == tokenizer.vocab_size
    assert loaded.encode_batch(TEXT) == tokenizer.encode_batch(TEXT)
    assert loaded.pieces(range(loaded.vocab_size)) == tokenizer.pieces(range(tokenizer.vocab_size))


@KINDS
def test_special_ids_stand_around_a_text(config: TokenizerConfig) -> None:
    tokenizer = config.train(TEXT, VOCAB_SIZE)
    assert tokenizer.special == (PAD, UNK, BOS, EOS, None, BOS, tokenizer.vocab_size)
    assert tokenizer.with_special_tokens([7, 8]) == ([BOS, 7, 8, EOS], [0] * 4)
    assert tokenizer.with_special_tokens([7], [8, 9]) == ([BOS, 7, EOS, 8, 9, EOS], [0, 0, 0, 1, 1, 1])
    assert tokenizer.as_source([7, 8]) == [7, 8, EOS]


@pytest.mark.parametrize(
    ("text", "starts"), [("ab c", "x.xx"), ("  ab", "xxx."), ("a  b", "xxxx"), ("ab ", "x.x"), ("abc", "x.."), ("", "")]
)
def test_words_start_at_white_space_and_after_it(text: str, starts: str) -> None:
    """By hand: the first token, each white-space character, and the token after one; an unknown character is inside a word."""
    tokenizer = CharacterTokenizer("ab c")
    assert tokenizer.word_starts(tokenizer.encode(text)) == [sign == "x" for sign in starts]
    assert tokenizer.word_starts([UNK, *tokenizer.encode("a"), UNK]) == [True, False, False]


def test_a_text_cut_inside_a_word_starts_with_one() -> None:
    """By hand: "▁" marks a word's first piece; the first piece of a part of a text starts a word without it."""
    tokenizer = BPE.train(TEXT, VOCAB_SIZE)
    pieces = tokenizer.encode(TEXT[0])
    starts = tokenizer.word_starts(pieces)
    inside = starts.index(False)
    assert tokenizer.word_starts(pieces[inside:]) == [True, *starts[inside + 1 :]]


def test_impossible_settings_are_explained() -> None:
    for config in (BPE, Characters()):
        with pytest.raises(ValueError, match=r"model\.vocab_size is 4: "):
            config.train(TEXT, 4)
        with pytest.raises(ValueError, match="line of the training text is blank"):
            config.train(["", "  "], VOCAB_SIZE)


def test_the_longer_text_is_cut_first():
    """Oracle: worked by hand; the first of two equally long ones."""
    first, second = [0, 1, 2, 3, 4], [5, 6, 7]
    for room, sizes in ((30, (5, 3)), (8, (5, 3)), (7, (4, 3)), (6, (3, 3)), (5, (2, 3)), (2, (1, 1)), (0, (0, 0))):
        assert truncate_longest_first([first, second], room) == [first[: sizes[0]], second[: sizes[1]]]


def test_a_sample_has_all_lines_or_a_part_of_bounded_size():
    """Law: small text is taken whole and in order; of more, each line has the same chance; the same lines give the same sample."""
    lines = [f"{i:05}" for i in range(20_000)]
    assert sample_lines(iter(lines), 100_000) == lines
    sample = sample_lines(iter(lines), 20_000)
    assert 5_000 < 5 * len(sample) <= 20_000 and sample == sorted(sample) == sample_lines(lines, 20_000)
    positions = np.array(sample, int)
    assert abs(positions.mean() / 10_000 - 1) < 4 * 0.58 / np.sqrt(len(sample))
    assert sample_lines(["x" * 99, "y" * 99], 10) in (["x" * 99], ["y" * 99])


@KINDS
def test_each_token_knows_its_characters(config: TokenizerConfig) -> None:
    """Law: the characters of the tokens are the text, each once, and of each token they are its piece."""
    tokenizer = config.train(TEXT, VOCAB_SIZE)
    for line, (ids, spans) in zip(["", *TEXT], tokenizer.encode_spans(["", *TEXT]), strict=True):
        assert ids == tokenizer.encode(line)
        assert [c for a, b in dict.fromkeys(spans) for c in range(a, b)] == list(range(len(line)))
        if config != Bytes():  # several of which share a character
            pieces = [tokenizer.piece(i).replace("▁", " ") for i in ids]
            assert [line[a:b] for a, b in spans][1:] == pieces[1:] and line.startswith(pieces[0].strip() if ids else "")


def test_single_bytes_of_a_subword_model_have_their_character() -> None:
    """Worked by hand: without an emoji in the training text, it is four bytes, which all stand for character 2."""
    tokenizer = SentencePiece(byte_fallback=True).train(["abc abd"] * 9, 270)
    ids, spans = tokenizer.encode_spans(["ab🙂c"])[0]
    assert [tokenizer.piece(i) for i in ids] == ["▁ab", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "c"]
    assert spans == [(0, 2), *[(2, 3)] * 4, (3, 4)]
