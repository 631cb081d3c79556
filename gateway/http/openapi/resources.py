"""What is told, as `wire.items`, `wire.chat` and the routes write it."""

from __future__ import annotations

from gateway.http.openapi.shapes import (
    ANYTHING,
    BOOLEAN,
    INTEGER,
    OBJECT,
    STRING,
    Schema,
    array,
    either,
    nullable,
    one_of,
    record,
    ref,
)

_STATUS = one_of("in_progress", "completed", "incomplete")
_NUMBER: Schema = {"type": "number"}
_TEXTS = {"type": "object", "additionalProperties": STRING}
_OUTPUT_TEXT = record(
    {
        "type": one_of("output_text"),
        "text": STRING,
        "annotations": array(ANYTHING),
        "logprobs": array(ANYTHING),
    }
)
_REFUSAL = record({"type": one_of("refusal"), "refusal": STRING})
_SUMMARY = record({"type": one_of("summary_text"), "text": STRING})
_CALL = {"id": STRING, "status": _STATUS, "call_id": STRING}
_ITEMS = {
    "OutputMessage": record(
        {
            "type": one_of("message"),
            "id": STRING,
            "status": _STATUS,
            "role": one_of("assistant"),
            "content": array(either(_OUTPUT_TEXT, _REFUSAL)),
        }
    ),
    "FunctionCall": record(
        {"type": one_of("function_call"), **_CALL, "name": STRING, "arguments": STRING}
    ),
    "FunctionCallOutput": record(
        {"type": one_of("function_call_output"), **_CALL, "output": either(STRING, array(OBJECT))}
    ),
    "Reasoning": record(
        {
            "type": one_of("reasoning"),
            "id": STRING,
            "status": _STATUS,
            "summary": array(_SUMMARY),
        }
    ),
}

_USAGE = record(
    {
        "input_tokens": INTEGER,
        "input_tokens_details": record({"cached_tokens": INTEGER, "cache_write_tokens": INTEGER}),
        "output_tokens": INTEGER,
        "output_tokens_details": record({"reasoning_tokens": INTEGER}),
        "total_tokens": INTEGER,
    }
)
_ERROR = record(
    {"message": STRING, "type": STRING, "param": nullable(STRING), "code": nullable(STRING)}
)
_RESPONSE = record(
    {
        "id": STRING,
        "object": one_of("response"),
        "created_at": INTEGER,
        "status": one_of("queued", "in_progress", "completed", "incomplete", "failed", "cancelled"),
        "completed_at": nullable(INTEGER),
        "error": nullable(_ERROR),
        "incomplete_details": nullable(record({"reason": STRING})),
        "model": STRING,
        "output": array(ref("OutputItem")),
        "usage": nullable(_USAGE),
        "previous_response_id": nullable(STRING),
        "conversation": nullable(record({"id": STRING})),
        "instructions": nullable(STRING),
        "tools": array(record({"type": STRING})),
        "tool_choice": either(STRING, OBJECT),
        "parallel_tool_calls": BOOLEAN,
        "text": record({"format": record({"type": STRING})}),
        "reasoning": nullable(record({"effort": nullable(STRING), "summary": nullable(STRING)})),
        "temperature": _NUMBER,
        "top_p": _NUMBER,
        "presence_penalty": _NUMBER,
        "frequency_penalty": _NUMBER,
        "top_logprobs": INTEGER,
        "max_output_tokens": nullable(INTEGER),
        "max_tool_calls": nullable(INTEGER),
        "truncation": STRING,
        "store": BOOLEAN,
        "background": BOOLEAN,
        "service_tier": STRING,
        "metadata": _TEXTS,
        "user": nullable(STRING),
        "safety_identifier": nullable(STRING),
        "prompt_cache_key": nullable(STRING),
        "prompt_cache_retention": nullable(STRING),
    }
)
_LIST = {"object": one_of("list"), "has_more": BOOLEAN}
_ENDS = {"first_id": nullable(STRING), "last_id": nullable(STRING)}

_MODEL_FACTS = {"description": STRING, "features": array(STRING), "interrupt_name": STRING}
_MODEL = {
    "id": STRING,
    "object": one_of("model"),
    "created": INTEGER,
    "owned_by": one_of("fermata"),
}
_PAGE_FACTS = {
    **_MODEL_FACTS,
    "settings": {
        **nullable(OBJECT),
        "description": "JSON Schema of what a client may set through `metadata`.",
    },
    "topology": record({"format": one_of("mermaid"), "text": STRING}),
}

_INTERRUPT = record(
    {
        "id": STRING,
        "object": one_of("fermata.interrupt"),
        "call_id": STRING,
        "response_id": STRING,
        "model": STRING,
        "name": STRING,
        "requester": STRING,
        "status": one_of("pending", "answered", "expired", "cancelled"),
        "answerable": BOOLEAN,
        "question": OBJECT,
        "created_at": INTEGER,
        "expires_at": nullable(INTEGER),
        "answered_at": nullable(INTEGER),
        "answered_by": nullable(STRING),
    }
)

_COMPLETION = record(
    {
        "id": STRING,
        "object": one_of("chat.completion"),
        "created": INTEGER,
        "model": STRING,
        "choices": array(
            record(
                {
                    "index": INTEGER,
                    "message": record({"role": one_of("assistant"), "content": nullable(STRING)}),
                    "finish_reason": one_of("stop", "tool_calls", "length", "content_filter"),
                }
            )
        ),
        "usage": nullable(OBJECT),
    }
)

RESOURCES: dict[str, Schema] = {
    "Error": record({"error": _ERROR}),
    **_ITEMS,
    "OutputItem": either(*(ref(name) for name in _ITEMS)),
    "Response": _RESPONSE,
    "InputTokens": record(
        {
            "object": one_of("response.input_tokens"),
            "input_tokens": INTEGER,
            "fermata": record({"counted_by": one_of("graph", "estimate")}),
        }
    ),
    "CompactedResponse": record(
        {
            "id": STRING,
            "object": one_of("response.compaction"),
            "created_at": INTEGER,
            "output": array(ref("Item")),
            "usage": _USAGE,
        }
    ),
    "DeletedResponse": record(
        {"id": STRING, "object": one_of("response"), "deleted": {"const": True}}
    ),
    "Item": record({"id": STRING, "type": STRING}),
    "ItemList": record({**_LIST, **_ENDS, "data": array(ref("Item"))}),
    "Conversation": record(
        {
            "id": STRING,
            "object": one_of("conversation"),
            "created_at": INTEGER,
            "metadata": _TEXTS,
        }
    ),
    "DeletedConversation": record(
        {"id": STRING, "object": one_of("conversation.deleted"), "deleted": {"const": True}}
    ),
    "Model": record({**_MODEL, "fermata": record(_MODEL_FACTS)}),
    "ModelPage": record({**_MODEL, "fermata": record(_PAGE_FACTS)}),
    "ModelList": record({"object": one_of("list"), "data": array(ref("Model"))}),
    "Interrupt": _INTERRUPT,
    "InterruptList": record({**_LIST, **_ENDS, "data": array(ref("Interrupt"))}),
    "ChatCompletion": _COMPLETION,
    "Status": record({"status": STRING}),
}
"""The schemas of answers, by their names in the document."""
