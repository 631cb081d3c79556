"""What clients may send, as `wire.request`, `wire.history` and `wire.chat_request` read it."""

from __future__ import annotations

from gateway.http.openapi.shapes import (
    ANYTHING,
    BOOLEAN,
    OBJECT,
    STRING,
    Schema,
    array,
    either,
    nullable,
    number,
    one_of,
    record,
    ref,
    sendable,
    text,
    whole,
)
from gateway.wire.history import OPAQUE_TYPES, ROLES, TEXT_PARTS
from gateway.wire.request import REASONING_EFFORTS

_NAME: Schema = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}
_ID = text(1, 1024)
_MODES = one_of("none", "auto", "required")
_VERBOSITY = one_of("low", "medium", "high")
_METADATA: Schema = {
    "type": "object",
    "maxProperties": 16,
    "propertyNames": {"maxLength": 64},
    "additionalProperties": text(0, 512),
}
_NULL: Schema = {"type": "null"}
_NEVER: Schema = {**_NULL, "description": "Not supported; anything but null is a 400."}


def _sent(*names: str) -> Schema:
    """The fields are there, and not null."""
    return {"required": list(names), "properties": {one: {"not": _NULL} for one in names}}


_TEXT_PART = record({"type": one_of(*TEXT_PARTS), "text": STRING})
_PARTS = [
    _TEXT_PART,
    record({"type": one_of("refusal"), "refusal": STRING}),
    record(
        {"type": one_of("input_image"), "image_url": STRING},
        {"file_id": nullable(STRING), "detail": nullable(STRING)},
    ),
    record({"type": one_of("input_image"), "file_id": STRING}, {"detail": nullable(STRING)}),
    *(
        record({"type": one_of("input_file"), source: STRING}, {"filename": nullable(STRING)})
        for source in ("file_data", "file_url", "file_id")
    ),
    record({"type": one_of("input_audio"), "input_audio": OBJECT}),
    record({"type": one_of("input_video"), "video_url": STRING}),
]
_CONTENT = either(STRING, array(ref("InputPart")))
_ITEM_ID = {"id": STRING}

_ITEMS = {
    "InputMessage": sendable(
        {"role": one_of(*ROLES), "content": _CONTENT}, {"type": one_of("message"), **_ITEM_ID}
    ),
    "InputFunctionCall": sendable(
        {"type": one_of("function_call"), "call_id": _ID, "name": _ID},
        {"arguments": ANYTHING, **_ITEM_ID},
    ),
    "InputFunctionCallOutput": sendable(
        {"type": one_of("function_call_output"), "call_id": _ID, "output": _CONTENT}, _ITEM_ID
    ),
    "InputReasoning": sendable(
        {"type": one_of("reasoning")},
        {"summary": array(record({"text": STRING})), "encrypted_content": STRING, **_ITEM_ID},
    ),
    "ItemReference": either(
        record({"type": one_of("item_reference"), "id": _ID}),
        {**sendable({"id": _ID}, {"type": _NULL}), "additionalProperties": False},
    ),
    "InputCompaction": sendable(
        {
            "type": one_of("compaction"),
            "encrypted_content": {
                "type": "string",
                "description": "What `POST /v1/responses/compact` gave, unchanged.",
            },
        },
        _ITEM_ID,
    ),
    "InputOfBuiltInTool": sendable({"type": one_of(*OPAQUE_TYPES)}, _ITEM_ID),
}
_INPUT_ITEMS = array(ref("InputItem"))

_TEXT_FORMAT = either(
    record({"type": one_of("text", "json_object")}),
    sendable(
        {"type": one_of("json_schema"), "name": _NAME, "schema": OBJECT},
        {"description": STRING, "strict": BOOLEAN},
    ),
)
_NOT_FUNCTION: Schema = {"type": "string", "not": {"enum": ["function", "allowed_tools"]}}
_TOOL = either(
    sendable(
        {"type": one_of("function"), "name": _NAME},
        {"description": STRING, "parameters": OBJECT, "strict": BOOLEAN},
    ),
    sendable({"type": _NOT_FUNCTION}, {"name": STRING}),
)
_TOOL_CHOICE = either(
    _MODES,
    record({"type": one_of("function"), "name": STRING}),
    sendable({"type": one_of("allowed_tools"), "tools": array(ANYTHING)}, {"mode": _MODES}),
    record({"type": _NOT_FUNCTION}),
)

