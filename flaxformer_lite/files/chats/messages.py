"""Conversations as other programs write them, read into one form: of files, of tables, and of requests.

| what is read | its other spellings |
|---|---|
| `role` | `from`; its values in `ROLE_NAMES`, in any case |
| `content` | `value`, `text`, `parts`; a refusal; a list of parts; null |
| `reasoning_content` | `reasoning`, `thinking`, and parts of these types; one that equals `<think>` in the content counts once |
| `tool_calls` | `function_call`, parts `tool_use`, the role `function_call`; arguments as an object or as JSON |
| a message with the role `tool` | from `function` or `observation`, parts `tool_result` |
| `weight` 0 | `train`, `training` or `loss`, 0 or false: the answer does not count |

Fields that are null count as absent at every depth, since a column of structs has the fields of all rows. Further fields go to the
template unchanged; `ChatTemplate.fitted` finds out whether it reads them.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flaxformer_lite.files.text.files import in_utf8

Message = dict[str, Any]

ROLE_NAMES = {
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bot", "model", "ai"), "assistant"),
    **dict.fromkeys(("tool_response", "function_response"), "tool"),
    **{role: role for role in ("system", "developer", "user", "assistant", "tool")},
}
"""The roles of templates by the names that others have for them, in lower case."""
SHAREGPT_ROLES = {"function": "tool", "observation": "tool"}
"""Further names of roles in `from`. Some templates know them as a `role`."""
CALLING_ROLES = ("function_call", "tool_call")
"""Roles of messages whose content is a call in JSON."""
SPELLINGS = {
    "role": ("role", "from"),
    "content": ("content", "value", "text", "parts"),
    "reasoning_content": ("reasoning_content", "reasoning", "thinking"),
    "weight": ("weight", "train", "training", "loss"),
}
"""The names of each field of a message."""
BESIDE = ("tools", "functions", "system")
"""Fields of a record that belong to its messages."""
PART_FIELDS = {
    **dict.fromkeys(("text", "input_text", "output_text"), ("text",)),
    "refusal": ("refusal",),
    **dict.fromkeys(("thinking", "reasoning"), ("thinking", "text")),
    "tool_use": ("name", "input"),
    "tool_result": ("tool_use_id", "content", "is_error"),
}
"""The fields that are read of a part, by its type. A field of another type may be present without a value."""
ALL_PART_FIELDS = set(itertools.chain.from_iterable(PART_FIELDS.values()))
SILENT = ("annotations", "cache_control", "citations", "id", "index", "signature")
"""Fields of messages and parts that belong to no text: notes of the program that wrote them."""


class Conversation(NamedTuple):
    """Messages as templates read them, and the tools that the assistant may call."""

    messages: list[Message]
    tools: list[Any] | None = None

    @classmethod
    def of(cls, messages: object, tools: object = None) -> "Conversation":
        """Returns a conversation from the fields of a record, of a request, or of JSON. Raises: ValueError if it is not one."""
        return cls.read(without_nulls(messages), without_nulls(tools))

    @classmethod
    def of_record(cls, record: Mapping[str, object], messages: object) -> "Conversation":
        """Returns the conversation of a record, with its fields of `BESIDE`. Raises: ValueError if it is not one."""
        tools, functions, system = (without_nulls(record.get(field)) for field in BESIDE)
        return cls.read(without_nulls(messages), tools or functions, system)

    @classmethod
    def read(cls, messages: object, tools: object = None, system: object = None) -> "Conversation":
        """Returns the conversation; nulls inside it are kept. Raises: ValueError if it is not one."""
        given = value_in_json(messages)
        if isinstance(given, Mapping):
            field = next((name for name in ("messages", "conversations") if name in given), None)
            if field is not None:
                own_tools, functions, own_system = (given.get(name) for name in BESIDE)
                if system and own_system and system != own_system:
                    raise ValueError("there are two fields system, which differ: leave one of them out")
                return cls.read(given[field], tools or own_tools or functions, system or own_system)
            given = by_rows(given)
        if not isinstance(given, list) or not given:
            shown = str(messages)[:60]
            raise ValueError(f"{shown!r} is not a list of messages: each is an object with role and content")
        conversation: list[Message] = []
        for number, message in enumerate(given, 1):
            conversation += read_message(message, f"message {number}")
        prompt = "".join(read_parts(system, "the field system").texts)
        if prompt.strip():
            conversation = with_system(conversation, prompt)
        return cls(conversation, read_tools(tools))

    @classmethod
    def of_pair(cls, source: str, target: str) -> "Conversation":
        """Returns a question with its answer; without a question, the conversation that the target holds in JSON.

        Raises: ValueError if it is not one.
        """
        if source:
            return cls([{"role": "user", "content": source}, {"role": "assistant", "content": target}])
        try:
            return cls.read(json.loads(target))
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{target[:60]!r} is neither an answer with its question nor a list of messages: {error}"
            ) from None

    @property
    def text(self) -> str:
        """The conversation as a document, in JSON. Raises: ValueError for half a surrogate pair."""
        fields = {name: value for name, value in self._asdict().items() if value}
        return in_utf8(json.dumps(fields, ensure_ascii=False, default=str), "a message")  # a table may have times


def by_rows(columns: Mapping[str, object]) -> object:
    """Returns the messages of an object that has for each field a list of all values, as some libraries read a list of structs."""
    lengths = {len(column) if isinstance(column, list) else -1 for column in columns.values()}
    if len(lengths) != 1 or -1 in lengths:
        return columns
    rows = zip(*columns.values(), strict=True)
    return [without_nulls(dict(zip(columns, row, strict=True))) for row in rows]


def with_system(messages: list[Message], system: str) -> list[Message]:
    """Returns the messages after a system prompt. Raises: ValueError if they have another one."""
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": system}, *messages]
    if messages[0]["content"] != system:
        raise ValueError("the field system and the first message are two system prompts: leave one of them out")
    return messages


def without_nulls(value: object) -> Any:
    """Returns a value without the fields of objects that are None, at every depth."""
    if isinstance(value, Mapping):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(inner) for inner in value]
    return value


def value_in_json(value: object) -> Any:
    """Returns the value of a text in JSON; other values, and texts that are not JSON, unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def read_tools(tools: object) -> list[Any] | None:
    """Returns the tools, a list or one in JSON; None for none. Raises: ValueError for another value."""
    given = value_in_json(tools) if tools else None
    if not given:
        return None
    read = [value_in_json(tool) for tool in given] if isinstance(given, list) else []
    if not read or not all(isinstance(tool, Mapping) for tool in read):
        raise ValueError(f"tools are {str(tools)[:60]!r}: they must be a list of objects, or one in JSON")
    return read


