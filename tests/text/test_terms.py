"""Terms of a source, by hand; mistakes in files of terms."""

from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.text.subwords import SentencePiece
from flaxformer_lite.text.terms import Needed, Terms, going_on, inner_ids

TERMS = {
    "dog": "Hund",
    "New York": "New York",
    "York": "Yorkshire",
    "US": "USA",
    "credit card": "Kreditkarte",
    "犬": "狗",
}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("A Dog, and a dog.", {Needed("Hund"): 1}),
        ("hotdog dogs us", {}),
        ("York is not New York; the US", {Needed("Yorkshire"): 1, Needed("New York"): 1, Needed("USA"): 1}),
        ("小犬です", {Needed("狗", True): 1}),
        (
            "<b>dog</b> {name}: <b>%s</b>, www.x.org/a.",
            {
                Needed("<b>"): 2, Needed("</b>", True): 2, Needed("Hund"): 1, Needed("{name}"): 1,
                Needed("%s", True): 1, Needed("www.x.org/a"): 1,
            },
        ),
    ],
)  # fmt: skip
def test_the_texts_that_a_translation_needs(source: str, expected: dict[Needed, int]):
    assert Terms.of(TERMS, placeholders=True).needed(source) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("dog", "line 3: 0 tabs: write a term, one tab"),
        ("dog\t", "line 3: 'dog' → '': neither text may be empty"),
        ("cat\tHund", "line 3: 'cat' is 'Hund' here and 'Katze' in .*line 1"),
        ("dog\tHünd", "line 3: 'Hünd' is not in the vocabulary"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(tmp_path: Path, line: str, message: str):
    file = tmp_path / "terms.tsv"
    file.write_text(f"cat\tKatze\n\n{line}\n", encoding="utf-8")
    tokenizer = SentencePiece().train(["a Katze and ein Hund."] * 9, 31)
    with pytest.raises(ValueError, match=message):
        Terms.read(str(file)).check(tokenizer)


def test_pieces_inside_a_word_are_those_without_a_space():
    """By hand: the ids that go on with a word, and a term with a space before it and without."""
    tokenizer = SentencePiece().train(["a bab. bab, a"] * 9, 12)
    pieces = {tokenizer.piece(i): i for i in range(12)}
    found = np.flatnonzero(going_on(tokenizer, 15))
    letters = {piece for piece in pieces if piece.isalpha() and piece.isascii()}
    assert {tokenizer.piece(i) for i in found} == letters | {"<pad>", "<unk>", "<s>"}
    inner, glued = (tokenizer.pieces(inner_ids(tokenizer, Needed("bab", alone))) for alone in (False, True))
    assert "".join(inner) == "▁bab" and "".join(glued) == "bab"
