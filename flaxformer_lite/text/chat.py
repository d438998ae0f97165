"""Chat templates: the text of a conversation as an imported model was trained on it.

A template is a program that came with a model. Jinja's sandbox keeps it from Python's attributes, files and modules, but it may
take time and memory. It finds what `transformers.utils.chat_template_utils` of version 5.24 gives it.
"""

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from flaxformer_lite.text.tokenizer import Tokenizer

FOLDERS = ("", "huggingface")
"""Folders of a run that may have a template: its own, and the files that came with imported weights."""
TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
"""Special tokens that a template may write, by the roles of a tokenizer."""
FURTHER_TOKENS = ("sep_token", "cls_token", "mask_token")
"""Special tokens that only a folder names."""
TAG = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks the end of the last message in a prompt that continues it, as in the library."""


class Generation(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks an answer for training, and is its content."""

    tags = {"generation"}  # noqa: RUF012  # as in the base class

    def parse(self, parser: Any) -> Any:
        """Returns the block as a call, so that it has variables of its own, as in the library."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("content"), [], [], body).set_lineno(line)

    def content(self, caller: Any) -> Any:
        return caller()


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
    """A template, and the special tokens that it may write."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        self.source, self.tokens = source, tokens

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
        variables = {"tools": None, "documents": documents, "add_generation_prompt": add_generation_prompt}
        variables |= {name: token for name, token in self.tokens.items() if token}
        final = messages[-1]["content"]
        if continue_final_message:
            messages = [*messages[:-1], {**messages[-1], "content": final + TAG}]
        template = self.compiled
        try:
            text = template.render(messages=messages, **variables)
            text.encode()  # fails for half a surrogate pair, which no tokenizer reads
        except MemoryError:
            raise
        except Exception as error:  # a program may raise anything
            raise ValueError(f"the chat template refuses these messages: {in_one_line(error)}") from None
        if not continue_final_message:
            return text
        end = text.rfind(TAG.strip())
        if final.strip() not in text or end < 0:
            raise ValueError("the chat template changes the last message: leave out continue_final_message")
        return text[:end] if text.startswith(TAG, end) else text[:end].rstrip()  # a template may trim a message


def in_one_line(error: Exception) -> str:
    """Returns what an error says, cut to 500 characters."""
    return " ".join(str(error).split())[:500] or type(error).__name__


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
            tokens = dict.fromkeys(TOKENS) | own_tokens(tokenizer) | named_tokens
            return ChatTemplate(own, {name: token_text(token) for name, token in tokens.items()})
    return None


def own_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """Returns the special tokens by name, without those that the tokenizer does not read as one token."""
    ids = zip(TOKENS, (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.unk_id), strict=True)
    pieces = {name: (i, tokenizer.piece(i)) for name, i in ids if i is not None}
    return {name: piece for name, (i, piece) in pieces.items() if tokenizer.encode(piece) == [i]}


def read_object(file: Path) -> dict[str, Any]:
    """Returns the JSON object in a file, empty without the file. Raises: ValueError where it is not JSON."""
    try:
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise ValueError(f"{file} cannot be read as JSON: {error}") from None
    return found if isinstance(found, dict) else {}


def token_text(token: object) -> str:
    """Returns a special token as text: the file has a string, or an object with its content."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""
