"""Questions to a chat model: a source in the message that asks for its translation, or a conversation before its last answer.

`translation_in` and `Asking.written` cut from an answer:

| cut | not where |
|---|---|
| all up to the last `</think>`; all, if `<think>` begins the answer and has no end | the source has the same tag |
| `<answer>` and `</answer>` around the rest, or around all before an empty line | the source has the same tag |
| a lead-in: "Translation:", "Here is the translation in German:", "German:" | the source has a colon, or nothing follows |
| a first paragraph such as "Sure!" or "Here's the translation." | the source has one word or two, or nothing follows |
| all behind an empty line, such as a note | the source has several lines, or a colon ends the line before |
| quotation marks around the rest, not '…' or ‘…’ | the source has one, or the rest has one of them inside too |
| white space at both ends | |
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from flaxformer_lite.base.console import counted, note_once, warn_once
from flaxformer_lite.core.base.progress import ProgressCallback
from flaxformer_lite.core.search import DecodeConfig, Request
from flaxformer_lite.core.search.answers import Hypothesis, Searches
from flaxformer_lite.core.text import Tokenizer
from flaxformer_lite.core.text.pairs import Pair
from flaxformer_lite.files.chats.chat import (
    EOS,
    PROBE,
    THOUGHTS,
    ChatTemplate,
    ChatTokenizers,
    encode_marked,
    flat_message,
)
from flaxformer_lite.files.chats.form import AskedPair, Form, TooLong
from flaxformer_lite.files.chats.messages import Conversation, Message
from flaxformer_lite.files.chats.translation_prompt import LANGUAGES, SOURCE_ALONE, TranslationPrompt


@dataclass(frozen=True)
class Asking(Form):
    """The way in which one chat model is asked."""

    template: ChatTemplate
    translation: TranslationPrompt
    write: Callable[[Sequence[Conversation]], list[str]] | None = None
    """Returns the texts of prompts; None: the template does."""

    @property
    def tokenizer(self) -> Tokenizer:
        return self.tokenizers.target

    @property
    def template_text(self) -> str:
        return self.template.source

    def check(self, model: object, command: Callable[[], str]) -> None:
        """Raises nothing: a chat template is enough."""

    # Languages ----------------------------------------------------------------------------------------------------------

    @property
    def named(self) -> set[str]:
        """The languages that a prompt names, by their settings."""
        return self.translation.named(self.template.reads_codes)

    @property
    def named_languages(self) -> dict[str, str]:
        """The languages that a prompt names, by the options `from` and `to`; empty where the settings have none."""
        return {option: getattr(self.translation, name) for name, option in LANGUAGES.items() if name in self.named}

    @property
    def names_languages(self) -> bool:
        return bool(self.named)

    def between(self, source: str | None, target: str | None) -> Self:
        """Returns the form with a message for these languages; None: those of the settings."""
        given = {name: code for name, code in zip(LANGUAGES, (source, target), strict=True) if code is not None}
        if not self.named:
            raise ValueError(
                f"data.translation.text is {self.translation.text!r}, which names no language: leave out from and to"
            )
        for name in given.keys() - self.named:
            note_once(f"the message of this run does not name the language of {LANGUAGES[name]}")
        translation = replace(self.translation, **given)
        tokenizers = self.tokenizers
        if isinstance(tokenizers, ChatTokenizers):
            tokenizers = replace(tokenizers, translation=translation)
        return replace(self, tokenizers=tokenizers, translation=translation)

    def configured(self, config: Any) -> Any:
        return replace(config, data=replace(config.data, translation=self.translation))

    def check_languages(self) -> None:
        """Raises: ValueError as `TranslationPrompt.check_languages`."""
        self.translation.check_languages(self.template.reads_codes)

    # Questions ----------------------------------------------------------------------------------------------------------

    def messages(self, source: str) -> list[Message]:
        return self.translation.messages(source, self.template.reads_codes)

    def texts(self, conversations: Sequence[Conversation]) -> list[str]:
        """Returns the prompts as the template writes them."""
        fitted = [self.template.fitted(*conversation) for conversation in conversations]
        return [self.template.prompt(one.messages, tools=one.tools) for one in fitted]

    def prompts(self, conversations: Sequence[Conversation]) -> list[list[int]]:
        """Returns the token ids of prompts. Raises: ValueError if the template refuses one."""
        texts = (self.write or self.texts)(conversations)
        return [chat.ids for chat in encode_marked(texts, self.tokenizer)]

    @property
    def room(self) -> int:
        return self.most

    def sources(self, texts: Sequence[str], too_long: TooLong) -> list[list[int]]:
        """Returns the prompts for the translation of texts; a text of white space has an empty prompt.

        A text whose prompt is too long loses its end.
        """
        self.check_languages()
        places = [i for i, text in enumerate(texts) if text.strip()]
        rows = [list[int]() for _ in texts]
        asked = self.prompts([Conversation(self.messages(texts[i])) for i in places])
        for i, ids in zip(places, asked, strict=True):
            if len(ids) > self.most:
                too_long(i, len(ids))
                pieces = self.tokenizer.encode(texts[i])
                while len(ids) > self.most and pieces:
                    pieces = pieces[: self.most - len(ids)]
                    (ids,) = self.prompts([Conversation(self.messages(self.tokenizer.decode(pieces)))])
            rows[i] = ids
        return rows

    def shortened(self, length: int) -> str:
        return f"the prompt has {length} tokens, above data.max_target_length {self.most}: its source is cut"

    def questions(self, pairs: Sequence[Pair]) -> list[AskedPair | None]:
        """Returns the question of each pair or conversation; None where `question` has none, or one that is too long.

        Raises: ValueError if no pair has one.
        """
        questions = [self.question(pair) for pair in pairs]
        short = [question if question and len(question.ids) <= self.most else None for question in questions]
        too_long = short.count(None) - questions.count(None)
        if too_long:
            warn_once(
                f"{counted(too_long, 'prompt')} of more than {self.most} tokens (data.max_target_length): not answered"
            )
        if not any(short):
            raise ValueError(
                "no pair or conversation has an answer to compare with: give others, or leave out text metrics"
            )
        return short

    def question(self, pair: Pair) -> AskedPair | None:
        """Returns the question of a pair or a conversation; None for one without an answer, or that the template refuses."""
        try:
            messages, tools = self.translation.conversation(pair, self.template.reads_codes)
            last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=0)
            answer = flat_message(messages[last])["content"]
            reference = in_line(without_thoughts(answer, "").strip())
            if not reference or not last:
                return None
            (ids,) = self.prompts([Conversation(messages[:last], tools)])
        except ValueError:  # training has told of it
            return None
        if not ids:
            return None
        is_translation = bool(pair[0]) and (self.translation != SOURCE_ALONE or self.template.reads_codes)
        return AskedPair(ids, pair[0] if is_translation else None, reference)

    # Answers ------------------------------------------------------------------------------------------------------------

    @cached_property
    def end_id(self) -> int | None:
        """The id of the special token that the template writes at the end of an answer; None: it writes no special token there."""
        turn = [*self.messages(PROBE), {"role": "assistant", "content": PROBE}]
        try:
            end = self.template.whole_prompt(turn, add_generation_prompt=False).rpartition(PROBE)[2].lstrip()
        except ValueError:  # a template with a form of its own, whose model names its ends
            return None
        if not end.startswith((EOS, *self.template.special)):
            return None
        (encoded,) = encode_marked([end], self.tokenizer)
        return encoded.ids[0]

    def settings(self, changes: Mapping[str, object]) -> DecodeConfig:
        """Returns the settings of an answer, which ends where the template ends one; a search, unless `changes` sample."""
        config = self.decode if changes.get("sampling") else searched(self.decode)
        ends = () if self.end_id in (None, *config.eos_ids) else (self.end_id,)
        return replace(config.changed(changes), eos_ids=(*config.eos_ids, *ends))

    def answered(
        self, search: Searches, weights: object, requests: Sequence[Request], progress: ProgressCallback
    ) -> list[list[Hypothesis]]:
        asked = iter(search.generate(weights, [one for one in requests if one.source], progress))
        return [next(asked) if one.source else [Hypothesis([], 0.0)] for one in requests]

    def written(self, tokens: Sequence[int], source: str | None, left_out: Callable[[str], object] = len) -> str:
        """Returns an answer as one line of text: of a translation what `translation_in` leaves, else all but thoughts."""
        for tag in (THOUGHTS, "<think>"):  # special tokens have no text
            ids = self.tokenizer.encode(tag)
            if len(ids) != 1 or ids[0] not in tokens or tag in (source or ""):
                continue
            if tag == THOUGHTS:
                tokens = tokens[len(tokens) - [*reversed(tokens)].index(ids[0]) :]
            elif not self.tokenizer.decode(tokens[: tokens.index(ids[0])]).strip():
                tokens = ()
        text = self.tokenizer.decode(self.tokenizer.with_pieces(tokens))
        if source is None:
            return in_line(without_thoughts(text, "").strip())
        return in_line(translation_in(text, source, self.translation.target_language, left_out))


def searched(config: DecodeConfig) -> DecodeConfig:
    """Returns the settings without a draw."""
    return config if config.sampling is None else replace(config, sampling=None, num_hypotheses=1)


QUOTATION_MARKS = {'"': '"', "“": "”", "„": "“”", "«": "»", "»": "«", "「": "」", "『": "』"}
"""Marks that end a quotation, by the mark that begins it."""
QUOTED = re.compile(r"[\"“”„«»「」『』《》〈〉‹›‚＂]|(?<!\w)['‘’]|['‘’](?!\w)")
"""Quotation marks; an apostrophe within a word is not counted."""
LEAD_IN = (
    r"\s*(?:(?:sure|certainly|of course)\W+)?(?:here(?:'s|’s| is)\s+)?(?:(?:the|a|your)\s+)?"
    r"(?:(?:LANGUAGE\s+)?translation(?:\s+(?:in|into|to)\s+LANGUAGE|\s*\(LANGUAGE\))?|LANGUAGE)\s*[:：]\s*(?=\S)"
)
"""A text before a translation; other words there may be of the translation itself."""
OPENING = re.compile(
    r"(?:sure|certainly|of course|absolutely|ok|okay|here(?:'s|’s| is) .*\btranslation\b.*)[.,!]*", re.IGNORECASE
)
"""A paragraph before a translation, of a source of more than `SHORT` words, which could mean the same."""
SHORT = 2


def translation_in(answer: str, source: str, target_language: str = "", left_out: Callable[[str], object] = len) -> str:
    """Returns the translation in an answer: see the table of this file. `left_out` gets what stands behind an empty line."""
    text = without_thoughts(answer, source)
    tagged = re.fullmatch(r"\s*<answer>((?:(?!</answer>).)*)(?:</answer>(\s*|\s*\n\s*\n.*))?", text, re.DOTALL)
    if tagged and "<answer>" not in source:
        text = tagged[1] + (tagged[2] or "")
    lead_in = re.match(LEAD_IN.replace("LANGUAGE", re.escape(target_language or "translation")), text, re.IGNORECASE)
    if lead_in and not re.search("[:：]", source):
        text = text[lead_in.end() :]
    text = text.strip()
    first, *more = re.split(r"\s*\n\s*\n\s*", text)
    if more and OPENING.fullmatch(first) and len(source.split()) > SHORT:
        text = text[len(first) :].strip()
        first, *more = more
    if more and "\n" not in source.strip() and first[-1] not in ":：":
        text = first
        left_out("\n\n".join(more))
    inside = text[1:-1].strip()
    if len(text) > 2 and not QUOTED.search(source):
        opening, closing = text[0], text[-1]
        if closing in QUOTATION_MARKS.get(opening, "") and opening not in inside and closing not in inside:
            return inside
    return text


def without_thoughts(answer: str, source: str) -> str:
    if THOUGHTS in answer and THOUGHTS not in source:
        return answer.rpartition(THOUGHTS)[2]
    return "" if answer.lstrip().startswith("<think>") and "<think>" not in source else answer


def in_line(text: str) -> str:
    return re.sub(r"[ \t]*[\r\n]\s*", " ", text)