def read_message(raw: object, name: str) -> list[Message]:
    """Returns a message in the form of templates, after the answers of tools that it contains. Raises: ValueError."""
    if not isinstance(raw, Mapping):
        raise ValueError(f"{str(raw)[:60]!r} is not a message: it must be an object with role and content")
    given = {field: value for field, value in raw.items() if value is not None and field not in SILENT}
    if "role" not in given and isinstance(given.get("from"), str):
        given["from"] = SHAREGPT_ROLES.get(given["from"], given["from"])
    role = take(given, "role", name)
    if not isinstance(role, str):
        raise ValueError(f"{str(raw)[:60]!r} is not a message: it must be an object with role and content")
    content = take(given, "content", name)
    calling = role.lower() in CALLING_ROLES
    if calling:
        content, given["function_call"] = None, value_in_json(content)
    parts = read_parts(content, name)
    texts = parts.texts
    refusal = given.pop("refusal", None)
    if refusal:
        if any(texts) or not isinstance(refusal, str):
            raise ValueError(f"{name} has a content and a refusal {str(refusal)[:60]!r}: leave one of them out")
        texts = [refusal]
    message: Message = {"role": "assistant" if calling else ROLE_NAMES.get(role.lower(), role)}
    if not texts:
        message["content"] = ""
    elif len(texts) == 1 and (refusal or not isinstance(content, list)):
        message["content"] = texts[0]
    else:
        message["content"] = [{"type": "text", "text": text} for text in texts]
    thought = opening_thought("".join(texts))
    in_content = {"a part with reasoning": "".join(parts.reasoning), "<think> in its content": thought}
    reasoning = take(given, "reasoning_content", name, in_content)
    if reasoning and not thought:  # a thought in the content is not repeated
        message["reasoning_content"] = reasoning
    calls = read_calls(given, name) + parts.calls
    if calls:
        message["tool_calls"] = calls
    weight = take(given, "weight", name)
    if weight is not None:
        if weight not in (0, 1) or (weight and message["role"] != "assistant"):
            raise ValueError(f"the weight of {name} is {weight!r}: it must be 0 or 1, and only an answer may have 1")
        message["weight"] = int(weight)
    if given.pop("audio", None):
        raise ValueError(f"{name} has audio, which cannot be read: leave it out, or give its text as content")
    says_nothing = not (texts or reasoning or calls or parts.results)  # an empty text is an answer that somebody wrote
    if message["role"] == "assistant" and says_nothing:
        raise ValueError(f"{name} is an answer without content, calls or reasoning: leave it out, or give its content")
    rest = [] if parts.results and not texts else [message | given]
    return [*parts.results, *rest]


