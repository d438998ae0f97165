"""Texts around a search. Oracle: a search that answers each source with itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite.core.search import DecodeConfig, Request
from flaxformer_lite.core.search.answers import NO_ANSWER, Hypothesis
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.core.text.tokenizer import Tokenizers
from flaxformer_lite.engine.texts import TextTranslator, check_list

LETTERS = CharacterTokenizer("abcdefgh")


class Copying(TextTranslator):
    """Its own search: the answer to a source is the source, without its end; to h there is none."""

    tokenizers: Tokenizers | None = Tokenizers(LETTERS, LETTERS)
    decode, path, source_ids, max_source_length = DecodeConfig(), Path("run"), 12, 5  # type: ignore[assignment]
    config = decode

    def searching(self, **options: Any) -> "Copying":
        self.config.changed(options)
        return self

    def weights(self, decoder: Any) -> str:
        return "of the run"

    def directed(self, tokenizers: Tokenizers, decode: DecodeConfig) -> "Copying":
        return self

    def generate(self, weights: str, requests: Sequence[Request], progress: Any) -> list[list[Hypothesis]]:
        assert weights == "of the run"
        answers = [Hypothesis([*one.source][:-1], 0.0) for one in requests]
        return [[NO_ANSWER if LETTERS.encode("h") == answer.tokens else answer] for answer in answers]


def test_each_text_has_its_answer_and_long_ones_are_cut_with_their_line():
    said: list[str] = []
    assert Copying().translate(["abc", "", "abcdefg"], warn=said.append, first_line=7) == ["abc", "", "abcd"]
    assert said == ["line 9: the source has 7 tokens and was cut to 4 (data.max_source_length)"]


def test_what_is_unknown_or_without_an_answer_is_told():
    said: list[str] = []
    assert Copying().translate(["aü", "h"], warn=said.append)[1] == ""
    assert "ü" in said[0] and said[1].startswith("line 2: no answer has a finite score")


def test_token_ids_are_answered_as_they_are_and_checked():
    assert Copying().hypotheses_of_ids([[4, 5, 3]])[0][0].tokens == [4, 5]
    with pytest.raises(ValueError, match="source 1 has 12, which is no token id"):
        Copying().hypotheses_of_ids([[4], [12]])
    with pytest.raises(ValueError, match=r"source 0 has 6 ids but data\.max_source_length is 5: shorten it"):
        Copying().hypotheses_of_ids([[4] * 6])


def test_a_run_of_one_direction_and_one_without_tokenizer_say_so():
    with pytest.raises(ValueError, match=r"the run run translates in one direction .* leave out from and to"):
        Copying().between("de", "en")
    without = Copying()
    without.tokenizers = None
    assert without.in_own_direction() is without
    with pytest.raises(ValueError, match="the run run has no tokenizer: use the option --ids"):
        without.translate(["a"])


def test_one_string_is_no_list():
    with pytest.raises(ValueError, match="texts is one string, 'abc': pass a list of strings"):
        check_list("texts", "abc")
