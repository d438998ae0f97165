"""Conversations as other programs write them. Oracle: the same conversation, worked by hand in the form of templates."""

import json
from typing import Any

import pytest

from flaxformer_lite.files.chats.messages import Conversation

USER = {"role": "user", "content": "How warm?"}
ARGUMENTS = {"city": "Paris", "metric": False, "days": 0, "note": ""}
CALL = {"type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "21"}
ANSWER = {"role": "assistant", "content": "Warm."}
CHAT = [USER, CALLING, RESULT, ANSWER]
THINKING = {"role": "assistant", "content": "Warm.", "reasoning_content": "It is July."}
THOUGHT = {"role": "assistant", "content": "<think>\nIt is July.\n</think>Warm."}
IN_PARTS = {"type": "text", "text": "How warm?"}
IN_JSON = json.dumps(ARGUMENTS)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (CHAT, CHAT),
        (json.dumps(CHAT), CHAT),
        ({"role": ["user", "assistant"], "content": ["How warm?", "Warm."], "name": [None, None]}, [USER, ANSWER]),
        (
            [
                {"from": "human", "value": "How warm?"},
                {"from": "function_call", "value": json.dumps({"name": "weather", "arguments": ARGUMENTS})},
                {"from": "observation", "value": "21"},
                {"from": "gpt", "value": "Warm."},
            ],
            CHAT,
        ),
        (
            [
                {"role": "User", "content": [{"type": "text", "text": "How warm?", "image_url": None}]},
                {"role": "model", "content": None, "function_call": {"name": "weather", "arguments": IN_JSON}},
                {"role": "Tool", "content": "21"},
                {"role": "assistant", "parts": [{"text": "Warm."}]},
            ],
            [
                {"role": "user", "content": [{"type": "text", "text": "How warm?"}]},
                CALLING,
                RESULT,
                {"role": "assistant", "content": [{"type": "text", "text": "Warm."}]},
            ],
        ),
        (
            [
                USER,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "weather", "input": ARGUMENTS}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "21"}]},
                {"role": "assistant", "content": "Warm.", "cache_control": {"type": "ephemeral"}},
            ],
            [USER, CALLING | {"tool_calls": [{"id": "1"} | CALL]}, RESULT | {"tool_call_id": "1"}, ANSWER],
        ),
        (
            [USER, ANSWER | {"refusal": None, "audio": None, "annotations": [], "tool_calls": None, "function_call": None}],
            [USER, ANSWER],
        ),
        ([USER, {"role": "assistant", "content": None, "refusal": "Warm."}], [USER, ANSWER]),
        ([USER, {"role": "assistant", "content": None, "tool_calls": [{"name": "weather", "arguments": IN_JSON}]}], CHAT[:2]),
        ([USER, ANSWER | {"reasoning": "It is July."}], [USER, THINKING]),
        ([USER, ANSWER | {"thinking": "It is July.", "reasoning_content": "It is July."}], [USER, THINKING]),
        ([USER, ANSWER | {"reasoning": "", "thinking": "It is July."}], [USER, THINKING]),
        ([USER, THOUGHT | {"reasoning": "It is July."}], [USER, THOUGHT]),
        ([USER, THINKING | {"content": "So </think> ends it"}], [USER, THINKING | {"content": "So </think> ends it"}]),
        ([USER | {"content": [IN_PARTS | {"thinking": ""}]}, ANSWER], [USER | {"content": [IN_PARTS]}, ANSWER]),
        ([USER, ANSWER | {"content": ""}], [USER, ANSWER | {"content": ""}]),
        ([USER, ANSWER | {"train": False}], [USER, ANSWER | {"weight": 0}]),
        ([USER | {"weight": 0}, ANSWER | {"weight": 1.0}], [USER | {"weight": 0}, ANSWER | {"weight": 1}]),
        ([USER | {"name": "", "rank": 0}, ANSWER | {"rank": None}], [USER | {"name": "", "rank": 0}, ANSWER]),
    ],
)  # fmt: skip
def test_every_spelling_is_the_same_conversation(given: Any, wanted: list[Any]):
    found = Conversation.of(given)
    assert found.messages == wanted
    assert Conversation.of_pair("", found.text) == found


