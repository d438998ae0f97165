"""The JSON of OpenAI's interface: answers as its clients read them, whole and in parts."""

import base64
import json
import secrets
import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from flaxformer_lite.tools.serve.served_run import Answer

Kind = Literal["text_completion", "chat.completion"]
PREFIXES: dict[Kind, str] = {"text_completion": "cmpl", "chat.completion": "chatcmpl"}
DONE = "data: [DONE]\n\n"
"""The last event of a stream."""


def event(content: object) -> str:
    """Returns JSON as a server-sent event."""
    return f"data: {json.dumps(content, ensure_ascii=False, allow_nan=False)}\n\n"


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """Returns the tokens that were read and written."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def completion(kind: Kind, model: str, answers: Sequence[Answer], prompt_tokens: int) -> dict[str, Any]:
    """Returns the response to a completion or a chat."""
    choices: list[dict[str, Any]] = []
    for i, answer in enumerate(answers):
        if kind == "text_completion":
            content: dict[str, Any] = {"text": answer.text}
        else:
            content = {"message": {"role": "assistant", "content": answer.text, "refusal": None}}
        choices.append({"index": i, **content, "logprobs": None, "finish_reason": answer.finish})
    counts = usage(prompt_tokens, sum(answer.num_tokens for answer in answers))
    return {**head(kind, kind, model), "choices": choices, "usage": counts}


def head(kind: Kind, name: str, model: str) -> dict[str, Any]:
    """Returns the fields that begin a response."""
    unique = f"{PREFIXES[kind]}-{secrets.token_hex(12)}"
    return {"id": unique, "object": name, "created": int(time.time()), "model": model}


class CompletionEvents:
    """The events of one streamed answer."""

    def __init__(self, kind: Kind, model: str, prompt_tokens: int, *, include_usage: bool) -> None:
        self.kind, self.prompt_tokens, self.include_usage = kind, prompt_tokens, include_usage
        self.head = head(kind, kind if kind == "text_completion" else "chat.completion.chunk", model)

    def chunk(self, content: dict[str, Any], finish: str | None = None) -> str:
        """Returns the event of a part."""
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish}
        return event({**self.head, "choices": [choice], **({"usage": None} if self.include_usage else {})})

    def first(self) -> str:
        """Returns the event before the first part: in a chat who speaks."""
        return "" if self.kind == "text_completion" else self.chunk({"delta": {"role": "assistant", "content": ""}})

    def part(self, text: str) -> str:
        """Returns the event of a part of the text."""
        return self.chunk({"text": text} if self.kind == "text_completion" else {"delta": {"content": text}})

    def last(self, answer: Answer) -> str:
        """Returns the events after the last part: why the text ended, and the tokens on request."""
        found = self.chunk({"text": ""} if self.kind == "text_completion" else {"delta": {}}, answer.finish)
        if self.include_usage:
            counts = usage(self.prompt_tokens, answer.num_tokens)
            found += event({**self.head, "choices": [], "usage": counts})
        return found + DONE


def embeddings(
    model: str, vectors: Sequence[Float[np.ndarray, "D"]], tokens: int, encoding: Literal["float", "base64"]
) -> dict[str, Any]:
    """Returns the response with the vector of each text: numbers, or the base64 of little-endian float32."""

    def written(vector: Float[np.ndarray, "D"]) -> Any:
        if encoding == "float":
            return vector.astype(float).tolist()
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")

    data = [{"object": "embedding", "index": i, "embedding": written(v)} for i, v in enumerate(vectors)]
    return {"object": "list", "data": data, "model": model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}


def model_card(name: str, created: int) -> dict[str, Any]:
    """Returns the entry of a run in the list of models."""
    return {"id": name, "object": "model", "created": created, "owned_by": "flaxformer_lite"}
