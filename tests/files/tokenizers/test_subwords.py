"""Oracles: SentencePiece itself and pieces worked out by hand; law: the same text trains the same tokenizer.

Folders with added tokens and published vocabularies are compared with transformers in tests/interop/hf.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece

from flaxformer_lite.core.text.special_ids import BOS, UNK
from flaxformer_lite.files.tokenizers.kinds import load_tokenizer, save_tokenizer
from flaxformer_lite.files.tokenizers.subword_sampling import BPEDropout, SubwordSampler
from flaxformer_lite.files.tokenizers.subwords import (
    FLAGS,
    AddedPieces,
    MarianTokenizer,
    SentencePiece,
    SentencePieceTokenizer,
)
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
    path = save_tokenizer(BPE.train(TEXT, VOCAB_SIZE), tmp_path)
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


def test_the_first_merge_of_a_tiny_text() -> None:
    # The sign for a space and the letters; "ab" is the only pair that occurs more than once.
    tokenizer = BPE.train(["xab yab", "zab"], 4 + 6 + 1)
    assert sorted(tokenizer.pieces(range(4, 11))) == ["a", "ab", "b", "x", "y", "z", "▁"]
    assert tokenizer.pieces(tokenizer.encode("xab ay")) == ["▁", "x", "ab", "▁", "a", "y"]


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
    [(("a b",), "without white space"), (("",), "without white space"), (("<a>", "<a>"), "and be in the list once")],
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


PLAIN = SentencePiece(character_coverage=0.98).train(TEXT, VOCAB_SIZE)
FAR = VOCAB_SIZE + 5


def added(prefix: bool = True, **flags: Any) -> AddedPieces:
    """`<end>` has an id after a gap, `<new>` that of a piece of the model."""
    tokens = {FAR: "<end>", VOCAB_SIZE - 1: "<new>"}
    described = {i: {**dict.fromkeys(FLAGS, False), "content": text, **flags} for i, text in tokens.items()}
    return AddedPieces(PLAIN.to_bytes(), described, {"eos": FAR}, (True, False), prefix)


def test_ids_after_a_gap_and_ids_of_the_model_are_read_and_written() -> None:
    tokenizer, word = added(), TEXT[0].split()[0]
    ids = PLAIN.encode(word)
    assert tokenizer.encode(f"{word}<new>{word}<end>") == [*ids, VOCAB_SIZE - 1, *ids, FAR]
    assert tokenizer.decode([*ids, VOCAB_SIZE - 1, *ids]) == f"{word}<new> {word}"
    assert tokenizer.special[:4] == (0, 1, 2, FAR) and tokenizer.largest_id == FAR == tokenizer.vocab_size - 1
    assert [i for i in range(FAR + 2) if not tokenizer.has_piece(i)] == [*range(VOCAB_SIZE, FAR), FAR + 1]
    assert tokenizer.decode([*ids, FAR]) == word and tokenizer.piece(FAR) == "<end>"  # a role is dropped in any case
    assert added(special=True).decode([VOCAB_SIZE - 1, *ids]) == word


@pytest.mark.parametrize("prefix", [True, False])
def test_tokens_between_added_ones_know_their_characters(prefix: bool) -> None:
    tokenizer, word = added(prefix, special=True), TEXT[0].split()[0]
    ((ids, spans),) = tokenizer.encode_spans([f"{word}<new>{word}<end>"])
    assert ids == tokenizer.encode(f"{word}<new>{word}<end>")
    assert [c for a, b in dict.fromkeys(spans) for c in range(a, b)] == list(range(2 * len(word) + 10))
    assert spans[ids.index(VOCAB_SIZE - 1)] == (len(word), len(word) + 5) and spans[-1] == (
        2 * len(word) + 5,
        2 * len(word) + 10,
    )
    assert tokenizer.special_texts == ("<new>", "<end>") and added().special_texts == ()


def test_only_a_text_begins_with_the_dummy_prefix_if_set() -> None:
    word = TEXT[0].split()[0]
    after = added(prefix=False).encode(f"<new>{word}")[1:]
    assert PLAIN.pieces(after)[0] == PLAIN.pieces(PLAIN.encode(word))[0].removeprefix("▁") or after != PLAIN.encode(
        word
    )
    assert added(prefix=False).encode(word) == PLAIN.encode(word) == added().encode(f"<new>{word}")[1:]


def test_characters_of_an_added_token_are_not_unknown() -> None:
    assert added().unknown_parts(["<new>#<end>"]) == ["#"] and added().encode("") == [] and added().decode([]) == ""


def test_a_sample_leaves_added_tokens_as_they_are() -> None:
    tokenizer, word = added(), max(TEXT[0].split(), key=len)
    ids = np.array(tokenizer.encode(f"{word} <new> {word}<end>"))
    sampler = SubwordSampler(tokenizer, BPEDropout(rate=0.9))
    drawn = sampler(ids, 100, np.random.default_rng(0)).tolist()
    assert len(drawn) > len(ids) and [i for i in drawn if i >= VOCAB_SIZE - 1] == [VOCAB_SIZE - 1, FAR]
    assert tokenizer.decode(drawn) == tokenizer.decode(ids)
    assert PLAIN.scored_pieces().keys() - tokenizer.scored_pieces().keys() == {VOCAB_SIZE - 1}


@pytest.mark.parametrize("damage", [("<new>", ""), ('"lstrip"', '"left"'), ('"prefix": true', '"prefix": 1')])
def test_a_damaged_file_is_refused(damage: tuple[str, str], tmp_path: Path) -> None:
    path = save_tokenizer(added(), tmp_path)
    assert load_tokenizer(tmp_path).to_bytes() == path.read_bytes()
    path.write_text(path.read_text().replace(*damage))
    with pytest.raises(ValueError, match=r"tokenizer\.pieces\.json: not a whole tokenizer file"):
        load_tokenizer(tmp_path)


WORDS = ["hello world", "world of words", "a word"] * 9


def test_saved_and_loaded_is_the_same_and_the_language_is_one_piece(tmp_path: Path) -> None:
    words = SentencePiece().train(WORDS, 20)
    pieces = ["</s>", "<unk>", ">>fra<<", *words.pieces(range(4, 20)), "<pad>"]
    tokenizer = MarianTokenizer(words.to_bytes(), {piece: i for i, piece in enumerate(pieces)})
    save_tokenizer(tokenizer, tmp_path)
    for found in (tokenizer, load_tokenizer(tmp_path)):
        ids = found.encode(">>fra<<a word")
        assert ids[0] == 2 and found.decode(ids[1:]) == "a word"
        assert found.special[:4] == (len(pieces) - 1, 1, None, 0)
        assert found.as_source(ids) == [*ids, 0]


def test_pieces_outside_the_vocabulary_are_reported():
    words = SentencePiece().train(WORDS, 20)
    ids = {piece: i for i, piece in enumerate(["<pad>", "<unk>", "</s>", *words.pieces(range(4, 20))])}
    tokenizer = MarianTokenizer(words.to_bytes(), ids)
    assert tokenizer.unknown_parts(["hello world", ">>fra<< woßrld"]) == [">>fra<<", "ß"]
    fewer = {piece: i for i, piece in enumerate(ids) if "w" not in piece}
    assert "".join(MarianTokenizer(words.to_bytes(), fewer).unknown_parts(["of words"])).startswith("w")
