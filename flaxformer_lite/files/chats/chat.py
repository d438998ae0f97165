"""Chat templates: the text of a conversation as a model is trained on it, and its token ids.

A template is a program that came with a model. Jinja's sandbox keeps it from Python's attributes, files and modules, but it may
take time and memory. It has the functions and filters of `transformers.utils.chat_template_utils` of version 5.24.

The text that a template has written may have *marks*, which `encode_marked` reads:

| mark | meaning |
|---|---|
| `ANSWER`, `END` | the beginning and the end of an answer, which training learns |
| `BREAK` | the end of a piece, before an answer |
| `INERT` | a place in a text of others: no name of a special token is read across it |
| `BOS`, `EOS` | a special id whose name the tokenizer does not read |
"""

import bisect
import datetime
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from flaxformer_lite.base.console import warn_once
from flaxformer_lite.base.sealed_files import text_digest
from flaxformer_lite.core.text import Tokenizer, Tokenizers
from flaxformer_lite.core.text.pairs import ANSWER_FLAGS, EncodedPair, Extent, Pair
from flaxformer_lite.core.text.tokenizer import Sealed
from flaxformer_lite.files.chats.messages import Message
from flaxformer_lite.files.chats.translation_prompt import CODES, SOURCE_ALONE, TranslationPrompt
from flaxformer_lite.files.text.json_objects import read_any_json
from flaxformer_lite.files.tokenizers.json_tokenizer import token_text
from flaxformer_lite.files.tokenizers.kinds import CHAT_TEMPLATE

