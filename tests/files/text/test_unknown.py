"""Oracles worked by hand: the parts of texts that each kind of tokenizer lacks, reported once and in one line."""

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from flaxformer_lite.core.text.characters import Bytes, CharacterTokenizer
from flaxformer_lite.core.text.special_ids import SpecialIds
from flaxformer_lite.core.text.tokenizer import MAX_LISTED, MAX_REPORTED, Tokenizer, UnknownText
from flaxformer_lite.files.tokenizers.json_tokenizer import JsonTokenizer
from flaxformer_lite.files.tokenizers.subwords import SentencePiece
from tests.support.tokenizers import bytes_joined, word_pieces

WORDS = ["hello world", "world of words", "a word"] * 9
SPECIAL = SpecialIds(0, 1, 2, 3)


def test_characters_and_subwords_report_characters():
    """A space that no piece has is a character too, and SentencePiece's own spaces are no text."""
    for tokenizer, space in ((CharacterTokenizer("helowrd"), [" "]), (SentencePiece().train(WORDS, 20), [])):
        assert tokenizer.unknown_parts(["hello world", ""]) == space
        assert [c for c in tokenizer.unknown_parts(["wßrld…", "…o", "漢"]) if c != " "] == ["ß", "…", "漢"]
    assert Bytes().train([], 260).unknown_parts(["wßrld…", "\0"]) == []


def test_word_pieces_report_words_and_the_name_of_the_unknown_is_known():
    """A character that there is inside of words only is known there, and makes a word unknown that begins with it."""
    found = word_pieces()
    found.add_special_tokens(["[UNK]"])
    tokenizer = JsonTokenizer(found.to_str(), SPECIAL)
    assert tokenizer.unknown_parts(["abc a", "ca ab", "a z [UNK]"]) == ["ca", "z"]


def test_dropped_characters_of_a_tokenizer_without_unk_are_reported():
    """Oracle: byte pairs over the letters a and b, without and with bytes below."""
    found = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    found.normalizer, found.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    plain = JsonTokenizer(found.to_str(), SpecialIds(0, None, None, None))
    assert plain.encode("AB cab") == [2, 2] and plain.unknown_parts(["AB cab", "ß"]) == ["c", "ß"]
    assert JsonTokenizer(bytes_joined().to_str(), SpecialIds(1, None, 0, 2)).unknown_parts(["a ß\t漢 "]) == []


def test_each_is_reported_once_and_many_in_one_line():
    tokenizer: Tokenizer = CharacterTokenizer("ab")
    unknown, warnings = UnknownText(tokenizer), []
    unknown.report(["ab", "aß\t"], warnings.append)
    unknown.report(["ba", "ßß"], warnings.append)
    assert warnings == ["not in the vocabulary, so the model cannot read it: 'ß', '\\t'"]
    unknown.report(["ß漢"], warnings.append)
    unknown.report([chr(ord("A") + i) for i in range(MAX_LISTED + 3)], warnings.append)
    assert (
        warnings[1].endswith(": '漢'")
        and warnings[2].endswith(f"'{chr(ord('A') + MAX_LISTED - 1)}' and 3 more")
        and len(warnings) == 3
    )


def test_parts_of_strangers_do_not_fill_the_memory():
    """Law: about 10,000 parts are remembered."""
    unknown, warnings = UnknownText(CharacterTokenizer("ab")), []
    unknown.report(["".join(chr(0x4E00 + i) for i in range(MAX_REPORTED))], warnings.append)
    unknown.report(["ß"], warnings.append)
    assert len(warnings) == 1 and len(unknown.reported) == MAX_REPORTED
