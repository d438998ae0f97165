"""Chat templates: the text of a conversation as a model is trained on it, and its token ids.

A template is a program that came with a model. Jinja's sandbox keeps it from Python's attributes, files and modules, but it may
take time and memory. It finds what `transformers.utils.chat_template_utils` of version 5.24 gives it.

The text that a template has written may have *marks*, which `encode_marked` reads:

| mark | meaning |
|---|---|
| `ANSWER`, `END` | the beginning and the end of an answer, which training learns |
| `BREAK` | the end of a piece: in the name of a special token in a user's text, which is ordinary text; before an answer |
| `BOS`, `EOS` | a special id whose name the tokenizer does not read |
"""

import bisect
import datetime
import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from flaxformer_lite.text.json_tokenizer import token_text
from flaxformer_lite.text.tokenizer import EncodedPair, Tokenizer, Tokenizers

FOLDERS = ("", "huggingface")
"""Folders of a run that may have a template: its own, and the files that came with imported weights."""
TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
"""Special tokens that a template may write, by the roles of a tokenizer."""
FURTHER_TOKENS = ("sep_token", "cls_token", "mask_token")
"""Special tokens that only a folder names."""
ANSWER, END, BREAK, BOS, EOS = "\ufdd0\ufdd1\ufdd2\ufdd3\ufdd4"
MARK = re.compile("([\ufdd0-\ufdef])")
"""The marks, and other characters that no text for others has. Reference: Unicode 16.0, section 23.7, noncharacters."""
GENERATION = re.compile(r"{%-?\s*generation\s*-?%}")
TRUSTED_ROLES = ("system", "developer", "assistant")
"""The roles whose texts may name special tokens."""
PLAIN = (
    "{{ bos_token }}{% if tools %}<|tools|>{{ tools | tojson }}{% endif %}{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content or '' }}"
    "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ message.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""The template for a model without one: `<|ROLE|>` before each message, and EOS after each answer."""
TRAINING_DATE = datetime.datetime(2024, 7, 26)
"""The date of `strftime_now` in a conversation of training, whose tokens may not depend on the day; a prompt has today's."""
TAG = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks the end of the last message in a prompt that continues it, as in the library."""


class Generation(Extension):
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

    def __call__(self, *arguments: Any, **named: Any) -> dict[Any, Any]:
        return dict(*arguments, **named)

    def fromkeys(self, *arguments: Any) -> dict[Any, Any]:
        return dict.fromkeys(*arguments)


class Namespace(jinja2.utils.Namespace):
    """`namespace` without names that begin with an underscore."""

    def __init__(*arguments: Any, **named: Any) -> None:  # `self` is a name that a template may use
        self, given = arguments[0], dict(*arguments[1:], **named)
        for name in given:
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: Any) -> None:
        Namespace.check(name)
        super().__setitem__(name, value)

    @staticmethod
    def check(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"the name {name!r} of a namespace begins with an underscore")


def refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Returns JSON; Jinja's own filter is for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


ENVIRONMENT = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
)
ENVIRONMENT.filters["tojson"] = to_json
ENVIRONMENT.globals |= {
    "raise_exception": refuse,
    "strftime_now": lambda form: datetime.datetime.now().strftime(form),
    "dict": Dict(),
    "namespace": Namespace,
}


class ChatTemplate:
    """A template, the special tokens that it may write, by name, and the texts that the tokenizer reads as special ids."""

    def __init__(self, source: str, tokens: Mapping[str, str], special: Sequence[str] = ()) -> None:
        self.source, self.tokens, self.special = source, tokens, tuple(special)

    @property
    def fields(self) -> dict[str, Any]:
        """The template, ready for JSON."""
        return {"source": self.source, "tokens": dict(self.tokens), "special": self.special}

    @functools.cached_property
    def compiled(self) -> jinja2.Template:
        """The compiled template; compiling computes what is constant in it. Raises: ValueError if it cannot be compiled."""
        try:
            return ENVIRONMENT.from_string(self.source)
        except MemoryError:
            raise
        except Exception as error:  # Jinja's, or one of Python's compiler
            line = f"line {error.lineno}: " if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise ValueError(f"the chat template cannot be compiled: {line}{in_one_line(error)}") from None

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """Returns the text before the answer: up to the beginning of a new message, or within the last one of `messages`.

        Raises: ValueError if the template cannot be compiled, refuses the messages, or fails; MemoryError.
        """
        final = messages[-1]["content"]
        if continue_final_message:
            messages = [*messages[:-1], {**messages[-1], "content": final + TAG}]
        text = self._written(messages, documents=documents, add_generation_prompt=add_generation_prompt)
        text = text.replace(ANSWER, "").replace(END, "")
        if not continue_final_message:
            return text
        end = text.rfind(TAG.strip())
        if final.strip() not in text.replace(BREAK, "") or end < 0:
            raise ValueError("the chat template changes the last message: leave out continue_final_message")
        return text[:end] if text.startswith(TAG, end) else text[:end].rstrip()  # a template may trim a message

    def conversation(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None, *, last_only: bool = False
    ) -> str:
        """Returns the text of a conversation with the marks of all answers, or of the last one alone.

        Answers are what the template has in `{% generation %}`, else what it writes after the prompt for each answer.

        Raises: ValueError as `prompt` does, and for a template that does not tell where answers are.
        """
        text = self._written(messages, tools=tools, strftime_now=TRAINING_DATE.strftime)
        if not GENERATION.search(self.source):
            text = self._compared(text, messages, tools, last_only)
        marks = re.findall(f"[{ANSWER}{END}]", text)
        if marks != [ANSWER, END] * (len(marks) // 2):
            raise ValueError(
                "the chat template changes the text that it has in {% generation %}: write it out unchanged"
            )
        if last_only and marks:
            start = text.rindex(ANSWER)
            text = text[:start].replace(ANSWER, "").replace(END, "") + text[start:]
        return text

    def _compared(
        self, text: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, last_only: bool
    ) -> str:
        """Marks the answers in the text of all messages: each is between its prompt and the text with it as the last message.

        White space after a special token is not of the answer, which ends with that token.
        """
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        for i in reversed(answers[-1:] if last_only else answers):
            written = functools.partial(self._written, tools=tools, strftime_now=TRAINING_DATE.strftime)
            before = written(messages[:i], add_generation_prompt=True)
            upto = written(messages[: i + 1])
            if not (upto.startswith(before) and text.replace(ANSWER, "").replace(END, "").startswith(upto)):
                raise ValueError(
                    f"the chat template has no {{% generation %}}, and writes message {i + 1} in another way where it is the last "
                    "one, so answers cannot be told from the rest: put {% generation %} around them"
                )
            ends = upto.rstrip()
            end = len(ends if ends.endswith((*self.special, BOS, EOS)) else upto)
            text = text[: len(before)] + ANSWER + text[len(before) : end] + END + text[end:]
        return text

    def _written(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """Returns the text of the messages with marks. Raises: as `prompt`."""
        known = {"tools": None, "documents": None, "add_generation_prompt": False} | variables
        known |= {name: token for name, token in self.tokens.items() if token}
        template = self.compiled
        given = [messages, known["tools"], known["documents"]]
        if MARK.search(json.dumps(given, ensure_ascii=False, default=str)):
            raise ValueError(
                "a message or a tool has a character between U+FDD0 and U+FDEF, which no text may have: leave it out"
            )
        messages = [
            message
            if message["role"] in TRUSTED_ROLES
            else {**message, "content": self._without_special(message.get("content"))}
            for message in messages
        ]
        try:
            text = template.render(messages=messages, **known)
            text.encode()  # fails for half a surrogate pair, which no tokenizer reads
        except MemoryError:
            raise
        except Exception as error:  # a program may raise anything
            raise ValueError(f"the chat template refuses these messages: {in_one_line(error)}") from None
        # No model has read it otherwise: the pieces of an answer begin where those of its prompt end.
        return text.replace(ANSWER, BREAK + ANSWER) if self.source == PLAIN else text

    def _without_special(self, content: Any) -> Any:
        """Returns the content of a message with a mark in each name of a special token."""
        if isinstance(content, list):
            return [self._without_special(part) for part in content]
        if isinstance(content, dict):
            return {name: self._without_special(part) for name, part in content.items()}
        if not isinstance(content, str) or not self.special:
            return content
        return re.sub(f"(?=(?:{'|'.join(map(re.escape, self.special))}))(.)", rf"\1{BREAK}", content, flags=re.DOTALL)


def in_one_line(error: Exception) -> str:
    """Returns what an error says, cut to 500 characters."""
    return " ".join(str(error).split())[:500] or type(error).__name__


class EncodedChat(NamedTuple):
    """The token ids of a conversation."""

    ids: list[int]
    answers: list[bool]
    """Whether each token belongs to an answer, at least with one of its characters."""


def encode_marked(texts: Sequence[str], tokenizer: Tokenizer) -> list[EncodedChat]:
    """Returns the token ids of texts with marks."""
    special = {BOS: tokenizer.bos_id, EOS: tokenizer.eos_id}
    rows: list[list[tuple[str, list[bool]]]] = []  # the parts that are read alone, each character with its `answers`
    for text in texts:
        row, is_answer, part, flags = [], False, "", list[bool]()
        for piece in (*MARK.split(text), BREAK):
            if piece in (ANSWER, END):
                is_answer = piece == ANSWER
            elif piece == BREAK or piece in special:
                row += [(part, flags), ("" if piece == BREAK else piece, [is_answer])]
                part, flags = "", []
            else:
                part, flags = part + piece, flags + [is_answer] * len(piece)
        rows.append([item for item in row if item[0]])
    encoded = iter(tokenizer.encode_spans([part for row in rows for part, _ in row if part not in special]))
    found = []
    for row in rows:
        chat = EncodedChat([], [])
        for part, flags in row:
            ids, spans = ([special[part]], [(0, 1)]) if part in special else next(encoded)
            chat.ids.extend(ids)  # type: ignore[arg-type]  # a mark stands for an id that is there
            chat.answers.extend(any(flags[start:stop]) for start, stop in spans)
        found.append(chat)
    return found


class Conversation(NamedTuple):
    """Messages as templates read them, and the tools that the assistant may call."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None = None

    @classmethod
    def of(cls, messages: object, tools: object = None) -> "Conversation":
        """Returns a conversation from the fields of a record, without messages' fields that are None.

        Raises: ValueError if the messages are none.
        """
        if not isinstance(messages, list) or not messages:
            raise ValueError(
                f"{str(messages)[:60]!r} is not a list of messages: each is an object with role and content"
            )
        for message in messages:
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise ValueError(f"{str(message)[:60]!r} is not a message: it must be an object with role and content")
            if not isinstance(message.get("content"), str | list | None):
                raise ValueError(f"the content of message {str(message)[:60]!r} is not text: it must be a string")
        kept = [{name: value for name, value in message.items() if value is not None} for message in messages]
        try:
            read = json.loads(tools) if isinstance(tools, str) and tools else tools or None
        except (ValueError, RecursionError):
            read = tools
        if read is not None and not isinstance(read, list):
            raise ValueError(f"tools are {str(tools)[:60]!r}: they must be a list, or one in JSON")
        return cls([{"content": "", **message} for message in kept], read)

    @property
    def text(self) -> str:
        """The conversation as a document, in JSON. Raises: ValueError for half a surrogate pair."""
        fields = {name: value for name, value in self._asdict().items() if value}
        found = json.dumps(fields, ensure_ascii=False, default=str)  # a table may have times
        try:
            found.encode()
        except UnicodeEncodeError:
            raise ValueError("a message has half a surrogate pair: correct the data") from None
        return found

    @classmethod
    def of_pair(cls, source: str, target: str) -> "Conversation":
        """Returns a question with its answer; without a question the conversation that the target is in JSON.

        Raises: ValueError if it is none.
        """
        if source:
            return cls([{"role": "user", "content": source}, {"role": "assistant", "content": target}])
        try:
            found = json.loads(target)
            return cls.of(**found) if isinstance(found, dict) else cls.of(found)
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{target[:60]!r} is neither an answer with its question nor a list of messages: {error}"
            ) from None


