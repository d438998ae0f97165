"""The one definition of a word, in any script: for terms, BLEU, near duplicates, and words that translate each other.

    text                words
    "It's 1,5 Größe"    It s 1 5 Größe: letters, their marks and digits in a row
    "हिन्दी"               हिन्दी: vowels that are marks belong to it
    "Python运行2次"      Python 运 行 2 次: a character of a script without spaces is a word, beside letters too
    "책을"               책 을: so is one of Korean, whose words have their endings without a space

Case and composition stay: words are compared in the normal form of their texts.
"""

import functools
import re
import unicodedata

SCRIPTS = {
    "zh": "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff",
    "ja": "\u3041-\u3096\u30a1-\u30ff\u31f0-\u31ff\uff66-\uff9f",
    "ko": "\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3",
    "th": "\u0e01-\u0e4e",
    "lo": "\u0e81-\u0edf",
    "km": "\u1780-\u17d3",
    "my": "\u1000-\u109f",
    "bo": "\u0f00-\u0fbc",
}
"""The letters of each script that is written without spaces, and those of Korean; those of `zh` are in Japanese texts too."""
UNSPACED = re.compile(f"[{''.join(SCRIPTS.values())}]")
HANGUL = re.compile(f"[{SCRIPTS['ko']}]")


def of_word(character: str) -> bool:
    """Returns whether a character belongs to a word, in a script that has spaces between words."""
    return unicodedata.category(character)[0] in "LMN" and UNSPACED.match(character) is None


@functools.cache
def word_pattern() -> re.Pattern[str]:
    """Returns the pattern of a word. A mark belongs to the letter or digit before it, and is never a word by itself."""
    marks = [mark for mark in map(chr, range(0x300, 0x1F000)) if unicodedata.category(mark)[0] == "M"]
    of_words = "".join(filter(of_word, marks))
    return re.compile(f"{UNSPACED.pattern}|(?:[^\\W_{UNSPACED.pattern[1:-1]}][{of_words}]*)+")


def words_of(text: str) -> list[str]:
    """Returns the words of a text."""
    return word_pattern().findall(text)


@functools.cache
def unit_pattern() -> re.Pattern[str]:
    """Returns the pattern of a word, or of a single other character that is not white space, such as a comma."""
    return re.compile(rf"{word_pattern().pattern}|\S")


def units_of(text: str) -> list[tuple[int, int]]:
    """Returns the places of the words of a text and of all other characters but white space."""
    return [match.span() for match in unit_pattern().finditer(text)]