READS_CONVERSATIONS = 3
"""Changes with the way in which conversations are read: stores of their tokens are then made anew."""
THOUGHTS = "</think>"
FOLDERS = ("", "huggingface")
"""Folders of a run that may have a template: its own, and the files that came with imported weights."""
TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
"""Special tokens that a template may write, by the roles of a tokenizer."""
FURTHER_TOKENS = ("sep_token", "cls_token", "mask_token")
"""Special tokens that only a folder names."""
ANSWER, END, BREAK, BOS, EOS, INERT = "\ufdd0\ufdd1\ufdd2\ufdd3\ufdd4\ufdd5"
ESCAPED = ascii(INERT)[1:-1]
MARK = re.compile("([\ufdd0-\ufdef])")
"""The marks, which are among the characters that no exchanged text has. Reference: Unicode 16.0, section 23.7, noncharacters."""
TRUSTED_ROLES = ("system", "developer", "assistant")
"""The roles whose contents may name special tokens. In every other text, such as a name, a tool or a document, names are text."""
PROBE, WHOLE = "zqtextqz", "zqwholeqz"
"""Words in the place of texts: those that a template writes show the texts that it reads."""
MOST_READINGS = 4096
"""The most shapes of conversations whose `TemplateReading` a template remembers."""
PLAIN_TEMPLATE = (
    "{{ bos_token }}{% if tools %}<|tools|>{{ tools | tojson }}{% endif %}{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content or '' }}"
    "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ message.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""The template for a model without one: `<|ROLE|>` before each message, and EOS after each answer."""
TRAINING_DATE = datetime.datetime(2024, 7, 26)
"""The date of `strftime_now` in training, where tokens must not depend on the day; a prompt has today's date."""
CONTINUES_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks the end of the last message in a prompt that continues it, as in the library."""


DEFAULT_TEMPLATE = "default"
"""The name of the template for conversations without tools, as in the library."""
NO_DEFAULT = (
    "{{{{ raise_exception('the folder has chat templates with the names {}, and none is named default: write the one to use as "
    "chat_template.jinja') }}}}"
)


class GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}`, which is its content between the marks of an answer."""

    tags = {"generation"}  # noqa: RUF012  # as in the base class

    def parse(self, parser: Any) -> Any:
        """Returns the block as a call, so that it has variables of its own, as in the library."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("content"), [], [], body).set_lineno(line)

    def content(self, caller: Any) -> Any:
        return ANSWER + caller() + END


class Dict:
    """`dict` without its further attributes."""

    def __call__(self, *arguments: object, **named: Any) -> dict[Any, Any]:
        return dict(*arguments, **named)

    def fromkeys(self, *arguments: Any) -> dict[Any, Any]:
        return dict.fromkeys(*arguments)


class Namespace(jinja2.utils.Namespace):
    """`namespace` without names that begin with an underscore."""

    def __init__(*arguments: object, **named: Any) -> None:  # `self` is a name that a template may use
        self = arguments[0]
        given = dict(*arguments[1:], **named)
        for name in given:
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: object) -> None:
        Namespace.check(name)
        super().__setitem__(name, value)

    @staticmethod
    def check(name: object) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"the name {name!r} of a namespace begins with an underscore")


def refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def template_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Returns JSON; Jinja's own filter is for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


SANDBOX = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, "jinja2.ext.loopcontrols"]
)
SANDBOX.filters["tojson"] = template_json
SANDBOX.globals |= {
    "raise_exception": refuse,
    "strftime_now": lambda form: datetime.datetime.now().strftime(form),
    "dict": Dict(),
    "namespace": Namespace,
}


class ChatTemplate:
    """The templates of a model, the special tokens that they may write, by name, and the texts that become special ids.

    source: the template. tools_source: the one for conversations with tools; None: the same.
    """

    def __init__(
        self, source: str, tokens: Mapping[str, str], special: Sequence[str] = (), tools_source: str | None = None
    ) -> None:
        self.source = source
        self.tokens = tokens
        self.special = tuple(special)
        self.tools_source = tools_source
        self._compiled: dict[str, jinja2.Template] = {}
        self._marks: dict[str, bool] = {}
        self._readings: dict[Any, TemplateReading] = {}
        self._read_fields: dict[tuple[str, str, bool], bool] = {}

    @property
    def fields(self) -> dict[str, Any]:
        """The arguments of this template, ready for JSON."""
        names = ("source", "tokens", "special", "tools_source")
        return {name: getattr(self, name) for name in names}

    @property
    def reads_codes(self) -> bool:
        """Whether messages have the languages of a translation in fields of their own, as TranslateGemma's."""
        return all(code in self.source for code in CODES)

    def compile(self) -> None:
        """Compiles the templates; this evaluates their constant expressions. Raises: ValueError if one cannot be compiled."""
        for source in (self.source, self.tools_source):
            if source is not None and source not in self._compiled:
                self._compiled[source] = compiled(source)

    def prompt(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[object] | None = None,
        documents: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """Returns the text before the answer: up to the beginning of a new message, or within the last one of `messages`.

        Raises: ValueError if the template cannot be compiled, refuses the messages, or fails; MemoryError.
        """
        final = ""
        if continue_final_message:
            final, last = tagged(messages[-1])
            messages = [*messages[:-1], last]
        shown: dict[str, Any] = {"tools": tools, "documents": documents}
        text = self._written(messages, **shown, add_generation_prompt=add_generation_prompt)
        text = text.replace(ANSWER, "").replace(END, "")
        if not continue_final_message:
            return text
        end = text.rfind(CONTINUES_TAG.strip())
        if final.strip() not in text.replace(INERT, "").replace(BREAK, "") or end < 0:
            raise ValueError("the chat template changes the last message: leave out continue_final_message")
        if text.startswith(CONTINUES_TAG, end):
            return text[:end]
        return text[:end].rstrip()  # the template trims the message

    def conversation(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[object] | None = None,
        *,
        last_only: bool = False,
    ) -> str:
        """Returns the text of a conversation with the marks of all answers, or only of the last answer.

        Answers are the texts in `{% generation %}`, else those that the template writes after the prompt for each answer. An answer
        of `weight` 0 has no marks.

        Raises: ValueError as `prompt` does, and for a template that does not tell where answers are.
        """
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        weights = [message.get("weight", 1) for message in messages]
        text = self._written(messages, tools=tools, strftime_now=TRAINING_DATE.strftime)
        if ANSWER not in text and answers and not self._marks_answers(tools):
            wanted = answers[-1:] if last_only else answers
            learned = [i for i in wanted if weights[i]]
            return self._compared(text, messages, tools, learned)
        pieces = re.split(f"([{ANSWER}{END}])", text)
        marks = pieces[1::2]
        blocks = len(marks) // 2
        if marks != [ANSWER, END] * blocks:
            raise ValueError(
                "the chat template changes the text that it has in {% generation %}: write it out unchanged"
            )
        unlearned = {number for number, i in enumerate(answers) if not weights[i]}
        if unlearned and blocks != len(answers):
            raise ValueError(
                f"the chat template has {blocks} parts in {{% generation %}} for {len(answers)} answers, so their weights cannot "
                "be obeyed: leave out the weights, or put each answer into one part"
            )
        if last_only:
            unlearned |= set(range(blocks - 1))
        for number in unlearned:
            pieces[4 * number + 1] = pieces[4 * number + 3] = ""  # its two marks
        return "".join(pieces)

    def _marks_answers(self, tools: Sequence[object] | None) -> bool:
        """Returns whether the template has answers in `{% generation %}`, by a short conversation if it does not refuse that."""
        source = self._source(tools)
        if source not in self._marks:
            try:
                short = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
                self._marks[source] = ANSWER in self._written(short, tools=tools)
            except ValueError:
                blocks = SANDBOX.parse(source).find_all(jinja2.nodes.ExtensionAttribute)
                self._marks[source] = any(True for _ in blocks)
        return self._marks[source]

    def _compared(
        self, text: str, messages: Sequence[Mapping[str, object]], tools: Sequence[object] | None, wanted: Sequence[int]
    ) -> str:
        """Marks the answers of some messages in the text of all.

        An answer ends with its special token: white space after that is no part of it.
        """
        write = functools.partial(self._written, tools=tools, strftime_now=TRAINING_DATE.strftime)
        marked = text
        limit = len(text)
        for i in reversed(wanted):
            place = nested_answer(text, messages, i, write) or located_answer(text, messages, i, write)
            if place is None or place[1] > limit:
                raise ValueError(
                    f"the chat template marks no answers by {{% generation %}}, and the place of message {i + 1} in its text "
                    "cannot be told: put {% generation %} around the answers"
                )
            start, end = place
            ends = text[start:end].rstrip()
            if ends.endswith((*self.special, BOS, EOS)):
                end = start + len(ends)
            marked = marked[:start] + ANSWER + marked[start:end] + END + marked[end:]
            limit = start
        return marked

    # What a template leaves out -------------------------------------------------------------------------------------------

    def fitted(self, messages: Sequence[Message], tools: Sequence[object] | None = None) -> "FittedConversation":
        """Returns a conversation in the form of messages that the template reads: unchanged, if it is read whole.

        Whether a message is read depends on its role, its fields, and the messages around it. So the template writes each such
        shape once, with words in the place of its texts.

        Raises: ValueError if the text of a message, or a call, is not written; as `prompt`.
        """
        shape = bool(tools), *map(shape_of, messages)
        reading = self._readings.get(shape)
        if reading is None:
            if len(self._readings) >= MOST_READINGS:
                self._readings.clear()
            reading = self._readings[shape] = self._reading(messages, tools)
        if reading.lost:
            raise ValueError(reading.lost[0])
        rewritten = in_form(messages, reading.form)
        further = dict[tuple[str, str], None]()  # in the order of the messages
        for message in rewritten:
            further |= dict.fromkeys((field, message["role"]) for field in further_fields(message))
        ignored = [
            f"the field {field!r} of messages of the role {role!r}"
            for field, role in further
            if not self._reads_field(field, role, rewritten, tools)
        ]
        return FittedConversation(rewritten, tools, (*reading.unread, *ignored), tuple(ignored))

    def whole_prompt(
        self, messages: Sequence[Message], *, documents: Sequence[Mapping[str, object]] | None = None, **options: Any
    ) -> str:
        """Returns the prompt with the options of `prompt`, from all that is given.

        Raises: ValueError as `fitted` and `prompt`; for documents, or a further field of messages, that the template leaves out.
        """
        fitted = self.fitted(messages)
        if fitted.ignored:
            raise ValueError(f"the chat template leaves out {fitted.ignored[0]}: leave it out")
        text = self.prompt(fitted.messages, documents=documents, **options)
        if documents and text == self.prompt(fitted.messages, **options):
            raise ValueError("the chat template reads no documents: leave them out")
        return text

    def _reading(self, messages: Sequence[Message], tools: Sequence[object] | None) -> "TemplateReading":
        """Returns the reading of the form with the fewest unread parts; of the messages unchanged, if every form loses a text."""
        probe, probe_tools, words = probed(messages, tools)
        readings: list[TemplateReading | None] = []
        for form in forms_of(messages):
            try:
                text = self._written(in_form(probe, form), tools=probe_tools, strftime_now=TRAINING_DATE.strftime)
            except ValueError:  # a refusal of the messages themselves is reported when their own text is written
                readings.append(None)
                continue
            reading = reading_of(text, form, words)
            readings.append(reading)
            if not reading.lost and not reading.unread:
                break
        whole = [reading for reading in readings if reading is not None and not reading.lost]
        if whole:
            return min(whole, key=lambda reading: len(reading.unread))
        return readings[0] or TemplateReading((), (), ())

    def _reads_field(self, field: str, role: str, messages: Sequence[Message], tools: Sequence[object] | None) -> bool:
        """Returns whether a field of the messages of a role changes the text."""
        says_something = any(message.get(field) for message in messages if message["role"] == role)
        key = field, role, says_something  # a template may read `prefix` only where it is true
        if key not in self._read_fields:
            without = [without_field(message, field, role) for message in messages]
            text = self._written(messages, tools=tools)
            try:
                self._read_fields[key] = text != self._written(without, tools=tools)
            except ValueError:  # the template needs the field
                self._read_fields[key] = True
        return self._read_fields[key]

    # Text with marks ------------------------------------------------------------------------------------------------------

    def _source(self, tools: Sequence[object] | None) -> str:
        return self.source if tools is None or self.tools_source is None else self.tools_source

    def _written(self, messages: Sequence[Mapping[str, object]], **variables: Any) -> str:
        """Returns the text of the messages with marks. Raises: as `prompt`."""
        known = {"tools": None, "documents": None, "add_generation_prompt": False} | variables
        source = self._source(known["tools"])
        self.compile()
        given = json.dumps([messages, known["tools"], known["documents"]], ensure_ascii=False, default=str)
        if MARK.search(given):
            raise ValueError(
                "a message or a tool has a character between U+FDD0 and U+FDEF, which no text may have: leave it out"
            )
        known["tools"] = self._as_text(known["tools"])
        if known["documents"]:
            known["documents"] = [self._as_document(document) for document in known["documents"]]
        known |= {name: token for name, token in self.tokens.items() if token}
        try:
            read = [self._as_read(message) for message in messages]
            text = self._compiled[source].render(messages=read, **known)
            text.encode()  # fails for half a surrogate pair, which no tokenizer reads
        except MemoryError:
            raise
        except Exception as error:  # a program may raise anything
            raise ValueError(f"the chat template refuses these messages: {short_message(error)}") from None
        if ESCAPED in text and ESCAPED not in given:  # a template that writes an object as Python does
            text = text.replace(ESCAPED, INERT)
        # No other program's model knows PLAIN_TEMPLATE, so the pieces of an answer can begin where those of its prompt end.
        if source == PLAIN_TEMPLATE:
            return text.replace(ANSWER, BREAK + ANSWER)
        return text

    def _as_document(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a document with marks in its texts."""
        return {self._as_text(name): self._as_text(value, alone=True) for name, value in document.items()}

    def _as_read(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a message as a template gets it: with marks in the texts of others, and reasoning under two names."""
        role = message["role"]
        trusted = set[str]()
        if re.fullmatch(r"[\w-]+", role):
            trusted.add("role")
        if role in TRUSTED_ROLES:
            trusted.add("content")
        fields = dict[str, Any]()
        for name, value in message.items():
            if name != "weight":
                fields[self._as_text(name)] = value if name in trusted else self._as_text(value, alone=True)
        reasoning = fields.get("reasoning_content")
        return fields if reasoning is None else {"thinking": reasoning, **fields}

    def _as_text(self, value: object, alone: bool = False) -> Any:
        """Returns a value with marks in its texts, so that no name of a special token begins, ends or lies in one of them.

        alone: whether the value is a text, and not a word that templates compare, such as a type.
        """
        if not self.special:
            return value
        if isinstance(value, list | tuple):
            return [self._as_text(item) for item in value]
        if isinstance(value, Mapping):
            return {self._as_text(name): self._as_text(inner) for name, inner in value.items()}
        if not isinstance(value, str):
            return value
        return self._names.marked(value, within=alone or not value.strip().isidentifier())

    @functools.cached_property
    def _names(self) -> "SpecialNames":
        return SpecialNames(self.special)


class SpecialNames:
    """The names of special tokens, their beginnings and their ends."""

    def __init__(self, names: Sequence[str]) -> None:
        any_name = "|".join(map(re.escape, names))
        self.whole = re.compile(f"(?=(?:{any_name}))(.)", flags=re.DOTALL)
        self.names = tuple(names)
        self.begins = set[str]()
        self.ends = set[str]()
        for name in names:
            self.begins |= {name[:n] for n in range(1, len(name))}
            self.ends |= {name[n:] for n in range(1, len(name))}
        self.first = {name[0] for name in names}
        self.last = {name[-1] for name in names}
        self.longest = max(map(len, names))

    def marked(self, text: str, within: bool) -> str:
        """Returns a text with marks, so that no name is read in it or across its ends, whatever stands before and behind it.

        Marks are in each name, behind the first character of a name that could end behind the text, and before the text if a name
        could have begun before it. White space at the ends may be trimmed. within: whether the text may lie within a name.
        """
        body = text.strip()
        if not body:
            return text
        start = text.index(body[0])
        stop = start + len(body)
        sizes = range(1, min(self.longest, len(body) + 1))
        places = {match.end() for match in self.whole.finditer(text)}
        if not self.first.isdisjoint(body[-self.longest :]):
            places |= {stop - n + 1 for n in sizes if body[-n:] in self.begins}
        if within and len(body) < self.longest and any(body in name for name in self.names):
            places.add(start)
        if not self.last.isdisjoint(body[: self.longest]) and any(body[:n] in self.ends for n in sizes):
            places.add(start)
        for place in sorted(places, reverse=True):
            text = text[:place] + INERT + text[place:]
        return text


def compiled(source: str) -> jinja2.Template:
    """Returns a compiled template. Raises: ValueError if it cannot be compiled."""
    try:
        return SANDBOX.from_string(source)
    except MemoryError:
        raise
    except Exception as error:  # Jinja's, or one of Python's compiler
        line = f"line {error.lineno}: " if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise ValueError(f"the chat template cannot be compiled: {line}{short_message(error)}") from None


def tagged(message: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the text that an answer continues, and its message with `CONTINUES_TAG` at the end of it."""
    content = message["content"]
    if isinstance(content, str):
        return content, {**message, "content": content + CONTINUES_TAG}
    last_part = content[-1]
    text = last_part["text"]
    last = {**last_part, "text": text + CONTINUES_TAG}
    return text, {**message, "content": [*content[:-1], last]}


# Answers without marks --------------------------------------------------------------------------------------------------

WriteMessages = Callable[..., str]
"""Returns the text of messages."""


def nested_answer(
    text: str, messages: Sequence[Mapping[str, object]], i: int, write: WriteMessages
) -> tuple[int, int] | None:
    """Returns the place of answer i: from the end of its prompt to the end of the text up to it. None if these do not nest."""
    try:
        before, upto = write(messages[:i], add_generation_prompt=True), write(messages[: i + 1])
    except ValueError:  # the template may refuse a part of the conversation, such as one without a question
        return None
    if upto.startswith(before) and text.startswith(upto):
        return len(before), len(upto)
    return None


def located_answer(
    text: str, messages: Sequence[Mapping[str, Any]], i: int, write: WriteMessages
) -> tuple[int, int] | None:
    """Returns the place of answer i in the text of a template whose texts do not nest, such as one that drops or opens thoughts.

    A word in the place of the answer shows the texts around it. The answer begins where the header of answers ends. It ends with
    the text that follows the word at the end of a conversation. None: the place cannot be told.
    """
    answer = {"role": "assistant", "content": PROBE}
    try:
        around = write([*messages[:i], answer, *messages[i + 1 :]]).split(PROBE)
        alone = write([*messages[:i], answer]).split(PROBE)
        header = header_of(messages[:i], write)
    except ValueError:
        return None
    if len(around) != 2 or len(alone) != 2:
        return None
    before, behind = around
    end = alone[1]
    if not behind.startswith(end) or not text.endswith(behind) or len(behind) > len(text):
        return None
    gap = before
    question = messages[i - 1]["content"] if i else ""
    if isinstance(question, str) and question.strip():
        previous = {**messages[i - 1], "content": PROBE}
        gap = write([*messages[: i - 1], previous, answer, *messages[i + 1 :]]).split(PROBE)[-2]
    start = len(before)
    last = gap.rfind(header)
    if last >= 0:
        start -= len(gap) - last - len(header)
    else:  # the prompt may open more than the text has: what both have in common is the header
        beginnings = [header[:n] for n in range(len(header))]
        common = [beginning for beginning in beginnings if gap.endswith(beginning) and re.search(r"\w", beginning)]
        if not common:
            return None
        lacking = header.removeprefix(common[-1])
        warn_once(
            f"the chat template ends a prompt with {lacking!r}, which the text of this answer lacks: a model does not "
            "learn what follows it"
        )
    stop = len(text) - len(behind) + len(end)
    if start <= stop and text.startswith(before[:start]):
        return start, stop
    return None


def header_of(messages: Sequence[Mapping[str, object]], write: WriteMessages) -> str:
    """Returns the text that a template writes before an answer to messages; if it refuses them, before an answer to a question."""
    for before in (messages, [{"role": "user", "content": PROBE}]):
        try:
            text, prompt = write(before), write(before, add_generation_prompt=True)
        except ValueError:
            continue
        if before and prompt.startswith(text):
            return prompt[len(text) :]
    raise ValueError("the chat template writes no prompt behind the messages: put {% generation %} around the answers")


# Forms of messages ------------------------------------------------------------------------------------------------------


class FittedConversation(NamedTuple):
    """A conversation in the form that a template reads."""

    messages: list[Message]
    tools: Sequence[Any] | None
    unread: tuple[str, ...]
    """The parts that the template leaves out, in words, such as "the reasoning of answers"."""
    ignored: tuple[str, ...]
    """The fields among them that no template has to know."""


class TemplateReading(NamedTuple):
    """A template's way to read conversations of one shape."""

    form: tuple[str, ...]
    """The names of `FORMS` that are applied to messages."""
    lost: tuple[str, ...]
    """A reason for each text or call that the template does not write."""
    unread: tuple[str, ...]


def reading_of(text: str, form: tuple[str, ...], words: Mapping[str, tuple[str, bool]]) -> TemplateReading:
    """Returns the reading that the text of a conversation shows. words: as `probed` returns them."""
    is_whole = WHOLE not in text and ascii(WHOLE)[1:-1] not in text
    lowered = text.lower()
    lost, unread = list[str](), list[str]()
    for word, (reason, is_needed) in words.items():
        if is_whole and word in lowered:
            continue
        if is_needed:
            lost.append(reason)
        elif reason not in unread:
            unread.append(reason)
    return TemplateReading(form, tuple(lost), tuple(unread))


def flat_message(message: Message) -> Message:
    content = message["content"]
    if isinstance(content, str):
        return message
    return message | {"content": "".join(item["text"] for item in content)}


def in_parts(message: Message) -> Message:
    content = message["content"]
    if not isinstance(content, str):
        return message
    return message | {"content": [{"type": "text", "text": content}]}


def with_calls(message: Message, change: Callable[[Message], Message]) -> Message:
    calls = message.get("tool_calls")
    return message if calls is None else message | {"tool_calls": [change(call) for call in calls]}


def with_json(call: Message) -> Message:
    """Returns a call whose arguments are JSON."""
    function = call["function"]
    arguments = call["function"]["arguments"]
    written = arguments if isinstance(arguments, str) else template_json(arguments)
    return call | {"function": function | {"arguments": written}}


def bare_call(call: Message) -> Message:
    """Returns the function of a call, with the id of the call."""
    own_fields = {"id": call["id"]} if "id" in call else {}
    return own_fields | call["function"]


def with_reasoning(message: Message) -> Message:
    """Returns a message whose reasoning has both of its names."""
    if "reasoning_content" not in message:
        return message
    return message | {"reasoning": message["reasoning_content"]}


def with_role(message: Message, role: str, other: str) -> Message:
    return message | {"role": other} if message["role"] == role else message


FORMS: dict[str, Callable[[Message], Message]] = {
    "joined": flat_message,
    "in parts": in_parts,
    "with JSON": lambda message: with_calls(message, with_json),
    "bare": lambda message: with_calls(message, bare_call),
    "reasoning": with_reasoning,
    "developer as system": functools.partial(with_role, role="developer", other="system"),
    "function as tool": functools.partial(with_role, role="function", other="tool"),
    "observation as tool": functools.partial(with_role, role="observation", other="tool"),
}
"""Other forms of the same message; some templates read only one of them."""


def forms_of(messages: Sequence[Message]) -> Iterator[tuple[str, ...]]:
    """Yields the forms in which the messages differ, first that of the messages unchanged."""
    alternatives = [("joined", "in parts"), ("with JSON", "bare"), ("reasoning",)]
    alternatives += [("developer as system",), ("function as tool",), ("observation as tool",)]
    choices = []
    for names in alternatives:
        changing = [name for name in names if any(FORMS[name](message) != message for message in messages)]
        choices.append(["", *changing])
    for chosen in itertools.product(*choices):
        yield tuple(filter(None, chosen))


def in_form(messages: Sequence[Message], form: Sequence[str]) -> list[Message]:
    rewritten = list(messages)
    for name in form:
        rewritten = [FORMS[name](message) for message in rewritten]
    return rewritten


KNOWN_FIELDS = {"role", "content", "reasoning_content", "reasoning", "tool_calls", "tool_call_id", "name", "weight"}


def further_fields(message: Message) -> list[str]:
    return [name for name in message if name not in KNOWN_FIELDS]


def shape_of(message: Message) -> tuple[object, ...]:
    """Returns the facts that decide how a template reads a message, besides its texts."""
    content = message["content"]
    if isinstance(content, str):
        have_text: object = bool(content.strip())
    else:
        have_text = [bool(item["text"].strip()) for item in content]
    arguments = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
    are_json = [isinstance(value, str) for value in arguments]
    are_empty = [not value for value in arguments]
    facts = message["role"], have_text, are_json, are_empty, sorted(message)
    return tuple(map(str, facts))


def without_field(message: Message, field: str, role: str) -> Message:
    """Returns a message without a field if it has this role; a message of another role unchanged."""
    if message["role"] != role:
        return message
    return {name: value for name, value in message.items() if name != field}


def probed(
    messages: Sequence[Message], tools: Sequence[object] | None
) -> tuple[list[Message], list[Any] | None, dict[str, tuple[str, bool]]]:
    """Returns a conversation with words in the place of its texts.

    words: for each word, the reason to give if it is missing, and whether the template must write it.
    """
    words: dict[str, tuple[str, bool]] = {}

    def word(reason: str, is_needed: bool = True) -> str:
        placeholder = f"zq{len(words)}qz"
        words[placeholder] = reason, is_needed
        return placeholder

    def probe_text(text: str, reason: str) -> str:
        return word(reason) if text.strip() else text

    probes = []
    for number, message in enumerate(messages, 1):
        content = message["content"]
        lost = f"the chat template leaves out the text of message {number}, of the role {message['role']!r}"
        if isinstance(content, list):
            parts = [{"type": "text", "text": probe_text(item["text"], lost), WHOLE: True} for item in content]
            probe = message | {"content": parts}
        else:
            probe = message | {"content": probe_text(content, lost)}
        if message.get("reasoning_content"):
            probe["reasoning_content"] = word("the reasoning of answers", is_needed=False)
        calls = []
        for call in message.get("tool_calls", ()):
            function = call["function"]
            lost = f"the chat template leaves out the call of {function['name']!r} in message {number}"
            arguments = function["arguments"]
            if isinstance(arguments, Mapping):
                arguments = {word(lost): word(lost)} if arguments else {}
            elif arguments:
                arguments = word(lost)
            calls.append(call | {"function": {"name": word(lost), "arguments": arguments}})
        if calls:
            probe["tool_calls"] = calls
        probes.append(probe)
    probe_tools = None
    if tools:
        probe_tools = [renamed_tool(tool, word("tools", is_needed=False)) for tool in tools]
    return probes, probe_tools, words


def renamed_tool(tool: Any, name: str) -> object:
    """Returns a tool with another name."""
    function = tool.get("function")
    if isinstance(function, Mapping):
        return {**tool, "function": {**function, "name": name}}
    return {**tool, "name": name}


def short_message(error: Exception) -> str:
    """Returns the message of an error, cut to 500 characters."""
    return " ".join(str(error).split())[:500] or type(error).__name__


class EncodedChat(NamedTuple):
    """The token ids of a conversation."""

    ids: list[int]
    answers: list[bool]
    """Whether at least one character of each token belongs to an answer."""


def encode_marked(texts: Sequence[str], tokenizer: Tokenizer) -> list[EncodedChat]:
    """Returns the token ids of texts with marks.

    Special tokens have other names here, which no text has. So a text of others is read as any text, in one piece with its
    neighbours. No name in it is known: not one with a mark inside, and not one that only the tokenizer's normalizer makes.
    """
    special = {BOS: tokenizer.bos_id, EOS: tokenizer.eos_id}
    sealed = tokenizer.sealed
    rows = [marked_segments(text, sealed) for text in texts]
    plain = [segment for row in rows for segment, _ in row if segment not in special]
    encoded = iter(sealed.tokenizer.encode_spans(plain))
    chats = []
    for row in rows:
        chat = EncodedChat([], [])
        for segment, flags in row:
            if segment in special:
                chat.ids.append(special[segment])  # type: ignore[arg-type]  # a mark stands for an id
                chat.answers.append(bool(flags[0]))
                continue
            ids, spans = next(encoded)
            chat.ids.extend(ids)
            chat.answers.extend([any(flags[start:stop]) for start, stop in spans])
        chats.append(chat)
    return chats


def marked_segments(text: str, sealed: Sealed) -> list[tuple[str, bytearray]]:
    """Returns the segments of a text that are read one by one, and for each character 1 if it belongs to an answer, else 0.

    A mark for a special id is a segment of its own.
    """
    segments = list[tuple[str, bytearray]]()
    segment, flags = "", bytearray()
    is_answer = False
    for piece in sealed.pattern.split(text):
        if piece in (ANSWER, END):
            is_answer = piece == ANSWER
        elif piece in (BREAK, BOS, EOS):
            segments.append((segment, flags))
            segment, flags = "", bytearray()
            if piece != BREAK:
                segments.append((piece, bytearray([is_answer])))
        elif piece != INERT:
            name = sealed.names.get(piece, piece)
            segment += name
            flags += bytes([is_answer]) * len(name)
    segments.append((segment, flags))
    return [(segment, flags) for segment, flags in segments if segment]


@dataclass(frozen=True)
class ChatTokenizers(Tokenizers):
    """Reads pairs and conversations by a template; they have targets and no sources.

    A conversation that is too long loses its first turns, each a user's message with the messages that follow. A system prompt
    stays if it can. A conversation whose last answer does not fit has no tokens.
    """

    template: ChatTemplate
    most: int
    """Most tokens of a conversation."""
    last_only: bool
    """Whether only the last answer counts."""
    translation: TranslationPrompt = SOURCE_ALONE
    """The message around the source of a pair."""

    @property
    def reading(self) -> str:
        parts: list[Any] = [READS_CONVERSATIONS, self.template.fields, self.most, self.last_only]
        if self.translation != SOURCE_ALONE:
            parts.append(vars(self.translation))
        return text_digest(json.dumps(parts, sort_keys=True))

    def refusal(self, pair: Pair) -> str | None:
        try:
            self._read(pair)
        except ValueError as error:
            return str(error)
        return None

    def encode_pairs(self, pairs: Sequence[Pair]) -> Iterator[EncodedPair]:
        if any(pair[0] for pair in pairs):
            self.translation.check_languages(self.template.reads_codes)
        self.template.compile()
        read: list[tuple[FittedConversation, str] | None] = []
        for pair in pairs:
            try:
                read.append(self._read(pair))
            except ValueError:  # reported with its file and line, by `refusal`
                read.append(None)
        texts = [text for _, text in filter(None, read)]
        encoded = iter(encode_marked(texts, self.target))
        for conversation in read:
            if conversation is None:
                yield EncodedPair([], [], extent=Extent.REFUSED)
                continue
            chat = next(encoded)
            extent = Extent.WHOLE
            if len(chat.ids) > self.most:
                chat = self._cut(conversation[0])
                extent = Extent.CUT
            yield EncodedPair([], chat.ids, extent=extent, arrays={ANSWER_FLAGS: np.array(chat.answers, np.bool)})

    def _read(self, pair: Pair) -> tuple[FittedConversation, str]:
        """Returns the conversation of a pair and its text; warns of what the template leaves out. Raises: ValueError."""
        fitted = self.template.fitted(*self.translation.conversation(pair, self.template.reads_codes))
        text = self._text(fitted.messages, fitted.tools)
        unread = list(fitted.unread)
        if leaves_out_thoughts(text, fitted.messages):
            unread.append("thoughts before </think> in answers")
        for one in unread:
            warn_once(f"the chat template leaves out {one}, so a model does not learn from it")
        return fitted, text

    def _text(self, messages: Sequence[Message], tools: Sequence[object] | None) -> str:
        return self.template.conversation(messages, tools, last_only=self.last_only)

    def _cut(self, conversation: FittedConversation) -> EncodedChat:
        """Returns the conversation without its first turns. One that the template then refuses counts as too long."""
        messages, tools = conversation[:2]
        roles = [message["role"] for message in messages]
        system = next((i for i, role in enumerate(roles) if role not in ("system", "developer")), len(roles))
        last = max((i for i, role in enumerate(roles) if role == "assistant"), default=0)
        turns = [i for i in range(system, last) if roles[i] == "user"]
        with_system = messages[:system], [i for i in turns if i > system]
        without_system = list[Message](), turns if system else []
        for head, starts in (with_system, without_system):

            def read(start: int, head: list[Message] = head) -> EncodedChat | None:
                try:
                    text = self._text([*head, *messages[start:]], tools)
                except ValueError:
                    return None
                return encode_marked([text], self.target)[0]

            def fits(start: int) -> bool:
                chat = read(start)
                return chat is not None and len(chat.ids) <= self.most

            number = bisect.bisect_left(starts, True, key=fits)
            if number == len(starts):
                continue
            chat = read(starts[number])
            if chat is not None:
                return chat
        return EncodedChat([], [])


def leaves_out_thoughts(text: str, messages: Sequence[Message]) -> bool:
    """Returns whether thoughts in the content of an answer are not in the text."""
    texts = [flat_message(message)["content"] for message in messages]
    thinking = [content.strip() for content in texts if THOUGHTS in content]
    if not thinking:
        return False
    written = MARK.sub("", text)
    place = 0
    for content in thinking:  # answers stand in the text in their order
        place = written.find(content, place)
        if place < 0:
            return True
        place += len(content)
    return False


def read_chat_template(folder: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
    """Returns the chat template in a run folder; None if the folder has no template.

    Special tokens are those that a folder names, else the tokenizer's where it reads their names as one token.

    Raises: ValueError for a file that is not JSON.
    """
    documents = {subfolder: read_object(folder / subfolder / "tokenizer_config.json") for subfolder in FOLDERS}
    named_tokens: dict[str, Any] = {}
    for subfolder, settings in reversed(documents.items()):
        if "added_tokens_decoder" not in settings:  # else the library reads no further file
            settings = settings | read_object(folder / subfolder / "special_tokens_map.json")
        named_tokens |= {name: settings[name] for name in (*TOKENS, *FURTHER_TOKENS) if name in settings}
    for subfolder, settings in documents.items():
        sources = template_sources(folder / subfolder, settings)
        if sources:
            default = sources.get(DEFAULT_TEMPLATE, NO_DEFAULT.format(", ".join(sorted(sources))))
            return chat_template(default, tokenizer, named_tokens, sources.get("tool_use"))
    return None


def template_sources(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns the chat templates of a folder by name; those in its files take the place of those in its settings."""
    files = dict[str, str]()
    further = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    for file in (folder / CHAT_TEMPLATE, *further):
        if file.is_file():
            name = DEFAULT_TEMPLATE if file.name == CHAT_TEMPLATE else file.stem
            files[name] = file.read_text(encoding="utf-8")
    if DEFAULT_TEMPLATE in files:
        return files
    listed = settings.get("chat_template")
    if isinstance(listed, list):  # several by name
        listed = {one["name"]: one["template"] for one in listed}
    if isinstance(listed, str):
        listed = {DEFAULT_TEMPLATE: listed}
    return (listed or {}) | files


def chat_template(
    source: str, tokenizer: Tokenizer, named_tokens: Mapping[str, object] = {}, tools_source: str | None = None
) -> ChatTemplate:
    """Returns a template for a tokenizer, with the special tokens that a folder names."""
    tokens = dict.fromkeys(TOKENS) | own_tokens(tokenizer) | dict(named_tokens)
    texts = {name: token_text(name, token) or "" for name, token in tokens.items()}
    return ChatTemplate(source, texts, tokenizer.special_texts, tools_source)


def own_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """Returns the special tokens by name. BOS and EOS are marks if the tokenizer does not read them as one token."""
    ids = zip(TOKENS, (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.unk_id), strict=True)
    marks = {"bos_token": BOS, "eos_token": EOS}
    tokens = dict[str, str]()
    for name, i in ids:
        if i is None:
            continue
        piece = tokenizer.piece(i)
        if tokenizer.encode(piece) == [i]:
            tokens[name] = piece
        elif name in marks:
            tokens[name] = marks[name]
    return tokens


def read_object(file: Path) -> dict[str, object]:
    """Returns the JSON object in a file, empty without the file. Raises: ValueError where it is not JSON."""
    value = read_any_json(file)
    return value if isinstance(value, dict) else {}
