"""The shapes of requests: of the server's own endpoints, and of OpenAI's interface. Unknown and unsupported fields are errors."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flaxformer_lite.base.console import suggest
from flaxformer_lite.tools.serve.refusals import Refusal

Text = Annotated[str, MaxLen(1_000_000)]
Texts = Text | list[Text]
"""One text, or several."""
Stop = str | Annotated[list[str], MaxLen(16)] | None
Count = Annotated[int, Ge(1)]
Zero = Annotated[float, Ge(0), Le(0)] | None
"""A setting that is not there: only its neutral value is accepted."""
Seed = Annotated[int, Ge(0), Lt(2**32)]


class Asked(BaseModel):
    """Base of all requests."""

    model_config = ConfigDict(extra="forbid", strict=True)


Shape = TypeVar("Shape", bound=Asked)


def parse(shape: type[Shape], body: bytes) -> Shape:
    """Returns a request. Raises: Refusal for a body that is no JSON (400), or of another shape (422)."""
    try:
        return shape.model_validate_json(body)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False)
        if errors[0]["type"] == "json_invalid":
            raise Refusal(400, f"the body is no JSON: {errors[0]['msg']}") from None
        path, kind, complaint = first_mistake(errors, json.loads(body))
        if kind == "extra_forbidden":
            near = suggest(path, shape.model_fields)
            raise Refusal(422, f"{path} is not supported: leave it out{near}", param=path) from None
        raise Refusal(422, f"{path or 'the body'}: {complaint}", param=path or None) from None


def first_mistake(errors: Sequence[Any], body: Any) -> tuple[str, str, str]:
    """Returns the field of pydantic's first error in a body, the kind of the error, and what the field should be.

    A field of several types has an error for each of them, and the type's name in the path. Of these, those count that are
    deepest in the body; then those that are about a value of the right type.
    """
    found = [(place_of(error, body), error) for error in errors if error["loc"][:1] == errors[0]["loc"][:1]]
    deepest = max((place for place, _ in found), key=len)
    here = [error for place, error in found if place == deepest]
    here = [error for error in here if not error["type"].endswith("_type")] or here
    first, *others = dict.fromkeys(error["msg"] for error in here)
    more = [f" or {message.removeprefix('Input should be ')}" for message in others]
    return ".".join(map(str, deepest)), here[0]["type"], first + "".join(more)


def place_of(error: Any, body: Any) -> list[str | int]:
    """Returns the path of pydantic's error without the names of types: the keys and indices to its input, or to what it lacks."""
    place: list[str | int] = []
    for part in error["loc"]:
        if body == error["input"]:
            break
        if (isinstance(body, dict) and part in body) or (isinstance(body, list) and isinstance(part, int)):
            place.append(part)
            body = body[part]
    return [*place, *error["loc"][-1:]] if error["type"] == "missing" else place


def as_list(texts: Texts | None) -> list[str]:
    """Returns the texts."""
    return [texts] if isinstance(texts, str) else texts or []


# The server's own endpoints -----------------------------------------------------------------------------------------------


class TranslateRequest(Asked):
    """`POST /api/translate`."""

    run: str | None = None
    texts: Texts
    beam_size: Count | None = None
    num_hypotheses: Count | None = None
    max_new_tokens: Count | None = None


