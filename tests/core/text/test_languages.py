"""Laws of the places of languages' tokens. Oracle: the table of `Languages`, by hand."""

from typing import Any

import pytest

from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.text import Languages, Tokenizers
from flaxformer_lite.core.text.languages import LanguageTokenizers, codes_in
from flaxformer_lite.files.tokenizers import SentencePiece

CODES = ("eng_Latn", "deu_Latn", "fra_Latn")
TEXT = ["one two three four", "eins zwei drei vier"]
TRAINED = SentencePiece(user_symbols=CODES).train(TEXT * 20, 60)
PIECES = {TRAINED.piece(i): i for i in range(TRAINED.vocab_size)}
ENGLISH, GERMAN = PIECES["eng_Latn"], PIECES["deu_Latn"]
WORD, EOS = TRAINED.encode("two"), TRAINED.eos_id


def tokenizers(**places: Any) -> LanguageTokenizers:
    return LanguageTokenizers.of(Tokenizers(TRAINED, TRAINED), Languages(codes=CODES, **places))


@pytest.mark.parametrize(
    ("places", "source", "decode"),
    [
        ({"source": "before", "target": "first"}, [ENGLISH, *WORD, EOS], {"forced_bos_id": GERMAN}),
        ({"source": "behind", "target": "start"}, [*WORD, EOS, ENGLISH], {"bos_id": GERMAN}),
        ({"source": "none", "target": "source"}, [GERMAN, *WORD, EOS], {}),
    ],
)
def test_a_source_has_the_tokens_of_its_direction(places: dict, source: list[int], decode: dict):
    found = tokenizers(**places)
    assert found.between("eng_Latn", "deu_Latn").source.as_source(WORD) == source
    assert found.ids("eng_Latn", "deu_Latn").decode == decode
    assert found.source.as_source(WORD) == [*WORD, EOS]


@pytest.mark.parametrize(
    ("places", "before", "first"), [({}, [ENGLISH], [GERMAN]), ({"source": "none", "target": "source"}, [GERMAN], [])]
)
def test_a_pair_has_the_tokens_of_its_languages(places: dict, before: list[int], first: list[int]):
    (pair,) = tokenizers(**places).encode_pairs([Pair("two", "zwei", languages=("eng_Latn", "deu_Latn"))])
    assert (pair.source, pair.target) == ([*before, *WORD], [*first, *TRAINED.encode("zwei")])
    (alone,) = tokenizers(**places, direction=CODES[:2]).encode_pairs([Pair("two", "zwei")])
    assert (alone.source, alone.target) == (pair.source, pair.target)


@pytest.mark.parametrize(
    ("codes", "source", "target"),
    [
        ((None, None), "deu_Latn", "fra_Latn"),
        (("eng_Latn", None), "eng_Latn", "fra_Latn"),
        ((None, "eng_Latn"), "deu_Latn", "eng_Latn"),
    ],
)
def test_a_language_that_is_not_named_is_that_of_the_direction(codes: tuple, source: str, target: str):
    found = tokenizers(direction=("deu_Latn", "fra_Latn"))
    assert found.languages.checked(*codes) == (source, target)
    assert found.between(*codes).source.as_source(WORD) == [PIECES[source], *WORD, EOS]
    assert found.ids(*codes).decode == {"forced_bos_id": PIECES[target]}
    assert found.between(*codes).languages.direction == (source, target)


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (("eng_Latn", "deu_Lat"), "to is 'deu_Lat', which is not one of this run's 3 languages; .*deu_Latn"),
        ((None, "deu_Latn"), "from is missing: .* name the direction by --from and --to"),
    ],
)
def test_a_wrong_direction_names_the_nearest_code(codes: tuple, message: str):
    with pytest.raises(ValueError, match=message):
        tokenizers().between(*codes)


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (Pair("two", "zwei", "news"), "a pair has the label 'news', which a translation does not read: leave it out"),
        (Pair("two", "zwei", languages=("eng_Latn",)), r"a pair has the languages \('eng_Latn',\): .* two codes"),
        (Pair("two", "zwei", languages=("eng_Latn", "news")), "to is 'news', which is not one of this run's"),
    ],
)
def test_a_pair_of_no_direction_is_refused(pair: Pair, message: str):
    with pytest.raises(ValueError, match=f"^{message}"):
        list(tokenizers().encode_pairs([Pair("two", "zwei", languages=("eng_Latn", "deu_Latn")), pair]))


def test_a_language_needs_a_token():
    with pytest.raises(ValueError, match=r"data\.languages has the token '<eng_Latn>', which is no piece"):
        tokenizers(token="<{}>")


@pytest.mark.parametrize(
    ("form", "text", "code"),
    [
        ("{}", "eng_Latn", "eng_Latn"),
        ("__{}__", "__en__", "en"),
        (">>{}<<", ">>cmn_Hans<<", "cmn_Hans"),
        ("<2{}>", "<2de>", "de"),
    ],
)
def test_codes_are_read_from_the_tokens_of_others(form: str, text: str, code: str):
    assert codes_in([text, "▁two", text], form) == (code,)
