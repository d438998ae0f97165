"""Oracles: `unicodedata` (canonical equivalence), laws of every assigned character, and texts compared by hand."""

import itertools
import random
import unicodedata
from collections.abc import Sequence

import pytest

from flaxformer_lite.files.text.normal_form import INVISIBLE, bare_words, cased, comparable, located_form

ODD = "aeiIxßıİſﬁǰΐςΣᾳéȷ 가각각 क़िกำがｶﾞ犬👍🏽K Å①"
MARKS = "\u0301\u0307\u0323\u0345\u093c\u0e31\u3099\u20d7"
SPACES = " \t\n\u00a0\u2009\u202f\u3000"
HIDDEN = "\u00ad\u200b\u200d\u2060\ufe0f\ufeff"


def drawn(number: int) -> list[str]:
    """Returns texts of characters that are compared in an unusual way."""
    draw, signs = random.Random(3), [*ODD, *MARKS, *SPACES, *HIDDEN, *"abz. "]
    return ["".join(draw.choices(signs, k=draw.randint(0, 7))) for _ in range(number)]


@pytest.mark.parametrize(
    "equal",
    [
        ("café", "cafe\u0301", "CAFÉ"),
        ("New York", "New\u00a0York", " new\u2009 york\n", "New\u3000York"),
        ("straße", "STRASSE", "Strasse"),
        ("οδός", "ΟΔΌΣ", "οδόσ"),
        ("izmir", "İzmir", "İZMİR", "I\u0307zmir"),
        ("office", "oﬃce", "OFFICE"),
        ("Vertrag", "Ver\u00adtrag", "\ufeffVertrag", "Vertrag\u200b"),
        ("각", "\u1100\u1161\u11a8", "가\u11a8"),
        ("q\u0323\u0307", "q\u0307\u0323"),
        ("❤", "❤\ufe0f"),
    ],
)
def test_texts_that_look_the_same_are_equal(equal: tuple[str, ...]):
    assert len({comparable(text) for text in equal}) == 1 and len({bare_words(text) for text in equal}) == 1


def test_texts_that_look_different_are_not():
    different = ["cafe", "café", "cafés", "i", "ı", "s", "sigma", "犬", "大", "が", "か", "", "."]
    assert (
        len({comparable(text) for text in different}) == len({bare_words(text) for text in different}) == len(different)
    )
    assert cased("US") != cased("us") and cased("Oﬃce\u00a0") == "Office"


def test_the_form_is_one_of_all_canonical_equivalents_and_of_itself():
    """Law, for each character that has another form, and for drawn texts."""
    odd = [chr(code) for code in range(0x20000) if unicodedata.decomposition(chr(code))]
    for text in (*odd, *drawn(2000)):
        forms = {form(text) for form in (comparable, lambda text: comparable(comparable(text)))}
        forms |= {comparable(unicodedata.normalize(form, text)) for form in ("NFC", "NFD")}  # type: ignore[arg-type]
        assert len(forms) == 1, ascii(text)
        assert bare_words(bare_words(text)) == bare_words(text), ascii(text)


def test_places_are_those_of_whole_characters():
    """Law: a part of the form between two places is the form of what stands between them in the text."""
    for text in drawn(2000):
        form, places = located_form(text)
        assert form.strip() == comparable(text) and len(places) == len(form) + 1 and places[-1] == len(text)
        known = [number for number, place in enumerate(places) if place >= 0]
        assert [places[number] for number in known] == sorted({places[number] for number in known})
        for start, end in itertools.pairwise(known):
            own = text[places[start] : places[end]]
            assert comparable(own) == form[start:end].strip(), ascii(text)
            assert start == 0 or not (unicodedata.combining(own[0]) or INVISIBLE.match(own)), ascii(text)


def test_nothing_is_cut_inside_a_letter():
    """By hand: ß and ﬃ are several characters of the form, a letter and its mark are one place, a capital İ is one i."""

    def shown(text: str) -> tuple[str, Sequence[int]]:
        form, places = located_form(text)
        return form, list(places)

    assert shown("aß b") == ("ass b", [0, 1, -1, 2, 3, 4])
    assert shown("e\u0301x") == ("éx", [0, 2, 3]) and shown("q\u0323.") == ("q\u0323.", [0, -1, 2, 3])
    assert shown("İx") == ("ix", [0, 1, 2]) and shown("ﬃ") == ("ffi", [0, -1, -1, 1])
    assert shown("a\u00a0 b\u00adc") == ("a bc", [0, 1, 3, 5, 6])


def test_the_short_way_of_western_texts_is_the_long_way():
    """Law: a character without a shape, which Latin-1 lacks, changes nothing."""
    for code in range(256):
        text = f"a{chr(code)}B"
        assert bare_words(text) == bare_words(text + "\u200b"), code


def test_punctuation_alone_is_compared_with_itself():
    assert bare_words("„Ja“, sagte er…") == bare_words("ja sagte er") and bare_words("मैं।") == bare_words("मैं")
    assert (
        bare_words("?!") == "?!" != bare_words("!")
        and bare_words("3+4") == bare_words("3 4")
        and bare_words("①") != bare_words("②")
    )