@dataclass(frozen=True)
class ChatTokenizers(Tokenizers):
    """Reads pairs and conversations by a template, as targets alone.

    One that is too long loses its first turns, each a user's message with what follows; a system prompt stays if it can. One whose
    last answer does not fit has no tokens. Its label is then the number of messages that were left out.
    """

    template: ChatTemplate
    most: int
    """Most tokens of a conversation."""
    last_only: bool
    """Whether only the last answer counts."""

    @property
    def reading(self) -> str:
        parts = [self.template.fields, self.most, self.last_only]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def encode_pairs(self, pairs: Sequence[Sequence[str]]) -> Iterator[EncodedPair]:
        conversations = [Conversation.of_pair(*pair[:2]) for pair in pairs]
        for conversation, found in zip(conversations, self._encoded(conversations), strict=True):
            left_out = 0
            if len(found.ids) > self.most:
                found, left_out = self._cut(conversation)
            yield EncodedPair([], found.ids, str(left_out or ""), found.answers)

    def _encoded(self, conversations: Sequence[Conversation]) -> list[EncodedChat]:
        texts = [self.template.conversation(*each, last_only=self.last_only) for each in conversations]
        return encode_marked(texts, self.target)

    def _cut(self, conversation: Conversation) -> tuple[EncodedChat, int]:
        """Returns the conversation without its first turns, and the number of messages that it lacks."""
        messages, tools = conversation
        roles = [message["role"] for message in messages]
        system = next((i for i, role in enumerate(roles) if role not in ("system", "developer")), len(roles))
        last = max((i for i, role in enumerate(roles) if role == "assistant"), default=0)
        turns = [i for i in range(system, last) if roles[i] == "user"]
        for head, starts in ((messages[:system], [i for i in turns if i > system]), ([], turns if system else [])):

            def read(start: int, head: list[dict[str, Any]] = head) -> EncodedChat:
                return self._encoded([Conversation([*head, *messages[start:]], tools)])[0]

            number = bisect.bisect_left(starts, True, key=lambda start: len(read(start).ids) <= self.most)
            if number < len(starts):
                return read(starts[number]), starts[number] - len(head)
        return EncodedChat([], []), len(messages)


