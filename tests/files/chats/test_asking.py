"""Prompts that ask for translations. Oracle: the reference library's `apply_chat_template`; by hand, what is cut from an answer."""

import dataclasses
import random

import pytest

from flaxformer_lite.base.console import note_once
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.search.settings import DecodeConfig, Sampling
from flaxformer_lite.core.text.tokenizer import Tokenizer, Tokenizers
from flaxformer_lite.files.chats.asking import Asking, translation_in
from flaxformer_lite.files.chats.chat import ChatTemplate, ChatTokenizers, chat_template
from flaxformer_lite.files.chats.form import warn_of_left_out
from flaxformer_lite.files.chats.translation_prompt import (
    PLAIN_SENTENCE,
    PRESETS,
    SOURCE_ALONE,
    TranslationPrompt,
    preset,
)
from tests.support import needs
from tests.support.chats import NAMES, SPECIAL, TEMPLATES, family_tokenizer, ours, without_generation

LOOP = "{% for m in messages %}"
SHAPES = {
    "ChatML": without_generation(TEMPLATES["chatml"]),
    "Gemma": without_generation(TEMPLATES["gemma"]),
    "Llama 3": without_generation(TEMPLATES["llama_3"]),
    "Mistral": "{{ bos_token }}" + LOOP + "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content | trim }}{{ eos_token }}{% endif %}{% endfor %}",
    "Hunyuan": "{{ bos_token }}"
    + LOOP
    + "{% if m.role == 'system' %}{{ m.content }}<|system|>{% elif m.role == 'user' %}<|user|>{{ m.content }}"
    "{% else %}<|assistant|>{{ m.content }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "Tower": "{% if messages[0].role != 'system' %}<|im_start|>system\nYou translate.<|im_end|>\n{% endif %}"
    + LOOP
    + "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
}
"""Templates in the shape of six published ones."""
CODED = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{% set c = m.content[0] %}<turn>user\n"
    "You are a translator from {{ c['source_lang_code'] }} into {{ c['target_lang_code'] }}:\n\n\n{{ c['text'] | trim }}</turn>\n"
    "{% else %}<turn>model\n{{ m.content | trim }}</turn>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<turn>model\n{% endif %}"
)
"""In the shape of TranslateGemma's, which writes the sentence itself."""
GERMAN = {"source_language": "English", "target_language": "German"}


def asking(template: str, translation: TranslationPrompt = SOURCE_ALONE) -> Asking:
    tokenizer = ours()
    return asked_by(chat_template(template, tokenizer, NAMES), tokenizer, translation)


def asked_by(template: ChatTemplate, tokenizer: Tokenizer, translation: TranslationPrompt, most: int = 10**6) -> Asking:
    return Asking(Tokenizers(tokenizer, tokenizer), DecodeConfig(), most, template, translation)


def not_cut(place: int, length: int) -> None:
    pytest.fail("a text is too long")


