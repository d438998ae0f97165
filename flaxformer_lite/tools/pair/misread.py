"""UTF-8 that was read in an encoding of one byte a character, anywhere in a text: "schlÃ¤ft" for "schläft"."""

import re

UNMAPPED = "\x81\x8d\x8f\x90\x9d"
"""The bytes that Windows-1252 lacks; programs leave them as they are."""
BYTE_OF_CHARACTER = {chr(byte): byte for byte in range(0x80, 0x100)} | {
    bytes([byte]).decode("cp1252"): byte for byte in range(0x80, 0xA0) if chr(byte) not in UNMAPPED
}
"""The byte of each character beyond ASCII in Latin-1 or Windows-1252; texts are found in which both are mixed."""
FOLLOWING = re.escape("".join(character for character, byte in BYTE_OF_CHARACTER.items() if byte < 0xC0))
SEQUENCE = re.compile(
    f"[\u00c2-\u00df](?=([{FOLLOWING}]))|[\u00e0-\u00ef](?=([{FOLLOWING}]{{2}}))|[\u00f0-\u00f4](?=([{FOLLOWING}]{{3}}))"
)
"""A character of two, three or four bytes of UTF-8, each byte a character."""
LOST = re.compile("\u00e2\u20ac|[a-z\u00df-\u00ff][\u00c2\u00c3]")
"""The remains where one of the bytes was dropped: the start of a quotation mark or dash, a capital that no word has inside."""

QUOTES = "«»‹›‘’“”„‚"
BEHIND_WORDS = QUOTES + "…–—\u00a0"
"""Signs that stand behind a word, or behind a single letter, without a space."""
BEHIND_CAPITALS = BEHIND_WORDS + "•·®©™°¹²³\u00ad"
"""Signs behind a word in capitals."""
JOINING = "–—‘’\u00ad"
"""Signs between two words or the parts of one."""
NO_QUOTE_ENDS = re.compile("»[^»›’”…–—\u00a0]")
"""An end of a quotation with what does not follow it at once."""
CARONS = "ŠŽšž"
"""Letters beside accented ones in the words of several languages."""
LATIN = "\u024f"
"""The last of the letters that stand beside accented ones."""


def is_misread(text: str) -> bool:
    """Returns whether a text has U+FFFD, or a character of UTF-8 whose bytes became characters that no word has so together."""
    if text.isascii():
        return False
    if "\ufffd" in text or LOST.search(text):
        return True
    return any(
        not is_word(text, match.start(), match[0] + match[match.lastindex or 0]) for match in SEQUENCE.finditer(text)
    )


def is_word(text: str, start: int, sequence: str) -> bool:
    """Returns whether a sequence that could be UTF-8 is the end of a word and the signs behind it, as in "CAFÉ”" or "víš…"."""
    try:
        bytes(BYTE_OF_CHARACTER[character] for character in sequence).decode()
    except UnicodeDecodeError:
        return True
    letter = sequence[0]
    signs = sequence[1:]
    end = start + len(sequence)
    before = text[start - 1 : start]
    after = text[end : end + 1]
    behind = signs.partition("\u00a0")[0]  # behind this space another word begins
    if behind.strip(BEHIND_CAPITALS + CARONS) or SEQUENCE.match(text, end):
        return letter == "×" and (before.isdecimal() or before.isspace())
    if any(near.isalpha() and near > LATIN for near in (before, after)):
        return False  # a letter of another script
    if letter.islower():  # ß is the only one of them with one sign
        return NO_QUOTE_ENDS.search(signs) is None
    if before.islower() or before.isdecimal():
        return False  # a capital within a word
    if signs == "\u00a0":
        return not after or not (after.isspace() or letter in "ÂÃÄÅ")
    if signs in CARONS:
        return letter not in "ÂÃÄÅ"
    if after.isalpha():
        return letter not in "ÂÃ" and signs in JOINING and (before.isupper() or after.isupper())
    if before.isupper():
        return letter not in "ÂÃ" or signs in BEHIND_WORDS
    return signs in BEHIND_WORDS and (letter not in "ÂÃ" or (before in tuple(QUOTES) and signs in QUOTES))
