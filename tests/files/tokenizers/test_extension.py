"""A tokenizer with a language more. Oracles: SentencePiece, byte-pair encoding by hand. Law: new pieces join old ones."""

import random
from collections import Counter
from pathlib import Path

import pytest
import tokenizers as library
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from flaxformer_lite.core.text import Characters, Tokenizer
from flaxformer_lite.files.tokenizers import SentencePiece, load_tokenizer, save_tokenizer
from flaxformer_lite.files.tokenizers.extension import cut_otherwise, extended_tokenizer, join_neighbours
from flaxformer_lite.files.tokenizers.json_tokenizer import JsonTokenizer
from flaxformer_lite.files.tokenizers.subwords import AddedPieces, SentencePieceTokenizer


def drawn(words: str, number: int = 60) -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choices(words.split(), k=7)) for _ in range(number)]


OLD = drawn("the cat sat on a hat die Katze saß 1 2 3 4 5")
NEW = drawn("il gatto dono cane è qui \uff49\uff4c un žabó big 12 345")
KINDS = ["bpe", "unigram", "added bpe", "json bpe", "json unigram"]


def sentence_piece(kind: str, **options: bool) -> SentencePieceTokenizer:
    return SentencePiece(model_type=kind, normalization="nmt_nfkc", **options).train(OLD, 36)  # type: ignore[arg-type]


def tokenizer_of(kind: str) -> Tokenizer:
    """A tokenizer of each kind; the last three have a token behind their pieces."""
    model = sentence_piece("unigram" if "unigram" in kind else "bpe")
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    if kind.startswith("json"):
        scored = [(model.piece(i), model._processor.get_score(i)) for i in range(model.vocab_size)]
        numbers = {piece: i for i, (piece, _) in enumerate(scored)}
        merges = [(a, b) for a in numbers for b in numbers if a + b in numbers]
        whole = models.Unigram(scored, 1) if "unigram" in kind else models.BPE(numbers, merges, unk_token="<unk>")
        made = library.Tokenizer(whole)
        made.normalizer, made.decoder = normalizers.NFKC(), decoders.Metaspace()
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        made.add_tokens([AddedToken("<de>", special=True), AddedToken("<mask>", special=True)])
        return JsonTokenizer.of(made.to_str(), {"unk_token": "<unk>"})
    if kind.startswith("added"):
        return AddedPieces(model.model, {36: {"content": "<de>", **flags}}, {}, (False, True), True)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_old_ids_stay_and_new_ones_read_and_write_the_language(kind: str, tmp_path: Path) -> None:
    old = tokenizer_of(kind)
    first = old.largest_id + 5  # a model may have more ids than its tokenizer
    made, parts = extended_tokenizer(old, NEW, 35, "<xy>", first)
    save_tokenizer(made, tmp_path)
    new = load_tokenizer(tmp_path)
    ids = old.with_pieces(i for i in range(first) if i != old.unk_id)
    assert new.pieces(ids) == old.pieces(ids)
    assert new.special[:5] == old.special[:5] and new.largest_id == first + len(parts)
    assert new.encode("<xy>")[-1] == first and new.piece(first) == "<xy>"
    text = "un gatto big žabó the 12 345 cat"
    ids = new.encode(text)
    assert new.decode(ids) == text and new.decode([first, *ids]) == text
    assert len(ids) < len(old.encode(text)) and max(ids) > first
    assert not [i for i in ids if i > first and sum(map(str.isdigit, new.piece(i))) > 1]
    for i, part in enumerate(parts, first + 1):
        spelled = "".join(old.pieces(part))
        assert old.unk_id in part or spelled == new.piece(i)
    assert any(old.unk_id not in part for part in parts)
    again, _ = extended_tokenizer(new, ["ein Gnu"] * 9, 11, "<zz>", first + len(parts) + 3)
    assert again.decode(again.encode("ein Gnu gatto")) == "ein Gnu gatto" and again.piece(first) == "<xy>"


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_cut_is_the_old_one_with_neighbours_joined_and_old_lines_keep_theirs(kind: str) -> None:
    """So a text without neighbours that spell a new piece is cut as before. Letters in any order, all of them known."""
    old = tokenizer_of(kind)
    lines = drawn("that Kitten than sit on hen heat these e ie at", 300)
    made, parts = extended_tokenizer(old, drawn("sonat hetza tenze diesa hats"), 30, "<xy>", 40, OLD + lines[::2])
    assert cut_otherwise(old, made, OLD + lines[::2]) == (0, [])
    alone, alone_parts = extended_tokenizer(old, drawn("sonat hetza tenze diesa hats"), 30, "<xy>", 40)
    for tokenizer, spelled in ((made, parts), (alone, alone_parts)):
        letters = "".join(sorted({*"".join(OLD)} - {*" 12345"}))
        draw = random.Random(1)
        texts = ["".join(draw.choices(letters + "   ", k=40)).strip() for _ in range(200)] + drawn(
            "sonat hetza hats sat"
        )
        ids = tokenizer.encode_batch(texts)
        assert [[j for i in row for j in (spelled[i - 41] if i > 40 else [i])] for row in ids] == old.encode_batch(
            texts
        )
        assert max(max(row) for row in ids) > 40
    number, pieces = cut_otherwise(old, alone, OLD + lines)
    changed = [ids != alone.encode(line) for line, ids in zip(OLD + lines, old.encode_batch(OLD + lines), strict=True)]
    assert number == sum(changed) > 0 and {*pieces} <= {*alone.pieces(range(41, 41 + len(alone_parts)))}


def test_neighbours_are_joined_by_their_numbers() -> None:
    """By hand: ab 5 times, then abc 4; cd would be 3, but its c is gone; x is refused; e comes once."""
    words = Counter({("a", "b", "c", "d"): 3, ("a", "b", "c"): 1, ("a", "b"): 1, ("x", "y"): 9, ("e", "f"): 1})
    found = join_neighbours(words, 9, lambda text: "x" not in text)
    assert found == {"ab": ("a", "b"), "abc": ("a", "b", "c"), "abcd": ("a", "b", "c", "d")}
    assert [*join_neighbours(words, 1, lambda text: True)] == ["xy"]
    assert [*join_neighbours(Counter({("a", "a", "a"): 2}), 9, lambda text: True)] == ["aa", "aaa"]


def test_a_tokenizer_without_pieces_and_wrong_numbers_of_them_are_refused() -> None:
    characters = Characters().train(OLD, 40)
    with pytest.raises(
        ValueError, match="the tokenizer is a CharacterTokenizer: a language is added only to SentencePiece"
    ):
        extended_tokenizer(characters, NEW, 40, "<xy>", 40)
    model = sentence_piece("bpe")
    with pytest.raises(ValueError, match=r"^pieces is 0: it must be 1 or more"):
        extended_tokenizer(model, NEW, 0, "<xy>", 40)
    with pytest.raises(ValueError, match=r"^every line of the text is blank"):
        extended_tokenizer(model, ["", " "], 30, "<xy>", 40)
    assert len(extended_tokenizer(model, NEW, 999, "<xy>", 40).parts) < 999  # as many as the text has