def sentences(number: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    words = [
        "A dog",
        " runs",
        " is",
        "all ",
        "été",
        "日本",
        "🙂",
        "a\u0301",
        " {text}",
        "\n",
        " 'so'",
        "\t",
        "{",
        " Ha",
        "[INST",
        ":",
    ]
    return ["x" + "".join(rng.choices(words, k=rng.choice([1, 3, 9]))) for _ in range(number)]


@needs.transformers
@pytest.mark.parametrize("number", [100, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", [*SHAPES, "TranslateGemma"])
def test_the_prompts_are_those_of_the_library(shape: str, number: int) -> None:
    from transformers import PreTrainedTokenizerFast

    library = PreTrainedTokenizerFast(tokenizer_object=family_tokenizer(), **NAMES)
    library.chat_template = CODED if shape == "TranslateGemma" else SHAPES[shape]
    prompts = [SOURCE_ALONE] if shape == "TranslateGemma" else [*PRESETS.values(), PLAIN_SENTENCE]
    texts = sentences(number, seed=len(shape))
    for prompt in prompts:
        ids = asking(library.chat_template, dataclasses.replace(prompt, **GERMAN)).sources(texts, not_cut)
        content = prompt.text.replace("{source_language}", "English").replace("{target_language}", "German")
        for text, found in zip(texts, ids, strict=True):
            message: object = content.replace("{text}", text)
            if shape == "TranslateGemma":
                message = [{"type": "text", "source_lang_code": "English", "target_lang_code": "German", "text": text}]
            expected = library.apply_chat_template(
                [{"role": "user", "content": message}], add_generation_prompt=True, return_dict=False
            )
            assert found == expected


def test_a_system_prompt_stands_before_and_names_of_special_tokens_stay_text() -> None:
    one = asking(SHAPES["ChatML"], TranslationPrompt(system="Into {target_language}.", **GERMAN))
    (ids,) = one.sources(["a <|im_end|> b"], not_cut)
    assert ids[0] == SPECIAL.index("<|im_start|>") and ids.count(SPECIAL.index("<|im_end|>")) == 2
    assert "Into German." in one.tokenizer.decode(ids)


def test_languages_are_named_or_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    one = asking(SHAPES["ChatML"], PLAIN_SENTENCE)
    with pytest.raises(
        ValueError, match=r"from is missing: .* --from, .* run\.between\(source, target\), .*source_language"
    ):
        one.sources(["a"], not_cut)
    with pytest.raises(ValueError, match="to is missing"):
        one.between("English", None).sources(["a"], not_cut)
    assert one.between("English", "German").translation == dataclasses.replace(PLAIN_SENTENCE, **GERMAN)
    with pytest.raises(ValueError, match="names no language: leave out from and to"):
        asking(SHAPES["ChatML"]).between(None, "German")
    note_once.cache_clear()
    asking(SHAPES["Hunyuan"], preset("hunyuan")).between("English", "German")
    assert "does not name the language of from" in capsys.readouterr().err
    with pytest.raises(ValueError, match="from is missing"):
        asking(CODED).sources(["a"], not_cut)


def test_pairs_are_not_read_into_a_message_without_its_language() -> None:
    template, conversation = asking(SHAPES["ChatML"]).template, '[{"role": "user", "content": "a"}]'
    reader = ChatTokenizers(
        ours(), ours(), template, 99, False, TranslationPrompt(text="Into {target_language}: {text}")
    )
    with pytest.raises(ValueError, match=r"to is missing: .* set data\.translation\.target_language"):
        list(reader.encode_pairs([Pair("a", "b")]))
    assert len(list(reader.encode_pairs([Pair("", conversation)]))) == 1


def test_a_source_that_is_too_long_loses_its_end_and_no_other_part() -> None:
    one, told = asking(SHAPES["ChatML"], dataclasses.replace(PLAIN_SENTENCE, **GERMAN)), []
    short, long = one.sources(["abc", "d" * 300], not_cut)
    narrow = dataclasses.replace(one, most=len(short) + 9)
    found = narrow.sources(["abc", "", "d" * 300], lambda place, length: told.append((place, length)))
    assert told == [(2, len(long))] and found[:2] == [short, []]
    assert len(found[2]) == len(short) + 9
    assert one.tokenizer.decode(found[2]) == one.tokenizer.decode(short).replace("abc", "d" * 12)


def test_an_answer_ends_where_the_template_ends_it() -> None:
    ends = {shape: asking(template).end_id for shape, template in SHAPES.items()}
    names = {"ChatML": "<|im_end|>", "Gemma": "</turn>", "Llama 3": "<|eot|>", "Mistral": "</s>", "Hunyuan": "<|end|>"}
    assert ends == {shape: SPECIAL.index(name) for shape, name in (names | {"Tower": "<|im_end|>"}).items()}
    assert asking(CODED, TranslationPrompt(**GERMAN)).end_id == SPECIAL.index("</turn>")
    assert asking("{% for m in messages %}{{ m.content }}. {% endfor %}").end_id is None


def test_translations_are_searched_for_unless_samples_are_asked_for() -> None:
    config = DecodeConfig(sampling=Sampling(temperature=0.7), num_hypotheses=3, eos_ids=(1,))
    one = dataclasses.replace(asking(SHAPES["ChatML"]), decode=config)
    found = one.settings({"beam_size": 4})
    assert (found.sampling, found.beam_size, found.num_hypotheses, found.eos_ids) == (None, 4, 1, (1, 3))
    drawn = one.settings({"sampling": Sampling()})
    assert drawn.sampling == Sampling() and drawn.num_hypotheses == 3
    both = dataclasses.replace(one, decode=dataclasses.replace(config, eos_ids=(3, 1)))
    assert both.settings({}).eos_ids == (3, 1)


# name: (answer, source, translation); "kept" where nothing is cut
CUT = {
    "nothing": ("Ein Hund läuft.", "A dog runs.", "Ein Hund läuft."),
    "white space": ("\n Ein Hund. \n", "A dog.", "Ein Hund."),
    "a thought": ("<think>\nA dog… easy.\n</think>\n\nEin Hund.", "A dog.", "Ein Hund."),
    "a thought that the prompt opened": ("Easy.</think>Ein Hund.", "A dog.", "Ein Hund."),
    "a thought without an end": ("<think>\nA dog, so", "A dog.", ""),
    "kept: the source's own thought": ("Das Tag </think> endet.", "The tag </think> ends.", "Das Tag </think> endet."),
    "kept: the source's own tag": ("<think> beginnt.", "<think> begins.", "<think> beginnt."),
    "a tagged answer": ("<think>x</think>\n<answer>\nEin Hund.\n</answer>", "A dog.", "Ein Hund."),
    "a tagged answer that was cut": ("<answer>Ein Hund", "A dog.", "Ein Hund"),
    "kept: the source's own answer": ("<answer>ja</answer>", "<answer>yes</answer>", "<answer>ja</answer>"),
    "a lead-in": ("Translation: Ein Hund.", "A dog.", "Ein Hund."),
    "a lead-in with the language": ("Here is the translation into German: Ein Hund.", "A dog.", "Ein Hund."),
    "a lead-in with the language in brackets": ("Translation (German): Ein Hund.", "A dog.", "Ein Hund."),
    "kept: more words": ("The machine translation of tomorrow: ein Traum", "La traduction de demain, un rêve",
                         "The machine translation of tomorrow: ein Traum"),
    "kept: words and a dash": ("Your translation – for free: jetzt", "Maintenant", "Your translation – for free: jetzt"),
    "kept: a text after the tagged answer": ("<answer>Ja</answer> ok", "Yes.", "<answer>Ja</answer> ok"),
    "kept: one of two apostrophes": ("'n Hund und noch 'n'", "A dog", "'n Hund und noch 'n'"),
    "kept: single quotes": ("'Ein Hund'", "A dog", "'Ein Hund'"),
    "kept: Chinese quotes in the source": ("“Faust”", "《浮士德》", "“Faust”"),
    "kept: French inner quotes in the source": ("„Faust“", "‹Faust›", "„Faust“"),
    "a polite lead-in": ("Sure! Here is the German translation:\n\nEin Hund.", "A dog.", "Ein Hund."),
    "the language": ("German: Ein Hund.", "A dog.", "Ein Hund."),
    "kept: the source has a colon": ("Translation: ein Beruf", "Translation: a job", "Translation: ein Beruf"),
    "kept: no colon": ("Translation ist ein Beruf.", "Translation is a job.", "Translation ist ein Beruf."),
    "kept: nothing follows": ("Translation:", "Translation", "Translation:"),
    "kept: another language": ("Spanish: Ein Hund.", "A dog.", "Spanish: Ein Hund."),
    "a note": ("Ein Hund.\n\nNote: 'Hund' is masculine.\n\nAsk for more!", "A dog.", "Ein Hund."),
    "a note behind a lead-in and quotes": ('Translation:\n\n"Ein Hund."\n \n(Literal.)', "A dog.\n", "Ein Hund."),
    "a note behind tags": ("<answer>\nEin Hund.\n</answer>\n\nNote: literal.", "A dog.", "Ein Hund."),
    "a paragraph before": ("Sure!\n\nEin Hund bellt.\n\nNote: literal.", "A dog barks.", "Ein Hund bellt."),
    "a sentence before": ("Here's the German translation.\n\nEin Hund bellt.", "A dog barks.", "Ein Hund bellt."),
    "a short source": ("Sure!\n\nNote: informal.", "Klar!", "Sure!"),
    "kept: a single end of a line": ("Ein Hund.\nEine Katze.", "A dog. A cat.", "Ein Hund.\nEine Katze."),
    "kept: a source of several lines": ("Ein Hund.\n\nEine Katze.", "A dog.\nA cat.", "Ein Hund.\n\nEine Katze."),
    "kept: a lead-in before an empty line": ("In German:\n\nHund: bellt", "Dog: barks", "In German:\n\nHund: bellt"),
    "quotes": ('"Ein Hund."', "A dog.", "Ein Hund."),
    "German quotes": ("„Ein Hund.“", "A dog's bone.", "Ein Hund."),
    "a lead-in and quotes": ("Translation: «Ein Hund.»", "A dog.", "Ein Hund."),
    "kept: the source has quotes": ('"Ein Hund", sagte sie. "Ja"', '"A dog", she said. "Yes"', '"Ein Hund", sagte sie. "Ja"'),
    "kept: the source is quoted": ('"Ein Hund."', "“A dog.”", '"Ein Hund."'),
    "kept: two quotations": ('"A" und "B"', "A and B", '"A" und "B"'),
    "kept: one quote": ('5 "', "5 inches", '5 "'),
}  # fmt: skip


@pytest.mark.parametrize("case", CUT)
def test_what_is_cut_from_an_answer(case: str) -> None:
    answer, source, expected = CUT[case]
    assert translation_in(answer, source, "German") == expected
    assert not case.startswith("kept") or expected == answer


def test_what_stands_behind_an_empty_line_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer, notes = ours(), list[str]()
    one = asked_by(ChatTemplate("", {}), tokenizer, SOURCE_ALONE)
    for answer in ("Ja\n\nNote: yes", "Nein", "So\n\nso"):
        one.written(tokenizer.encode(answer), "A dog", notes.append)
    warn_of_left_out(notes)
    assert "2 answers had more behind an empty line, which is left out: " in capsys.readouterr().err
    warn_of_left_out([])
    assert capsys.readouterr().err == ""


def test_thoughts_between_special_tokens_are_cut_although_these_have_no_text() -> None:
    tokenizer = ours()
    begin, end = SPECIAL.index("<|user|>"), SPECIAL.index("<|end|>")
    one = asked_by(ChatTemplate("", {}), tokenizer, SOURCE_ALONE)
    encode = tokenizer.encode
    tokenizer.encode = lambda text: {"</think>": [end], "<think>": [begin]}.get(text) or encode(text)  # type: ignore[method-assign]
    thought, answer = encode("so then"), encode("Ein\nHund")
    assert one.written([begin, *thought, end, *answer], "A dog") == "Ein Hund"
    assert one.written([begin, *thought], None) == ""
    assert one.written(answer, None) == "Ein Hund"
    assert one.written([*answer, begin, *thought], "A dog") == "Ein Hundso then"
    assert one.written([*answer, end, *thought], "the tag </think>") == "Ein Hundso then"
    assert one.written([begin, *thought], "the tag <think>") == "so then"


def test_questions_are_what_stands_before_the_last_answer() -> None:
    one = asking(SHAPES["ChatML"])
    chat = (
        '[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"},'
        '{"role": "assistant", "content": "<think>x</think> \\"d\\"\\n e"}, {"role": "user", "content": "f"}]'
    )
    one = dataclasses.replace(one, most=100)
    pairs = [("question", "answer"), ("", chat), ("", '[{"role": "user", "content": "alone"}]'), ("y" * 300, "z")]
    first, second, third, fourth = one.questions(pairs)
    assert first is not None and second is not None and third is fourth is None
    assert (first.source, first.reference, second.source, second.reference) == (None, "answer", None, '"d" e')
    assert first.ids == one.sources(["question"], not_cut)[0]
    text = one.tokenizer.decode(second.ids)
    assert "b" in text and "c" in text and "d" not in text and "f" not in text
    translating = dataclasses.replace(one, translation=TranslationPrompt(text="To German: {text}"))
    assert translating.questions(pairs)[0].source == "question"  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="no pair or conversation has an answer"):
        one.questions(pairs[2:3])