def take(fields: Message, field: str, name: str, elsewhere: Mapping[str, str] = {}) -> Any:
    """Removes a field in all of its spellings, and returns its value. Raises: ValueError if two of them differ.

    elsewhere: values of the same field that stand in other places of the message, by the names of the places; empty: none.
    """
    there = {spelling: fields.pop(spelling) for spelling in SPELLINGS[field] if spelling in fields}
    there |= {place: value for place, value in elsewhere.items() if value}
    if field == "reasoning_content":
        there = {place: value for place, value in there.items() if value}
    values = list(there.values())
    if len(values) > 1 and field == "role":
        values = [ROLE_NAMES.get(str(value).lower(), value) for value in values]
    if len(values) > 1 and field == "content":
        values = ["".join(read_parts(value, name).texts) for value in values]
    if len(values) > 1 and field == "reasoning_content":
        values = [value.strip() if isinstance(value, str) else value for value in values]
    if any(value != values[0] for value in values):
        raise ValueError(f"{name} has {' and '.join(there)}, which differ: leave out all but one")
    return next(iter(there.values()), None)


def opening_thought(text: str) -> str:
    """Returns the text between `<think>` and `</think>` at the beginning of a text; empty without both."""
    head, end, _ = text.partition("</think>")
    head = head.lstrip()
    return head.removeprefix("<think>").strip() if end and head.startswith("<think>") else ""


class Parts(NamedTuple):
    """The parts of the content of a message."""

    texts: list[str]
    reasoning: list[str]
    calls: list[Message]
    results: list[Message]
    """Answers of tools, as messages."""


def read_parts(content: object, name: str) -> Parts:
    """Returns the parts of a content. Raises: ValueError for one that is not text, such as a picture."""
    parts = Parts([], [], [], [])
    if isinstance(content, str):
        parts.texts.append(content)
        return parts
    if content is not None and not isinstance(content, list):
        raise ValueError(f"the content of {name} is {str(content)[:60]!r}: it must be a string, or a list of parts")
    for item in content or []:
        fields: Message = {"type": "text", "text": item} if isinstance(item, str) else without_nulls(item or {})
        kind = fields.get("type", "text") if isinstance(fields, Mapping) else type(item).__name__
        match kind:
            case "text" | "input_text" | "output_text" | "refusal":
                text = fields.get("refusal" if kind == "refusal" else "text")
                into = parts.texts
            case "thinking" | "reasoning":
                text = fields.get("thinking", fields.get("text"))
                into = parts.reasoning
                if fields.get("text", text) not in (text, ""):
                    raise ValueError(f"{name} has a part with thinking and text, which differ: leave one of them out")
            case "tool_use":
                parts.calls.append(read_call(fields, name))
                text, into = "", []
            case "tool_result":
                result = "".join(read_parts(fields.get("content"), name).texts)
                answered = {"tool_call_id": fields["tool_use_id"]} if "tool_use_id" in fields else {}
                parts.results.append({"role": "tool", "content": result, **answered})
                text, into = "", []
            case _:
                raise ValueError(f"{name} has a part of the type {kind!r}: only parts with text are read")
        others = set(fields).difference(PART_FIELDS[kind], SILENT, ("type",))
        unread = sorted(field for field in others if fields[field] or field not in ALL_PART_FIELDS)
        if unread:
            raise ValueError(f"{name} has a part with the field {unread[0]!r}, which is not read: leave it out")
        if fields.get("is_error"):
            raise ValueError(f"{name} has a part with is_error true, which no template tells: say it in its content")
        if not isinstance(text, str):
            raise ValueError(f"{name} has a part without text, {str(item)[:60]!r}: give it one")
        into.append(text)
    return parts


def read_calls(fields: Message, name: str) -> list[Message]:
    """Removes the calls from the fields of a message, and returns them. Raises: ValueError for one without a name."""
    calls = value_in_json(fields.pop("tool_calls", None))
    if isinstance(calls, Mapping):
        calls = [calls]
    calls = calls or []
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise ValueError(f"the calls of {name} are {str(calls)[:60]!r}: they must be a list of objects")
    more = value_in_json(fields.pop("function_call", None)) or []
    if not isinstance(more, list):
        more = [more]
    return [read_call(call, name) for call in [*calls, *more]]


def read_call(call: object, name: str) -> Message:
    """Returns a call as an object with `function`. Its arguments are an object if they are JSON of one."""
    fields = value_in_json(call)
    function = fields.get("function", fields) if isinstance(fields, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(f"{name} has a call without the name of a function: {str(call)[:60]!r}")
    given: object = next((function[key] for key in ("arguments", "parameters", "input") if key in function), {})
    arguments = {} if given == "" else value_in_json(given)
    if not isinstance(arguments, Mapping):
        arguments = given
    named = {} if fields.get("id") is None else {"id": fields["id"]}
    return {**named, "type": "function", "function": {"name": function["name"], "arguments": arguments}}