def read_chat_template(folder: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
    """Returns the chat template in a run folder; None if there is none.

    Special tokens are those that a folder names, else the tokenizer's where it reads their names as one token.

    Raises: ValueError for a file that is not JSON.
    """
    documents = {part: read_object(folder / part / "tokenizer_config.json") for part in FOLDERS}
    named_tokens: dict[str, Any] = {}
    for part, settings in reversed(documents.items()):
        if "added_tokens_decoder" not in settings:  # else the library reads no further file
            settings = settings | read_object(folder / part / "special_tokens_map.json")
        named_tokens |= {name: settings[name] for name in (*TOKENS, *FURTHER_TOKENS) if name in settings}
    for part, settings in documents.items():
        own, file = settings.get("chat_template"), folder / part / "chat_template.jinja"
        if isinstance(own, list):  # several by name
            own = next((entry["template"] for entry in own if entry["name"] == "default"), None)
        if file.is_file():
            own = file.read_text(encoding="utf-8")
        if isinstance(own, str):
            return chat_template(own, tokenizer, named_tokens)
    return None


def chat_template(source: str, tokenizer: Tokenizer, named_tokens: Mapping[str, Any] = {}) -> ChatTemplate:
    """Returns a template for a tokenizer, with the special tokens that a folder names."""
    tokens = dict.fromkeys(TOKENS) | own_tokens(tokenizer) | dict(named_tokens)
    texts = {name: token_text(name, token) or "" for name, token in tokens.items()}
    return ChatTemplate(source, texts, tokenizer.special_texts)


def own_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """Returns the special tokens by name. Of those that the tokenizer does not read as one token BOS and EOS are marks."""
    ids = zip(TOKENS, (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.unk_id), strict=True)
    pieces = {name: (i, tokenizer.piece(i)) for name, i in ids if i is not None}
    marks = {"bos_token": BOS, "eos_token": EOS}
    found = {name: piece if tokenizer.encode(piece) == [i] else marks.get(name) for name, (i, piece) in pieces.items()}
    return {name: piece for name, piece in found.items() if piece is not None}


def read_object(file: Path) -> dict[str, Any]:
    """Returns the JSON object in a file, empty without the file. Raises: ValueError where it is not JSON."""
    try:
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise ValueError(f"{file} cannot be read as JSON: {error}") from None
    return found if isinstance(found, dict) else {}
