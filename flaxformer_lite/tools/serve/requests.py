"""The shapes of requests: of the server's own endpoints, and of OpenAI's interface. Unknown and unsupported fields are errors."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import PydanticCustomError

from flaxformer_lite.core.base.bounds import NonNegativeInt, PositiveInt, PositiveShare, Share
from flaxformer_lite.core.base.suggest import suggest
from flaxformer_lite.files.chats.messages import Conversation
from flaxformer_lite.tasks.task import Task, Text
from flaxformer_lite.tools.serve.limits import Refusal

Texts = Text | list[Text]
"""One text, or several."""
Prompts = Texts | list[int] | list[list[int]]
"""One prompt or several, as texts or token ids."""
Code = Annotated[str, MaxLen(100)]
"""The code of a language."""


def neutral(*values: object) -> AfterValidator:
    """Returns the check of a field that the server does not have: null and these values, which ask for nothing, are accepted."""

    def check(value: object) -> Any:
        if value is not None and not any(value == one and type(value) in (type(one), int) for one in values):
            raise PydanticCustomError("unsupported", "it is not supported: leave it out")
        return value

    return AfterValidator(check)


def read_messages(messages: list[dict[str, object]]) -> list[dict[str, object]]:
    """Returns messages in the form of templates."""
    try:
        return Conversation.of(messages).messages
    except ValueError as error:
        raise PydanticCustomError("messages", "{reason}", {"reason": str(error)}) from None


class Asked(BaseModel):
    """Base of all requests."""

    model_config = ConfigDict(extra="forbid", strict=True)


RequestT = TypeVar("RequestT", bound=Asked)


def parse(shape: type[RequestT], body: bytes) -> RequestT:
    """Returns a request. Raises: Refusal for a body that is no JSON (400), or of another shape (422)."""
    try:
        return shape.model_validate_json(body)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False)
        if errors[0]["type"] == "json_invalid":
            raise Refusal(400, f"the body is no JSON: {errors[0]['msg']}") from None
        field = errors[0]["loc"][:1]
        places = [(place(one["loc"]), one) for one in errors if one["loc"][:1] == field]
        path = max((path for path, _ in places), key=len)  # a field of several types has an error for each of them
        here = [one for where, one in places if where == path]
        if here[0]["type"] == "extra_forbidden":
            near = suggest(path[0], shape.model_fields) if len(path) == 1 else ""
            raise Refusal(422, f"{'.'.join(path)} is not supported: leave it out{near}", param=".".join(path)) from None
        message = " or ".join(dict.fromkeys(one["msg"] for one in here))
        raise Refusal(422, f"{'.'.join(path) or 'the body'}: {message}", param=".".join(path) or None) from None


def place(loc: Sequence[int | str]) -> list[str]:
    """Returns the fields and indices of pydantic's place of an error, without the names of types."""
    types = ("str", "int")
    return [str(step) for step in loc if isinstance(step, int) or (step.isidentifier() and step not in types)]


def as_list(texts: Texts | None) -> list[str]:
    return [texts] if isinstance(texts, str) else texts or []


def prompt_list(prompts: Prompts) -> list[str | list[int]]:
    """Returns the prompts, one a text or a list of ids."""
    single = isinstance(prompts, str) or (prompts and isinstance(prompts[0], int))
    return [prompts] if single else list(prompts)  # type: ignore[list-item, arg-type]  # by the types of `Prompts`


class DecodingRequest(Asked):
    """The settings of decoding that a request may change."""

    temperature: Annotated[float, Ge(0), Le(100)] | None = None
    top_k: NonNegativeInt | None = None
    top_p: PositiveShare | None = None
    min_p: Share | None = None
    repetition_penalty: Annotated[float, Gt(0), Le(100)] | None = None
    seed: Annotated[int, Ge(0), Lt(2**32)] | None = None
    stop: str | Annotated[list[str], MaxLen(16)] | None = None

    @property
    def decode(self) -> dict[str, Any]:
        """The settings of `DecodeConfig` and `Sampling` that the request changes."""
        return self.model_dump(include={*DecodingRequest.model_fields} - {"seed", "stop"}, exclude_none=True)

    @property
    def continues(self) -> bool:
        """Whether the answer continues the text of the prompt."""
        return True


# The server's own endpoints -----------------------------------------------------------------------------------------------


