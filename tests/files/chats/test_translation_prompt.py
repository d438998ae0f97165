"""The message that asks for a translation. Oracle: by hand, the message of each model's card, and what is refused."""

import pytest

from flaxformer_lite.files.chats.translation_prompt import PLAIN_SENTENCE, SOURCE_ALONE, TranslationPrompt, preset


def test_the_message_of_each_card() -> None:
    assert preset("hf://tencent/Hunyuan-MT-7B") is preset("hy-mt hunyuan_v1_dense") is not PLAIN_SENTENCE
    assert preset("hf://Unbabel/Tower-Plus-9B") is preset("utter-project/EuroLLM-9B-Instruct")
    assert preset("Unbabel/TowerInstruct-7B-v0.2") is not preset("Unbabel/TowerPlus")
    assert preset("meta-llama/Llama-3.2-1B-Instruct llama") is PLAIN_SENTENCE
    assert preset("google/translategemma-4b-it") is SOURCE_ALONE


REFUSED = {
    "no source": ({"text": "Translate"}, r"data\.translation\.text is 'Translate': it must have \{text\} once"),
    "two sources": ({"text": "{text} {text}"}, r"must have \{text\} once"),
    "a place that is none": (
        {"text": "To {language}: {text}"},
        r"data\.translation\.text is .* place \{language\}: it may have \{text\}, \{source_language\}, \{target_language\}$",
    ),
    "a source in the system prompt": (
        {"system": "{text}"},
        r"data\.translation\.system is '\{text\}', with the place \{text\}",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_messages_that_say_no_source_are_refused(case: str) -> None:
    settings, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        TranslationPrompt(**settings)
