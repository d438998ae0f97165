"""The tokens that stay when a vocabulary is cut to what texts need.

A text whose pieces all stay is cut as before. A unigram model still has the most probable cut, and unknown text costs as much. With
BPE, every character and every piece stays that is joined on the way to a kept one. With WordPiece, the longest piece is still the
longest.
"""

import itertools
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from flaxformer_lite.core.text import Tokenizer
from flaxformer_lite.files.tokenizers.described import as_described
from flaxformer_lite.files.tokenizers.json_tokenizer import JsonTokenizer
from flaxformer_lite.files.tokenizers.subwords import SentencePieceTokenizer

LINES_READ_AT_ONCE = 10_000
HELD_OUT = 10
"""Every tenth line is held out from the pieces that its own need is measured by."""
SCRIPT_SHARE = 1e-3
"""The share of the letters from which a script is one of the texts': names and quotations in others are rarer."""
BYTE = re.compile(r"<0x[0-9A-F]{2}>")
CHARACTER = re.compile(r"(?:▁|Ġ|##)?(.?)", re.DOTALL)
"""A piece of one character at most, behind the sign of a word's beginning or of its continuation."""


class TextNeeds(NamedTuple):
    """The need of texts."""

    ids: set[int]
    scripts: set[str]
    held_out: int
    """The number of the lines that are held out."""
    missing: list[set[int]]
    """The ids that a line held out has and no other line; a line without any may be left out."""

    def number_short(self, basic: Collection[int]) -> int:
        """Returns how many of the lines held out need an id that neither the others nor `basic` have."""
        present = {*basic}
        return sum(not ids <= present for ids in self.missing)


def to_trim(tokenizer: Tokenizer) -> JsonTokenizer:
    """Returns a tokenizer with the same ids that can be cut. Raises: ValueError for a kind without such a table."""
    base = as_described(tokenizer) if isinstance(tokenizer, SentencePieceTokenizer) else tokenizer
    if not isinstance(base, JsonTokenizer):
        raise ValueError(
            f"the tokenizer is a {type(tokenizer).__name__}: only tables of subwords are cut, of SentencePiece, BPE, unigram or "
            "WordPiece"
        )
    model = json.loads(base.description)["model"]
    if model["type"] == "BPE":
        affix = model["continuing_subword_prefix"] or model["end_of_word_suffix"]
        if affix:
            raise ValueError(
                f"the tokenizer marks parts of words by {affix!r}: only BPE without such a mark is cut, as SentencePiece and GPT-2 "
                "have it"
            )
    return base


def needed_by(tokenizer: JsonTokenizer, lines: Iterator[str]) -> TextNeeds:
    """Returns the need of the lines. Raises: ValueError if all are blank."""
    ids, missing, characters = set[int](), list[set[int]](), Counter[str]()
    lines = filter(str.strip, lines)
    number = 0
    while batch := list(itertools.islice(lines, LINES_READ_AT_ONCE)):
        for row in tokenizer.encode_batch(batch):
            number += 1
            if number % HELD_OUT:
                ids.update(row)
            elif not ids.issuperset(row):
                missing.append(set(row) - ids)
        characters.update("".join(batch))
    if not number:
        raise ValueError("every line of the text is blank: give text of the languages that the run is for")
    missing = [more - ids for more in missing]
    return TextNeeds(ids.union(*missing), scripts_of(characters), number // HELD_OUT, missing)


def lines_cut_otherwise(before: Tokenizer, after: Tokenizer, lines: Sequence[str], kept: Sequence[int]) -> int:
    """Returns how many of the lines a tokenizer with the ids `kept` cuts otherwise than the one before."""
    pairs = zip(before.encode_batch(lines), after.encode_batch(lines), strict=True)
    return sum(old != [kept[i] for i in new] for old, new in pairs)


def script(character: str) -> str:
    """Returns the script of a letter, the first word of its name in Unicode: LATIN, CJK, …; "" for other characters."""
    is_letter = unicodedata.category(character)[0] in "LM"
    return unicodedata.name(character, "").partition(" ")[0] if is_letter else ""


def scripts_of(characters: Mapping[str, int]) -> set[str]:
    """Returns the scripts that have at least `SCRIPT_SHARE` of the letters; `characters` has how often each occurs."""
    letters: Counter[str] = Counter()
    for character, number in characters.items():
        letters[script(character)] += number
    del letters[""]
    return {name for name, number in letters.items() if number >= SCRIPT_SHARE * letters.total()}


def basic_ids(tokenizer: JsonTokenizer, scripts: Collection[str]) -> set[int]:
    """Returns the ids that stay whatever the texts.

    These are special and added tokens, bytes, digits, signs, and the letters of ASCII and of the scripts.
    """
    fields = json.loads(tokenizer.description)
    by_bytes = "ByteLevel" in json.dumps([fields["pre_tokenizer"], fields["decoder"]])
    names = {one["content"] for one in fields["added_tokens"]} | {fields["model"].get("unk_token")}
    kept = {*tokenizer.special[:5], fields["model"].get("unk_id"), *tokenizer.template_ids} - {None}
    for i in tokenizer.with_pieces(range(tokenizer.largest_id + 1)):
        piece = tokenizer.piece(i)
        character = CHARACTER.fullmatch(piece)
        if piece in names or BYTE.fullmatch(piece) or (character and is_basic(character[1], scripts, by_bytes)):
            kept.add(i)
    return {i for i in kept if i is not None}


def is_basic(character: str, scripts: Collection[str], by_bytes: bool) -> bool:
    """Returns whether a piece of one character, or of none, stays. `by_bytes`: characters stand for bytes."""
    return by_bytes or character.isascii() or script(character) in {"", "COMBINING", *scripts}


def with_parts(tokenizer: JsonTokenizer, ids: Iterable[int]) -> list[int]:
    """Returns the ids in their order, with those of all that byte-pair encoding joins on the way to their pieces."""
    ranks = {pair: rank for rank, pair in enumerate(tokenizer.merges)}
    kept = {*ids}
    never = len(ranks)
    numbers = {tokenizer.piece(i): i for i in tokenizer.with_pieces(range(tokenizer.largest_id + 1))}
    for piece in tokenizer.pieces(tokenizer.with_pieces([*kept])) if ranks else ():
        word = [*piece]
        kept |= {numbers[character] for character in word if character in numbers}
        while len(word) > 1:
            rank, place = min((ranks.get(pair, never), place) for place, pair in enumerate(itertools.pairwise(word)))
            if rank == never:
                break
            word[place : place + 2] = ["".join(word[place : place + 2])]
            kept.add(numbers[word[place]])
    return sorted(kept)