_SAMPLING = {
    "frequency_penalty": number(-2, 2),
    "presence_penalty": number(-2, 2),
    "temperature": number(0, 2),
    "top_logprobs": whole(0, 20),
    "top_p": number(0, 1),
}
_SHARED = {
    **_SAMPLING,
    "metadata": _METADATA,
    "n": {"const": 1},
    "parallel_tool_calls": BOOLEAN,
    "prompt_cache_key": text(0, 1024),
    "prompt_cache_retention": one_of("in_memory", "in-memory", "24h"),
    "safety_identifier": text(0, 1024),
    "service_tier": one_of("auto", "default", "flex", "scale", "priority", "fast", "ultrafast"),
    "store": BOOLEAN,
    "stream": BOOLEAN,
    "stream_options": OBJECT,
    "user": STRING,
}
_CREATE = sendable(
    {"model": _ID},
    {
        **_SHARED,
        "background": BOOLEAN,
        "conversation": either(_ID, record({"id": _ID})),
        "include": array(STRING),
        "input": either(STRING, _INPUT_ITEMS),
        "instructions": STRING,
        "max_output_tokens": whole(1),
        "max_tool_calls": whole(1),
        "previous_response_id": _ID,
        "reasoning": sendable(
            {},
            {
                "effort": one_of(*REASONING_EFFORTS),
                "summary": one_of("auto", "concise", "detailed"),
            },
        ),
        "text": sendable({}, {"format": _TEXT_FORMAT, "verbosity": _VERBOSITY}),
        "tool_choice": _TOOL_CHOICE,
        "tools": array(_TOOL),
        "truncation": one_of("auto", "disabled"),
    },
)
_CREATE["properties"]["prompt"] = _NEVER
_CREATE["description"] = (
    "The fields of `responses.create`; null stands for not sent, unknown ones are taken."
)
_CREATE["anyOf"] = [_sent("input"), _sent("previous_response_id"), _sent("conversation")]
_CREATE["not"] = either(
    _sent("previous_response_id", "conversation"),
    {
        "required": ["background", "store"],
        "properties": {"background": {"const": True}, "store": {"const": False}},
    },
)

_CHAT_PARTS = either(
    record({"type": one_of("text"), "text": STRING}),
    record({"type": one_of("image_url"), "image_url": record({"url": STRING})}),
)
_CHAT_CONTENT = either(STRING, array(_CHAT_PARTS))
_CHAT_CALL = record(
    {
        "id": _ID,
        "type": one_of("function"),
        "function": record({"name": _ID, "arguments": STRING}),
    }
)
_CHAT_MESSAGE = either(
    record({"role": one_of("system", "developer", "user"), "content": _CHAT_CONTENT}),
    sendable({"role": one_of("assistant"), "content": STRING}, {"tool_calls": array(_CHAT_CALL)}),
    record({"role": one_of("tool"), "tool_call_id": _ID, "content": STRING}),
)
_CHAT = sendable(
    {"model": _ID, "messages": {**array(ref("ChatMessage")), "minItems": 1}},
    {
        **_SHARED,
        "logprobs": BOOLEAN,
        "max_completion_tokens": whole(1),
        "reasoning_effort": one_of(*REASONING_EFFORTS),
        "response_format": either(
            record({"type": one_of("text", "json_object")}),
            record({"type": one_of("json_schema"), "json_schema": sendable({"name": _NAME}, {})}),
        ),
        "seed": whole(-(2**63), 2**63 - 1),
        "stop": either(STRING, array(STRING)),
        "tools": array(
            record({"type": one_of("function"), "function": sendable({"name": _NAME}, {})})
        ),
        "verbosity": _VERBOSITY,
    },
)
for _field in ("functions", "function_call"):
    _CHAT["properties"][_field] = _NEVER

REQUESTS: dict[str, Schema] = {
    "InputPart": either(*_PARTS),
    **_ITEMS,
    "InputItem": either(*(ref(name) for name in _ITEMS)),
    "CreateResponse": _CREATE,
    "CountInputTokens": {
        **{key: value for key, value in _CREATE.items() if key not in ("required", "anyOf")},
        "properties": {**_CREATE["properties"], "model": nullable(_ID)},
    },
    "ChatMessage": _CHAT_MESSAGE,
    "CreateChatCompletion": _CHAT,
    "CreateConversation": sendable({}, {"items": _INPUT_ITEMS, "metadata": _METADATA}),
    "UpdateConversation": record({"metadata": nullable(_METADATA)}),
    "CreateItems": record({"items": _INPUT_ITEMS}),
    "Answer": {
        "type": "object",
        "minProperties": 1,
        "description": "An answer as it is, or under `output` what a function_call_output has.",
        "examples": [{"action": "approve"}, {"output": "reject"}],
    },
}
"""The schemas of requests, by their names in the document."""
