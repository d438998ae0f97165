"""The one normal form in which texts are compared: what looks the same is equal, whoever wrote it.

    as written                                compared as
    é in one character, or e and its mark     é: canonical composition (NFC)
    "New  York", or with U+00A0               "new york": one space between words, none at the ends
    "STRASSE", "Straße", "İ"                  "strasse", "i": full case folding
    "Ver\\u00adtrag", "\\u200bVertrag"        "vertrag": invisible characters are ignored

Reference: Unicode 17, section 3.13, D145 (canonical caseless matching); Standard Annex 15 (composition).
"""

import functools
import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef]+"
)
"""Soft hyphens, joiners, direction marks, byte order marks, variation selectors: Default_Ignorable_Code_Point without fillers."""
DOTTED_I = re.compile("i\u0307+")
"""A capital İ in small letters: an i with a second dot."""
LIGATURES = {ord(sign): unicodedata.normalize("NFKC", sign) for sign in "\ufb00\ufb01\ufb02\ufb03\ufb04\ufb05\ufb06"}
"""The letters of the Latin ligatures, which PDF files have; folding the case writes them too."""
LETTERS_OF_SYLLABLES = re.compile("[\u1160-\u11ff\ud7b0-\ud7ff]")
"""The letters of Hangul that go on with a syllable."""
ASCII_SIGNS = bytes(code if code >= 128 or chr(code).isalnum() else 32 for code in range(256))
"""Turns each ASCII character but letters and digits into a space."""
LATIN_SIGNS = b"".join(chr(code).lower().encode("latin-1") if chr(code).isalnum() else b" " for code in range(256))
"""Does so with the characters of Latin-1, which are all composed, and turns capitals into small letters."""
SIGNS = re.compile(
    "[\u0080-\u00a9\u00ab-\u00b1\u00b4\u00b6-\u00b8\u00bb\u00bf\u00d7\u00f7\u055a-\u055f\u0589\u058a\u05be\u05c0\u05c3"
    "\u05c6\u05f3\u05f4\u0609-\u060d\u061b\u061d-\u061f\u066a-\u066d\u06d4\u0700-\u070d\u0964\u0965\u0970\u0df4\u0e4f"
    "\u0e5a\u0e5b\u0f04-\u0f14\u0f3a-\u0f3d\u104a-\u104f\u1360-\u1368\u166e\u1680\u17d4-\u17d6\u17d8-\u17da"
    "\u1800-\u180a\u1c7e\u1c7f\u2000-\u206f\u20a0-\u20c0\u2190-\u245f\u2500-\u2775\u2794-\u2bff\u2e00-\u2e2e"
    "\u2e30-\u2e5d\u3000-\u3004\u3008-\u3020\u3030\u303d\u30fb\uabeb\ufe10-\ufe19\ufe30-\ufe6b\uff01-\uff0f\uff1a-\uff20"
    "\uff3b-\uff40\uff5b-\uff65\uffe0-\uffee\U0001f000-\U0001f0ff"
    "\U0001f200-\U0001faff]+"
)
"""Other spaces, punctuation and symbols, by Unicode's blocks of the scripts of today."""


def with_case(text: str) -> str:
    """Returns a text in its normal form, but with its case and all its spaces."""
    return text if text.isascii() else unicodedata.normalize("NFC", INVISIBLE.sub("", text).translate(LIGATURES))


def caseless(text: str) -> str:
    """Returns a text in its normal form, but with all its spaces."""
    if text.isascii():
        return text.lower()
    folded = unicodedata.normalize("NFC", INVISIBLE.sub("", text)).casefold()
    return unicodedata.normalize("NFC", DOTTED_I.sub("i", folded))


def cased(text: str) -> str:
    """Returns the normal form of a text, with its case."""
    return " ".join(with_case(text).split())


def comparable(text: str) -> str:
    """Returns the normal form of a text."""
    return " ".join(caseless(text).split())


def bare_words(text: str) -> str:
    """Returns the normal form of a text without its punctuation; a text of nothing but punctuation keeps it.

    Texts with equal results count as one: for held-out data, for the division of `pair`, and in the search for near duplicates.
    """
    try:
        words = text.encode("latin-1").translate(LATIN_SIGNS, b"\xad")
        form = b" ".join(words.split()).decode("latin-1").replace("ß", "ss").replace("µ", "μ")
    except UnicodeEncodeError:
        words = SIGNS.sub(" ", caseless(text)).encode(errors="surrogatepass").translate(ASCII_SIGNS)
        form = b" ".join(words.split()).decode(errors="surrogatepass")
    return form or comparable(text)


class Located(NamedTuple):
    """The normal form of a text, with one space at an end that has any, and the places of its characters in the text."""

    form: str
    places: Sequence[int]
    """The place where each character begins, and the end of the text; -1 inside of what may not be cut: a letter and its marks, a
    syllable, or a character that is several in the normal form."""


def located_form(text: str) -> Located:
    """Returns the normal form of a text with the places of its characters."""
    form = text.casefold()
    ends = (len(text),)
    if len(form) == len(text) and form == comparable(text):
        if text.isascii():
            return Located(form, range(len(text) + 1))
        return Located(form, (*(-1 if goes_on(sign) else place for place, sign in enumerate(text)), *ends))
    signs, places = list[str](), list[int]()
    starts = [place for place, sign in enumerate(text) if place == 0 or not goes_on(sign)]
    for start, end in zip(starts, (*starts[1:], *ends), strict=True):
        for number, sign in enumerate(caseless(text[start:end])):
            if not sign.isspace():
                signs.append(sign)
            elif not signs or signs[-1] != " ":
                signs.append(" ")
            else:
                continue
            places.append(-1 if number else start)
    return Located("".join(signs), (*places, *ends))


@functools.cache
def goes_on(sign: str) -> bool:
    """Returns whether a character belongs to the one before it: a mark, a letter of a syllable, or one without a shape."""
    return (
        unicodedata.category(sign)[0] == "M"
        or INVISIBLE.match(sign) is not None
        or LETTERS_OF_SYLLABLES.match(sign) is not None
    )
