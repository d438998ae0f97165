"""Oracles: SentencePiece itself and pieces worked out by hand; law: the same text trains the same tokenizer."""

import io
from pathlib import Path

import pytest
import sentencepiece

from flaxformer_lite.text.kinds import load_tokenizer
from flaxformer_lite.text.special_ids import BOS, UNK
from flaxformer_lite.text.subwords import SentencePiece, SentencePieceTokenizer
from tests.support.tokenizers import TEXT, VOCAB_SIZE

BPE, UNIGRAM = SentencePiece(), SentencePiece(model_type="unigram")


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


def test_half_a_sentence_piece_model_is_damaged(tmp_path: Path) -> None:
    path = BPE.train(TEXT, VOCAB_SIZE).save(tmp_path)
    model = path.read_bytes()
    path.write_bytes(model[: model.index("▁".encode()) + 1])  # inside a record; between two, it is a smaller model
    with pytest.raises(ValueError, match="not a whole tokenizer file"):
        load_tokenizer(tmp_path)


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


def test_an_impossible_coverage_is_explained() -> None:
    with pytest.raises(ValueError, match=r"data\.tokenizer\.character_coverage is 1\.5: "):
        SentencePiece(character_coverage=1.5)


def test_bytes_digits_and_symbols_of_the_user() -> None:
    """Oracle: the pieces, worked out by hand; and text with characters that were never seen comes back."""
    lines = ["der Hund 2024 <sep> mal"] * 30 + ["die Katze 317 a,b <x,y>"] * 30
    options = {"byte_fallback": True, "split_digits": True, "user_symbols": ("<sep>", "<x,y>")}
    tokenizer = SentencePiece(**options).train(lines, 310)
    for text in ("Hund 日 2024", "a<sep>b <x,y>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.pieces(tokenizer.encode("der日"))[-3:] == ["<0xE6>", "<0x97>", "<0xA5>"]
    assert tokenizer.pieces(tokenizer.encode("der 2024"))[-5:] == ["▁", "2", "0", "2", "4"]
    assert tokenizer.pieces(tokenizer.encode("der<sep>d")) == ["▁der", "<sep>", "d"]
    assert tokenizer.pieces(tokenizer.encode("a <x,y>"))[-1] == "<x,y>"
    assert tokenizer.unknown_parts(["日"]) == []


@pytest.mark.parametrize(
    ("symbols", "expected"),
    [(("a b",), "without white space"), (("",), "without white space"), (("<a>", "<a>"), "and be there once")],
)
def test_symbols_that_are_none(symbols: tuple[str, ...], expected: str) -> None:
    with pytest.raises(ValueError, match=rf"^data\.tokenizer\.user_symbols is .*{expected}"):
        SentencePiece(user_symbols=symbols)


def test_options_at_their_defaults_leave_the_model_as_it_was() -> None:
    """Oracle: the library itself without them: a run that is started again has the same tokenizer file."""
    lines, model = ["ein kleiner Hund läuft"] * 20, io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=30, model_type="bpe", character_coverage=1.0,
        normalization_rule_name="identity", pad_id=0, unk_id=1, bos_id=2, eos_id=3, num_threads=16,
        max_sentence_length=2**30, minloglevel=2,
    )  # fmt: skip
    assert SentencePiece().train(lines, 30).to_bytes() == model.getvalue()
