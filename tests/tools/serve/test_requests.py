"""Oracle: by hand. A request of another shape is answered with its field and the legal values, never with pydantic's own words."""

import json
from typing import Any

import pytest

pytest.importorskip("pydantic")
from flaxformer_lite.tasks.classify.answers import Classify
from flaxformer_lite.tools.serve.limits import Refusal
from flaxformer_lite.tools.serve.requests import (
    Asked,
    ChatRequest,
    CompletionRequest,
    GenerateRequest,
    TaskShape,
    parse,
)

TEXT_OR_LIST = "Input should be a valid string or Input should be a valid array"
GENERATE: dict[str, Any] = {"texts": "a"}
COMPLETE: dict[str, Any] = {"model": "m", "prompt": "a"}


def chat(content: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize(
    ("shape", "body", "said"),
    [
        (GenerateRequest, GENERATE | {"stop": 5}, f"stop: {TEXT_OR_LIST}"),
        (CompletionRequest, COMPLETE | {"stop": {"str": "x"}}, f"stop: {TEXT_OR_LIST}"),
        (GenerateRequest, GENERATE | {"stop": [1]}, "stop.0: Input should be a valid string"),
        (
            GenerateRequest,
            GENERATE | {"stop": ["a"] * 17},
            "stop: Input should be a valid string or List should have at most 16 items after validation, not 17",
        ),
        (CompletionRequest, COMPLETE | {"prompt": 5}, f"prompt: {TEXT_OR_LIST}"),
        (CompletionRequest, COMPLETE | {"prompt": [[1, "a"]]}, "prompt.0.1: Input should be a valid integer"),
        (CompletionRequest, COMPLETE | {"seed": -1}, "seed: Input should be greater than or equal to 0"),
        (ChatRequest, chat(5), "messages: the content of message 1 is '5': it must be a string, or a list of parts"),
        (
            ChatRequest,
            chat([{"type": "image", "text": "a"}]),
            "messages: message 1 has a part of the type 'image': only parts with text are read",
        ),
        (
            ChatRequest,
            chat([{"type": "text"}]),
            "messages: message 1 has a part without text, \"{'type': 'text'}\": give it one",
        ),
        (
            TaskShape(Classify()).request,
            {"texts": [["a"]]},
            "texts.0: Input should be a valid string or List should have at least 2 items after validation, not 1",
        ),
        (GenerateRequest, GENERATE | {"sotp": "x"}, "sotp is not supported: leave it out; perhaps you meant stop"),
        (GenerateRequest, [], "the body: Input should be an object"),
    ],
)
def test_a_wrong_field_is_named_as_the_client_wrote_it(shape: type[Asked], body: Any, said: str):
    with pytest.raises(Refusal) as refused:
        parse(shape, json.dumps(body).encode())
    assert str(refused.value) == said
    assert refused.value.status == 422 and refused.value.param in (None, said.partition(":")[0].partition(" ")[0])