def test_nulls_of_a_struct_are_no_fields_and_those_in_json_are_values():
    """At every depth, also in calls and schemas. A null in a list, or in a text that is JSON, is a value of its own."""
    call = {"function": {"name": "f", "arguments": {"a": None, "b": {"c": None, "d": [None, 1]}}}, "id": None}
    schema = {"name": "f", "parameters": {"properties": {"a": None, "b": {"enum": ["x", None], "default": None}}}}
    found = Conversation.of([USER, {"role": "assistant", "content": None, "tool_calls": [call]}], [schema])
    assert found.messages[1]["tool_calls"][0]["function"]["arguments"] == {"b": {"d": [None, 1]}}
    assert found.tools == [{"name": "f", "parameters": {"properties": {"b": {"enum": ["x", None]}}}}]
    asked = [USER, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": '{"a": null}'}]}]
    read = Conversation.of(asked)
    assert read.messages[1]["tool_calls"][0]["function"]["arguments"] == {"a": None}
    assert Conversation.of_pair("", read.text) == read


def test_what_stands_beside_the_messages_belongs_to_them():
    tools = [{"name": "f"}]
    for record in (
        {"tools": tools},
        {"tools": json.dumps(tools)},
        {"functions": tools},
        {"tools": [json.dumps(tools[0])]},
    ):
        assert Conversation.of_record(record, [USER, ANSWER]) == ([USER, ANSWER], tools)
    assert Conversation.of_record({"system": "S", "tools": ""}, [USER]) == (
        [{"role": "system", "content": "S"}, USER],
        None,
    )
    cell = json.dumps({"id": 7, "conversations": [USER], "system": "S", "tools": tools})
    assert Conversation.of_pair("", cell) == ([{"role": "system", "content": "S"}, USER], tools)
    parts = [{"type": "text", "text": "S"}]
    assert Conversation.of_record({"system": parts}, [USER]).messages[0] == {"role": "system", "content": "S"}
    with pytest.raises(ValueError, match="the field system is '5': it must be a string"):
        Conversation.of_record({"system": 5}, [USER])
    with pytest.raises(ValueError, match="two fields system, which differ"):
        Conversation.of_record({"system": "S"}, {"messages": [USER], "system": "T"})
    with pytest.raises(ValueError, match="system and the first message are two system prompts"):
        Conversation.of_record({"system": "S"}, [{"role": "system", "content": "T"}, USER])


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "part of the type 'image_url'",
        ),
        ({"role": "user", "content": [{"type": "text", "text": "a", "weight": 0}]}, "a part with the field 'weight'"),
        ({"role": "user", "content": [{"type": "text"}]}, "a part without text"),
        (
            {"role": "assistant", "content": [{"type": "tool_use", "name": "f", "seed": 1}]},
            "a part with the field 'seed'",
        ),
        ({"role": "user", "content": [{"type": "tool_result", "content": "a", "is_error": True}]}, "is_error true"),
        ({"role": "user", "content": {"a": "b"}}, "must be a string, or a list of parts"),
        ({"role": "user", "from": "gpt", "content": "a"}, "has role and from, which differ"),
        ({"role": "user", "content": "a", "value": "b"}, "has content and value, which differ"),
        ({"role": "assistant", "content": "a", "weight": 0.5}, "weight of message 1 is 0.5: it must be 0 or 1"),
        ({"role": "user", "content": "a", "weight": 1}, "only an answer may have 1"),
        ({"role": "assistant", "content": "a", "refusal": "b"}, "a content and a refusal"),
        ({"role": "assistant", "content": None, "audio": {"id": "1"}}, "has audio"),
        ({"role": "assistant", "content": None}, "an answer without content, calls or reasoning"),
        ({"role": "assistant", "tool_calls": []}, "an answer without content, calls or reasoning"),
        ({"role": "assistant", "content": []}, "an answer without content, calls or reasoning"),
        (
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "a"}], "reasoning": "b"},
            "has reasoning and a part with reasoning, which differ",
        ),
        (
            {"role": "assistant", "content": "c", "reasoning": "a", "thinking": "b"},
            "has reasoning and thinking, which differ",
        ),
        (
            {"role": "assistant", "content": " <think>a</think>c", "thinking": "b"},
            "has thinking and <think> in its content, which differ",
        ),
        (
            {"role": "assistant", "content": [{"type": "thinking", "text": "a"}, {"text": "<think>b</think>"}]},
            "has a part with reasoning and <think> in its content, which differ",
        ),
        (
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "a", "text": "b"}]},
            "thinking and text, which differ",
        ),
        (
            {"role": "assistant", "content": [{"type": "text", "text": "a", "thinking": "b"}]},
            "a part with the field 'thinking'",
        ),
        (
            {"role": "assistant", "content": [{"type": "text", "text": "a", "refusal": "b"}]},
            "a part with the field 'refusal'",
        ),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}, "a call without the name of a function"),
        ({"role": "assistant", "content": None, "tool_calls": 3}, "must be a list of objects"),
        ({"content": "a"}, "must be an object with role and content"),
        ({"from": ["human"], "value": "a"}, "must be an object with role and content"),
        ({"role": None, "content": "a"}, "must be an object with role and content"),
    ],
)
def test_what_is_neither_read_nor_silent_is_refused(message: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        Conversation.of([message])


def test_columns_of_unequal_length_are_no_messages():
    """A row would be cut off."""
    with pytest.raises(ValueError, match="is not a list of messages"):
        Conversation.of({"role": ["user", "assistant", "user"], "content": ["a", "b"]})
