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
    ("term", "source"),
    [
        ("dog", "İzmir: the DOG"), ("istanbul", "in İstanbul'da"), ("café", "ein cafe\u0301 bitte"), ("cafe\u0301", "CAFÉ"),
        ("New York", "in New\u00a0York"), ("new york", "NEW \n York"), ("straße", "die STRASSE."), ("strasse", "Straße"),
        ("λόγος", "ΛΌΓΟΣ"), ("office", "an oﬃce"), ("Office", "Oﬃce"), ("Vertrag", "der Ver\u00adtrag"), ("ﬁsh", "a fish"),
        ("각", "(\u1100\u1161\u11a8)"), ("dog", "a dog\u200b."), ("US", "ß US"), ("q\u0307\u0323", "q\u0323\u0307!"),
    ],
)  # fmt: skip
def test_a_term_is_found_however_it_is_written(term: str, source: str):
    assert list(Terms.of({term: "X"}).needed(source)) == [Needed("X")]


@pytest.mark.parametrize(
    ("term", "source"),
    [
        ("cafe", "cafe\u0301"), ("s", "ß"), ("stras", "straß"), ("f", "ﬁ"), ("dog", "dog\u00adhouse"), ("dog", "İdog"),
        ("US", "us"), ("가", "\u1100\u1161\u11a8"), ("か", "か\u3099"), ("İzmir", "izmir"), ("i", "ı"), ("dog", "do\u0323g"),
    ],
)  # fmt: skip
def test_a_term_is_no_part_of_a_word_or_of_a_letter(term: str, source: str):
    assert not Terms.of({term: "X"}).needed(source)


def test_a_term_with_capitals_comes_before_one_without():
    terms = Terms.of({"us": "uns", "US": "USA"})
    assert [list(terms.needed(source)) for source in ("US", "Us")] == [[Needed("USA")], [Needed("uns")]]


def test_a_placeholder_behind_another_form_of_a_text_is_found():
    """By hand: characters that fold to two, and marks, stand before, inside and behind it."""
    needed = Terms.of({"é": "E"}, placeholders=True).needed("ßİ <e\u0301\u00ad>\u0301 e\u0301 {é}\u200b{x}")
    assert needed == {Needed("<e\u0301\u00ad>"): 1, Needed("E"): 1, Needed("{é}"): 1, Needed("{x}", True): 1}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("dog", "line 3: 0 tabs: write a term, one tab"),
        ("dog\t", "line 3: 'dog' → '': neither text may be empty"),
        ("cat\tHund", "line 3: 'cat' is 'Hund' here and 'Katze' in .*line 1"),
        ("ca\u00adt\tHund", "line 3: .* is 'Hund' here and 'Katze' in .*line 1"),
        ("\u200b\tHund", "line 3: .* → 'Hund': neither text may be empty"),
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
