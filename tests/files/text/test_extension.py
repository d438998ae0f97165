"""A tokenizer with a language more. Laws: old ids keep their pieces, new text comes back, its new pieces spell their parts."""

import random
from pathlib import Path

import pytest
import tokenizers as library
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from flaxformer_lite.core.text import Characters, Tokenizer
from flaxformer_lite.files.text import SentencePiece, load_tokenizer
from flaxformer_lite.files.text.extension import extended
from flaxformer_lite.files.text.json_tokenizer import JsonTokenizer
from flaxformer_lite.files.text.kinds import save_tokenizer
from flaxformer_lite.files.text.subwords import AddedPieces, SentencePieceTokenizer


def drawn(words: str) -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choices(words.split(), k=7)) for _ in range(60)]


OLD = drawn("the cat sat on a hat die Katze saß 1 2 3 4 5")
NEW = drawn("il gatto dono cane è qui \uff49\uff4c un žabó big 12 345")


def sentence_piece(kind: str) -> SentencePieceTokenizer:
    return SentencePiece(model_type=kind, normalization="nmt_nfkc").train(OLD, 36)  # type: ignore[arg-type]


def tokenizer_of(kind: str) -> Tokenizer:
    """A tokenizer of each kind; the last two have a token behind their pieces."""
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


@pytest.mark.parametrize("kind", ["bpe", "unigram", "added bpe", "json bpe", "json unigram"])
def test_old_ids_stay_and_new_ones_read_and_write_the_language(kind: str, tmp_path: Path) -> None:
    old = tokenizer_of(kind)
    first = old.largest_id + 5  # a model may have more ids than its tokenizer
    made, parts = extended(old, NEW, 35, "<xy>", first)
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
    again, _ = extended(new, ["ein Gnu"] * 9, 11, "<zz>", first + len(parts) + 3)
    assert again.decode(again.encode("ein Gnu gatto")) == "ein Gnu gatto" and again.piece(first) == "<xy>"


def test_a_tokenizer_without_pieces_and_wrong_numbers_of_them_are_refused() -> None:
    characters = Characters().train(OLD, 40)
    with pytest.raises(ValueError, match="the tokenizer is a CharacterTokenizer: a language is added to SentencePiece"):
        extended(characters, NEW, 40, "<xy>", 40)
    model = sentence_piece("bpe")
    for lines, number, message in (
        (NEW, 4, r"^pieces is 4: it must be above 4"),
        (NEW, 9, r"^pieces is 9: .*need \d+; set it to that or more"),
        (NEW, 999, r"^pieces is 999: the training text is too small for it; the largest possible is \d+"),
        (["", " "], 30, "^every line of the training text is blank"),
    ):
        with pytest.raises(ValueError, match=message):
            extended(model, lines, number, "<xy>", 40)
