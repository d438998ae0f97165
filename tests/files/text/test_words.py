"""Oracle: words divided by hand; Unicode's categories."""

import unicodedata

import pytest

from flaxformer_lite.files.text.words import SCRIPTS, of_word, words_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It's 1,5 Größe_x", "It s 1 5 Größe x"),
        ("cafe\u0301 İstanbul", "cafe\u0301 İstanbul"),
        ("هٰذَا كِتَابٌ،", "هٰذَا كِتَابٌ"),
        ("שָׁלוֹם־עֲלֵיכֶם", "שָׁלוֹם עֲלֵיכֶם"),
        ("यह हिन्दी है।", "यह हिन्दी है"),
        ("2026年11月", "2026 年 11 月"),
        ("Python运行x2次。", "Python 运 行 x2 次"),
        ("東京でGoを", "東 京 で Go を"),
        ("책을 읽고", "책 을 읽 고"),
        ("ไทย ๒๐", "ไ ท ย ๒๐"),
        ("བོད་ཡིག", "བ ོ ད ་ ཡ ི ག"),
        ("𠀀𠀁", "𠀀 𠀁"),
        ("ꦲꦏ꧀ꦱꦫꦗꦮ", "ꦲꦏ꧀ꦱꦫꦗꦮ"),
        ("か\u3099 \u2764\ufe0f", "か"),
        (" … ", ""),
    ],
)
def test_words_of_any_script(text: str, expected: str):
    """A character of a script without spaces is a word, beside letters too; a mark is a part of its word, and none alone."""
    assert words_of(text) == expected.split()


def test_a_character_goes_on_with_a_word_where_it_is_of_one():
    """Law: `words_of` joins to a letter what `of_word` says belongs to a word."""
    characters = [*map(chr, range(0x20, 0x3400)), *map(chr, range(0xA000, 0xAC10)), *map(chr, range(0xF8F0, 0x12000))]
    wrong = [c for c in characters if (words_of(f"a{c}") == [f"a{c}"]) != of_word(c)]
    assert not [f"U+{ord(c):04x} {unicodedata.name(c, '')}" for c in wrong]


def test_the_letters_of_each_script_are_words_alone():
    for language, script in SCRIPTS.items():
        first = script[0]
        assert words_of(f"x{first}{first}y") == ["x", first, first, "y"], language
