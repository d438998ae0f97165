"""Chat templates: the text of a conversation as an imported model was trained on it.

A template is a program from a stranger, so each has a process of its own (`chat_process.py`), with limits of time and memory.
"""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from flaxformer_lite.text import Tokenizer
from flaxformer_lite.tools.serve.refusals import Refusal

FOLDERS = ("", "huggingface")
"""Folders of a run that may have a template: its own, and the files that came with imported weights."""
TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
"""Special tokens that a template may write, by the roles of a tokenizer."""
FURTHER_TOKENS = ("sep_token", "cls_token", "mask_token")
"""Special tokens that only a folder names."""
SECONDS = 10.0
"""The time that a template may take."""
PROGRAM = Path(__file__).with_name("chat_process.py")
ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "TZ", "LANG", "LC_ALL")
"""Variables that the process gets. The others may hold secrets."""


class ChatTemplate:
    """A template, the special tokens that it may write, and the process that renders it.

    The process starts with the first prompt, and again after it was killed. One thread asks it, so prompts wait for one another.
    """

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        self.source, self.tokens = source, tokens
        self.thread = ThreadPoolExecutor(1, "chat template")
        self.process: subprocess.Popen[bytes] | None = None

    def problem(self) -> str:
        """Returns the reason why the template cannot be compiled; "" if it can."""
        return self.ask(None).get("error", "")

    def submit(
        self,
        messages: Sequence[Mapping[str, Any]],
        deadline: float = math.inf,
        *,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> Future[str]:
        """Returns the coming prompt, or Refusal if the template gives none by `deadline`, a time of the monotonic clock.

        It ends where the answer begins: after the beginning of a new message, or within the last one of `messages`.
        """
        variables = {"tools": None, "documents": documents, "add_generation_prompt": add_generation_prompt}
        variables |= {name: token for name, token in self.tokens.items() if token}

        def prompt() -> str:
            found = self.ask(messages, deadline, continues=continue_final_message, variables=variables)
            if "error" in found:
                raise Refusal(422, f"the chat template refuses these messages: {found['error']}", param="messages")
            return found["text"]

        return self.thread.submit(prompt)

    def ask(
        self, messages: Sequence[Mapping[str, Any]] | None, deadline: float = math.inf, **options: Any
    ) -> dict[str, str]:
        """Returns the answer of the process, or the reason why it ended without one."""
        process = self.process or self.start()
        seconds = max(1e-3, min(SECONDS, deadline - time.monotonic()))
        asked = {"source": self.source, "messages": messages, "seconds": seconds, **options}
        line = b""
        with contextlib.suppress(OSError):  # of a process that has ended
            process.stdin.write(json.dumps(asked).encode() + b"\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            line = process.stdout.readline()  # type: ignore[union-attr]
        if line.endswith(b"\n"):
            found: dict[str, str] = json.loads(line)
            return found
        self.stop()
        late = process.returncode == -signal.SIGALRM
        return {"error": f"it did not end within {seconds:.3g} seconds" if late else "its process has crashed"}

    def start(self) -> "subprocess.Popen[bytes]":
        """Starts the process, and returns it."""
        environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env=environment, start_new_session=True,  # Ctrl-C is for the server alone
        )  # fmt: skip
        return self.process

    def stop(self) -> None:
        """Ends the process; the next prompt starts another one."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            with contextlib.suppress(OSError), process:  # closes the pipes, and waits
                pass

    def close(self) -> None:
        """Ends the process and the thread. Prompts that wait are cancelled."""
        self.thread.shutdown(wait=False, cancel_futures=True)  # first, else the next prompt starts another process
        if (process := self.process) is not None:
            process.kill()
        self.thread.shutdown()
        self.stop()

    def __del__(self) -> None:
        self.stop()


def read_chat_template(folder: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
    """Returns the chat template in a run folder; None if there is none.

    Special tokens are those that a folder names, else the tokenizer's where it reads their names as one token.
    """
    named_tokens: dict[str, Any] = {}
    documents = {part: read_object(folder / part / "tokenizer_config.json") for part in FOLDERS}
    for part, settings in reversed(documents.items()):
        if "added_tokens_decoder" not in settings:  # else the library reads no further file
            settings = settings | read_object(folder / part / "special_tokens_map.json")
        named_tokens |= {name: settings[name] for name in (*TOKENS, *FURTHER_TOKENS) if name in settings}
    for part, settings in documents.items():
        own, file = settings.get("chat_template"), folder / part / "chat_template.jinja"
        if isinstance(own, list):  # several by name
            named = {entry.get("name"): entry.get("template") for entry in own if isinstance(entry, dict)}
            own = named.get("default")
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
