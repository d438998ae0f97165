"""Texts around a search. Oracle: a search that answers each source with itself."""

from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from flaxformer_lite.core.search import DecodeConfig, Request
from flaxformer_lite.core.search.answers import NO_ANSWER, Hypothesis, ScoredText
from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.core.text.special_ids import EOS, check_token_ids
from flaxformer_lite.core.text.tokenizer import Tokenizers, UnknownText
from flaxformer_lite.engine.texts import TextTranslator, check_list, in_own_direction, required_tokenizers
from flaxformer_lite.files.chats.form import Sources
from tests.support.reference_search import SMALL, model_of

LETTERS = CharacterTokenizer("abcdefgh")


class Copying:
    """Its own search: the answer to a source is the source, without its end; to h there is none."""

    config, unknown = DecodeConfig(), UnknownText(LETTERS)

    def search(self, settings: DecodeConfig) -> "Copying":
        return self

    def weights(self, search: Any) -> str:
        return "of the run"

    def check_source(self, source: Sequence[int]) -> None:
        check_token_ids(source, 12, "has")

    def generate(self, weights: str, requests: Sequence[Request], progress: Any) -> list[list[Hypothesis]]:
        assert weights == "of the run"
        answers = [Hypothesis([*one.source][:-1], 0.0) for one in requests]
        return [[NO_ANSWER if LETTERS.encode("h") == answer.tokens else answer] for answer in answers]


def copying() -> TextTranslator:
    form = Sources(Tokenizers(LETTERS, LETTERS), DecodeConfig(), 5, "run")
    return TextTranslator(Copying(), form)


def test_each_text_has_its_answer_and_long_ones_are_cut_with_their_line():
    said: list[str] = []
    assert copying().translate(["abc", "", "abcdefg"], warn=said.append, first_line=7) == ["abc", "", "abcd"]
    assert said == ["line 9: the source has 7 tokens and was cut to 4 (data.max_source_length)"]


def test_what_is_unknown_or_without_an_answer_is_told():
    said: list[str] = []
    assert copying().translate(["aü", "h"], warn=said.append)[1] == ""
    assert "ü" in said[0] and said[1].startswith("line 2: no answer has a finite score")


def test_translations_are_the_decoders_answers_as_text():
    """Law: each source gets EOS and is answered as by the decoder alone; an empty source has one empty translation."""
    letters = CharacterTokenizer("abcdefg")
    model, variables = model_of(SMALL)
    decoder = Decoder(model, DecodeConfig(beam_size=2, num_hypotheses=2, max_new_tokens=5))
    sources, reported = [[5, 7], [], [9, 4, 4]], []
    searcher = Mock(search=lambda _: decoder, weights=lambda _: variables, unknown=UnknownText(letters))
    form = Sources(Tokenizers(letters, letters), decoder.config, 99, "run")
    found = TextTranslator(searcher, form).hypotheses(
        list(map(letters.decode, sources)), progress=lambda *progress: reported.append(progress)
    )
    answers = decoder.generate(variables, [[*source, EOS] for source in sources if source])
    texts = [[ScoredText(letters.decode(h.tokens), h.score) for h in answer] for answer in answers]
    assert found == [texts[0], [ScoredText("", 0.0)], texts[1]] and reported == [("decoding", 2, 2)]


def test_token_ids_are_answered_as_they_are_and_checked():
    assert copying().hypotheses_of_ids([[4, 5, 3]])[0][0].tokens == [4, 5]
    with pytest.raises(ValueError, match="source 1 has 12, which is no token id"):
        copying().hypotheses_of_ids([[4], [12]])
    with pytest.raises(ValueError, match=r"source 0 has 6 ids but data\.max_source_length is 5: shorten it"):
        copying().hypotheses_of_ids([[4] * 6])


def test_a_run_of_one_direction_and_one_without_tokenizer_say_so():
    with pytest.raises(ValueError, match=r"the run run translates in one direction .* leave out from and to"):
        copying().form.between("de", "en")
    without = Mock(tokenizers=None)
    assert in_own_direction(without) is without
    with pytest.raises(ValueError, match="the run run has no tokenizer: use the option --ids"):
        required_tokenizers(None, "run")


def test_one_string_is_no_list():
    with pytest.raises(ValueError, match="texts is one string, 'abc': pass a list of strings"):
        check_list("texts", "abc")