class TranslateRequest(Asked):
    """`POST /api/translate`."""

    run: str | None = None
    texts: Texts
    from_: Annotated[Code | None, Field(alias="from")] = None
    to: Code | None = None
    beam_size: PositiveInt | None = None
    num_hypotheses: PositiveInt | None = None
    max_new_tokens: PositiveInt | None = None
    terms: Annotated[dict[Text, Text], MaxLen(10_000)] | None = None
    placeholders: bool = False
    prefix: Text | list[Text] = ""


class GenerateRequest(DecodingRequest):
    """`POST /api/generate`."""

    run: str | None = None
    texts: Prompts
    max_new_tokens: PositiveInt | None = None
    num_hypotheses: PositiveInt | None = None
    stream: bool = False


class TaskShape:
    """The shape of a request to a task: what is asked, by `Task.field`, and the fields of the task, which are its options."""

    def __init__(self, task: Task[Any, Any]) -> None:
        self.task, asked = task, task.asked
        self.parts = getattr(asked, "_fields", ())
        """The fields of what is asked if it is a named tuple."""
        shape: dict[str, Any] = {
            name: (asked.__annotations__[name], asked._field_defaults.get(name, ...)) for name in self.parts
        }
        if task.field:
            one = create_model("one of what is asked", __base__=Asked, **shape) if shape else None
            shape = {task.field: ((one or Text) | list[one or asked], ...)}
        hints = get_type_hints(type(task), include_extras=True)
        shape = {"run": (str | None, None)} | shape
        shape |= {one.name: (hints[one.name], one.default) for one in dataclasses.fields(task)}
        self.request: Any = create_model(task.name, __base__=Asked, __doc__=task.__doc__, **shape)

    def read(self, given: object) -> tuple[Task[Any, Any], list[Any]]:
        """Returns the task with the options of a request, and what the request asks."""
        options = {one.name: getattr(given, one.name) for one in dataclasses.fields(self.task)}
        asked = getattr(given, self.task.field) if self.task.field else given
        asked = asked if isinstance(asked, list) else [asked]
        if self.parts:
            asked = [self.task.asked(*(getattr(one, name) for name in self.parts)) for one in asked]
        return dataclasses.replace(self.task, **options), asked


class AttentionRequest(Asked):
    """`POST /api/attention`."""

    run: str | None = None
    source: str
    target: str | None = None
    """The translation or the continuation; None for an encoder-only model."""
    from_: Annotated[Code | None, Field(alias="from")] = None
    to: Code | None = None


# OpenAI's interface -------------------------------------------------------------------------------------------------------


class StreamOptions(Asked):
    """Options of a stream."""

    include_usage: bool = False


class OpenAIRequest(DecodingRequest):
    """The fields that completions and chats share."""

    model: str
    n: PositiveInt | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    frequency_penalty: Annotated[Any, neutral(0.0)] = None
    presence_penalty: Annotated[Any, neutral(0.0)] = None
    logit_bias: Annotated[Any, neutral({})] = None
    user: str | None = None
    """Names the client's user; not used."""
    metadata: dict[str, str] | None = None
    """Notes of the client's; not used."""


class CompletionRequest(OpenAIRequest):
    """`POST /v1/completions`."""

    prompt: Prompts
    max_tokens: PositiveInt | None = None
    best_of: Annotated[Any, neutral(1)] = None
    echo: Annotated[Any, neutral(False)] = None
    logprobs: Annotated[Any, neutral()] = None
    suffix: Annotated[Any, neutral("")] = None
    from_: Annotated[Code | None, Field(alias="from")] = None
    """The language of the prompt, for a run that translates; OpenAI's clients send it as `extra_body`."""
    to: Code | None = None


class ChatRequest(OpenAIRequest):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[dict[str, Any]], MinLen(1), MaxLen(1000), AfterValidator(read_messages)]
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    logprobs: Annotated[Any, neutral(False)] = None
    top_logprobs: Annotated[Any, neutral()] = None
    tools: Annotated[Any, neutral([])] = None
    documents: list[dict[str, Any]] | None = None
    """Texts for templates that read them."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    """Whether the answer goes on with the last message, in place of a new one."""

    @property
    def continues(self) -> bool:
        return self.continue_final_message


class EmbeddingsRequest(Asked):
    """`POST /v1/embeddings`."""

    model: str
    input: Texts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: PositiveInt | None = None
    prompt: Text | None = None
    """The name of a prompt of the run; OpenAI's clients send it as `extra_body`."""
    user: str | None = None
