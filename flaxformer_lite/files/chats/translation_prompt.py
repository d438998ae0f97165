"""The message that asks a chat model for a translation: a setting, with the messages of the cards of models."""

import re
from dataclasses import dataclass

from flaxformer_lite.core.base.bounds import PLACE, Checked, check_places, with_places
from flaxformer_lite.core.text.pairs import Pair
from flaxformer_lite.files.chats.messages import Conversation, Message

LANGUAGES = {"source_language": "from", "target_language": "to"}
"""The places of languages in a message, with the options that name them."""
CODES = "source_lang_code", "target_lang_code"
"""Fields of a message in templates that write the sentence themselves, such as TranslateGemma's."""


@dataclass(frozen=True, kw_only=True)
class TranslationPrompt(Checked, at="data.translation"):
    """The message that asks a decoder for a translation, in use and around the source of each pair in training."""

    text: str = "{text}"
    """The user's message: {text} is the source, {source_language} and {target_language} are the languages."""
    system: str = ""
    """A system prompt before it, with the same places of languages; "": none."""
    source_language: str = ""
    """Language of the sources as the message names it, such as English, unless --from names another; "": none."""
    target_language: str = ""
    """Language of the translations as the message names it, unless --to names another; "": none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, places in (("text", ("text", *LANGUAGES)), ("system", tuple(LANGUAGES))):
            check_places(f"data.translation.{name}", getattr(self, name), places)
        if self.text.count("{text}") != 1:
            raise ValueError(f"data.translation.text is {self.text!r}: it must have {{text}} once, for the source")

    def named(self, by_codes: bool = False) -> set[str]:
        """The languages that the message names, by their settings; `by_codes`: see `messages`."""
        return {*LANGUAGES} if by_codes else {*PLACE.findall(self.text + self.system)} & {*LANGUAGES}

    def check_languages(self, by_codes: bool = False) -> None:
        """Raises: ValueError if the message names a language, and nothing says which."""
        for name, option in LANGUAGES.items():
            if name in self.named(by_codes) and not getattr(self, name):
                raise ValueError(
                    f"{option} is missing: the prompt of this run names the language; use --{option}, from Python "
                    f"run.between(source, target), or set data.translation.{name}"
                )

    def filled(self, message: str, source: str = "") -> str:
        return with_places(message, {"text": source, **{name: getattr(self, name) for name in LANGUAGES}})

    def messages(self, source: str, by_codes: bool = False) -> list[Message]:
        """Returns the messages that ask for the translation of a source; `by_codes`: with the languages in fields of their own."""
        system = [{"role": "system", "content": self.filled(self.system)}] if self.system else []
        content: object = self.filled(self.text, source)
        if by_codes:
            codes = zip(CODES, (self.source_language, self.target_language), strict=True)
            content = [{"type": "text", **dict(codes), "text": content}]
        return [*system, {"role": "user", "content": content}]

    def conversation(self, pair: Pair, by_codes: bool = False) -> Conversation:
        """Returns a pair as a question with its answer; without a source, the conversation that the target holds.

        Raises: ValueError as `Conversation.of_pair`.
        """
        if not pair[0]:
            return Conversation.of_pair(*pair[:2])
        return Conversation([*self.messages(pair[0], by_codes), {"role": "assistant", "content": pair[1]}])


SOURCE_ALONE = TranslationPrompt()
"""The source is the message, as a model has it that was tuned on pairs without a sentence."""


PLAIN_SENTENCE = TranslationPrompt(
    text="Translate the following text from {source_language} into {target_language}. Answer with the translation alone.\n\n{text}"
)
LABELLED = "\n{source_language}: {text}\n{target_language}:"
PRESETS = {
    r"translategemma": SOURCE_ALONE,  # its template writes the sentence
    r"hunyuan|hy-mt": TranslationPrompt(
        text="Translate the following segment into {target_language}, without additional explanation.\n\n{text}"
    ),
    r"tower-?plus|eurollm": TranslationPrompt(
        text=f"Translate the following {{source_language}} source text to {{target_language}}:{LABELLED} "
    ),
    r"tower": TranslationPrompt(
        text=f"Translate the following text from {{source_language}} into {{target_language}}.{LABELLED}"
    ),
}
"""The message of each model's card, by a pattern of its name or family."""


def preset(names: str) -> TranslationPrompt:
    """Returns the message that a model of these names was trained on, else a plain one."""
    return next(
        (prompt for pattern, prompt in PRESETS.items() if re.search(pattern, names, re.IGNORECASE)), PLAIN_SENTENCE
    )