class GenerateRequest(Asked):
    """`POST /api/generate`."""

    run: str | None = None
    texts: Texts | list[int] | list[list[int]]
    """Prompts: texts, or token ids."""
    max_new_tokens: Count | None = None
    temperature: Annotated[float, Ge(0), Le(100)] | None = None
    top_k: Annotated[int, Ge(0)] | None = None
    top_p: Annotated[float, Gt(0), Le(1)] | None = None
    min_p: Annotated[float, Ge(0), Le(1)] | None = None
    repetition_penalty: Annotated[float, Gt(0), Le(100)] | None = None
    num_hypotheses: Count | None = None
    seed: Seed | None = None
    stop: Stop = None
    stream: bool = False

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, one a text or a list of ids."""
        texts: Any = self.texts
        return [texts] if isinstance(texts, str) or (texts and isinstance(texts[0], int)) else list(texts)

    @property
    def decode(self) -> dict[str, Any]:
        """The settings of decoding that the request changes, but its length."""
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "num_hypotheses")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class FillMaskRequest(Asked):
    """`POST /api/fill-mask`."""

    run: str | None = None
    texts: Texts
    top: Annotated[int, Ge(1), Le(20)] = 5


class ClassifyRequest(Asked):
    """`POST /api/classify`."""

    run: str | None = None
    texts: str | list[str | Annotated[list[str], MinLen(2), MaxLen(2)]]


class EmbedRequest(Asked):
    """`POST /api/embed`."""

    run: str | None = None
    texts: Texts


class AttentionRequest(Asked):
    """`POST /api/attention`."""

    run: str | None = None
    source: str
    target: str | None = None
    """The translation or the continuation; None for an encoder alone."""


# OpenAI's interface -------------------------------------------------------------------------------------------------------


class StreamOptions(Asked):
    """Options of a stream."""

    include_usage: bool = False


class Sampled(Asked):
    """The fields that completions and chats share."""

    model: str
    temperature: Annotated[float, Ge(0), Le(100)] | None = None
    top_p: Annotated[float, Gt(0), Le(1)] | None = None
    top_k: Annotated[int, Ge(0)] | None = None
    min_p: Annotated[float, Ge(0), Le(1)] | None = None
    repetition_penalty: Annotated[float, Gt(0), Le(100)] | None = None
    n: Count | None = None
    seed: Seed | None = None
    stop: Stop = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    frequency_penalty: Zero = None
    presence_penalty: Zero = None
    logit_bias: Annotated[dict[str, float], MaxLen(0)] | None = None
    user: str | None = None
    """Names the client's user; not used."""
    metadata: dict[str, str] | None = None
    """Notes of the client's; not used."""

    def generation(self, texts: Any, max_new_tokens: int | None) -> GenerateRequest:
        """Returns the request in our terms."""
        return GenerateRequest(
            run=self.model,
            texts=texts,
            max_new_tokens=max_new_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            num_hypotheses=None if self.n == 1 else self.n,
            seed=self.seed,
            stop=self.stop,
            stream=bool(self.stream),
        )


class CompletionRequest(Sampled):
    """`POST /v1/completions`."""

    prompt: Texts | list[int] | list[list[int]]
    max_tokens: Count | None = None
    best_of: Annotated[int, Ge(1), Le(1)] | None = None
    echo: Literal[False] | None = None
    logprobs: None = None
    suffix: Literal[""] | None = None


class TextPart(Asked):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A message of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    def as_dict(self) -> dict[str, str]:
        """Returns the message as templates read it."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": text} | ({} if self.name is None else {"name": self.name})


class ChatRequest(Sampled):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], MinLen(1), MaxLen(1000)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: Literal[False] | None = None
    top_logprobs: None = None
    tools: Annotated[list[Any], MaxLen(0)] | None = None
    documents: list[dict[str, Any]] | None = None
    """Texts for templates that read them."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    """Whether the answer goes on with the last message, in place of a new one."""

    @property
    def template_options(self) -> dict[str, Any]:
        """The fields that the chat template reads. Raises: Refusal for two that exclude each other."""
        if self.continue_final_message and self.add_generation_prompt:
            raise Refusal(422, "continue_final_message and add_generation_prompt are both true: leave one of them out")
        begins = not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt
        return {
            "documents": self.documents,
            "add_generation_prompt": begins,
            "continue_final_message": self.continue_final_message,
        }


class EmbeddingsRequest(Asked):
    """`POST /v1/embeddings`."""

    model: str
    input: Texts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Count | None = Field(default=None)
    user: str | None = None
