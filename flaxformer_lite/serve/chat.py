"""Chat templates: the text of a conversation as an imported model was trained on it.

A template is a program from a stranger, so it runs in Jinja's sandbox.
"""

import functools
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flaxformer_lite.serve.refusals import Refusal
from flaxformer_lite.text import Tokenizer

FOLDERS = ("", "huggingface")
"""Folders of a run that may have a template: its own, and the files that came with imported weights."""
TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
"""Special tokens that a template may write."""


class ChatTemplate(NamedTuple):
    """A template and the special tokens that it may write."""

    source: str
    tokens: Mapping[str, str]

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Returns the prompt that the next message of the assistant continues. Raises: Refusal if the template refuses."""
        try:
            template = compiled(self.source)
            text: str = template.render(messages=messages, add_generation_prompt=True, tools=None, **self.tokens)
        except Exception as error:  # a program may raise anything
            raise Refusal(422, f"the chat template refuses these messages: {error}", param="messages") from None
        return text


def read_chat_template(folder: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
    """Returns the chat template in a run folder; None if there is none.

    Special tokens are those that a folder names, else the tokenizer's where it reads their names as one token.
    """
    named_tokens: dict[str, Any] = {}
    documents = {part: read_object(folder / part / "tokenizer_config.json") for part in FOLDERS}
    for settings in reversed(documents.values()):
        named_tokens |= {name: settings[name] for name in TOKENS if name in settings}
    for part, settings in documents.items():
        own, file = settings.get("chat_template"), folder / part / "chat_template.jinja"
        if isinstance(own, list):  # several by name
            named = {entry.get("name"): entry.get("template") for entry in own if isinstance(entry, dict)}
            own = named.get("default")
        if file.is_file():
            own = file.read_text(encoding="utf-8")
        if isinstance(own, str):
            tokens = own_tokens(tokenizer) | named_tokens
            return ChatTemplate(own, {name: token_text(tokens.get(name)) for name in TOKENS})
    return None


def own_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """Returns the special tokens by name, without those that the tokenizer does not read as one token."""
    ids = zip(TOKENS, (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.unk_id), strict=True)
    pieces = {name: (i, tokenizer.piece(i)) for name, i in ids if i is not None}
    return {name: piece for name, (i, piece) in pieces.items() if tokenizer.encode(piece) == [i]}


def read_object(file: Path) -> dict[str, Any]:
    """Returns the JSON object in a file, empty without the file. Raises: ValueError where it holds something else."""
    try:
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read as JSON: {error}") from None
    return found if isinstance(found, dict) else {}


def token_text(token: object) -> str:
    """Returns a special token as text: the file has a string, or an object with its content."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


@functools.lru_cache(8)
def compiled(source: str) -> Any:
    """Returns the template, compiled in a sandbox without access to Python's attributes, and with blocks trimmed as in Hugging
    Face's library."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals |= {"raise_exception": refuse, "strftime_now": time.strftime}
    environment.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)  # Jinja's own is for HTML
    return environment.from_string(source)
