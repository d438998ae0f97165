"""Laws of both forms: a pair's question is what is read of its source alone, and an answer is written back as its text."""

import dataclasses
from collections.abc import Callable

import pytest

from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.search.settings import DecodeConfig
from flaxformer_lite.core.text import Languages, LanguageTokenizers, Tokenizers
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.files.chats.asking import Asking
from flaxformer_lite.files.chats.chat import chat_template
from flaxformer_lite.files.chats.form import Sources
from flaxformer_lite.files.chats.translation_prompt import PLAIN_SENTENCE, SOURCE_ALONE, TranslationPrompt
from flaxformer_lite.files.tokenizers import SentencePiece
from tests.support.chats import NAMES, TEMPLATES, ours, without_generation

TEXTS = ["abc", "b", "ca", "abacab"]
CODES = ("eng_Latn", "deu_Latn", "fra_Latn")


def sources_of(tokenizers: Tokenizers, most: int = 10**3) -> Sources:
    return Sources(tokenizers, DecodeConfig(), most, "run")


def one_direction() -> Sources:
    letters = CharacterTokenizer("abcd")
    return sources_of(Tokenizers(letters, letters))


def asking(translation: TranslationPrompt) -> Asking:
    tokenizer = ours()
    template = chat_template(without_generation(TEMPLATES["chatml"]), tokenizer, NAMES)
    return Asking(Tokenizers(tokenizer, tokenizer), DecodeConfig(), 10**3, template, translation)


FORMS: dict[str, Callable[[], Sources | Asking]] = {
    "a source": one_direction,
    "a prompt": lambda: asking(SOURCE_ALONE),
    "a prompt with languages": lambda: asking(
        dataclasses.replace(PLAIN_SENTENCE, source_language="A", target_language="B")
    ),
}


def not_cut(place: int, length: int) -> None:
    pytest.fail("a text is too long")


@pytest.mark.parametrize("name", FORMS)
def test_a_question_is_what_is_read_of_its_source(name: str):
    form = FORMS[name]()
    questions = form.questions([Pair(text, text[::-1]) for text in TEXTS])
    assert [one.ids for one in questions] == form.sources(TEXTS, not_cut)
    assert [one.reference for one in questions] == [text[::-1] for text in TEXTS]


@pytest.mark.parametrize("name", FORMS)
def test_an_answer_is_written_as_its_text(name: str):
    form = FORMS[name]()
    assert [form.written(form.tokenizers.target.encode(text), text) for text in TEXTS] == TEXTS
    assert form.sources(["", " ", "a"], not_cut)[:2] == [[], []]


@pytest.mark.parametrize("name", FORMS)
def test_what_is_too_long_is_told_and_the_rest_is_whole(name: str):
    form, told = FORMS[name](), list[int]()
    short, long = form.sources(["ab", "abc" * 9], not_cut)
    narrow = dataclasses.replace(form, most=len(short) + 3)
    found = narrow.sources(["ab", "abc" * 9], lambda place, length: told.append(place))
    assert (found[0], told) == (short, [1]) and len(short) < len(found[1]) <= narrow.most < len(long)


def test_questions_of_many_directions_keep_their_order():
    """Oracle: the form of each direction, by itself."""
    trained = SentencePiece(user_symbols=CODES).train(["one two three", "eins zwei drei"] * 20, 50)
    tokenizers = LanguageTokenizers.of(
        Tokenizers(trained, trained), Languages(codes=CODES, source="before", target="first")
    )
    form = sources_of(tokenizers)
    directions = [CODES[:2], CODES[1:], CODES[:2], (CODES[2], CODES[0])]
    pairs = [
        Pair(text, "zwei", languages=codes)
        for text, codes in zip(["one", "two", "three", "two"], directions, strict=True)
    ]
    for pair, found in zip(pairs, form.questions(pairs), strict=True):
        own = form.between(*pair.languages)
        assert [found.ids] == own.sources([pair.source], not_cut) and found.settings == own.decode
    assert len({found.settings for found in form.questions(pairs)}) == 3
