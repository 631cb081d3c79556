"""Chat requests: every field of the SDK's `chat.completions.create`, one error per wrong one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase

from gateway.errors import InvalidRequest
from gateway.wire.chat_request import parse_chat
from gateway.wire.history import FunctionCall, FunctionCallOutput, Message
from gateway.wire.items import Response
from gateway.wire.request import ReasoningConfig, TextFormat
from gateway.wire.writer import Writer
from tests.openresponses import validate_resource

USER = {"role": "user", "content": "hi"}
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
FULL: dict[str, Any] = {
    "model": "m",
    "messages": [USER],
    "frequency_penalty": 0.5,
    "logprobs": True,
    "max_completion_tokens": 5,
    "max_tokens": 5,
    "metadata": {"a": "b"},
    "modalities": ["text"],
    "moderation": {"model": "omni-moderation-latest"},
    "n": 1,
    "parallel_tool_calls": False,
    "prediction": {"type": "content", "content": "x"},
    "presence_penalty": -2,
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
    "reasoning_effort": "low",
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "City", "schema": {"type": "object"}, "strict": True},
    },
    "safety_identifier": "s",
    "seed": 7,
    "service_tier": "flex",
    "stop": ["a", "b"],
    "store": True,
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0,
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "tools": [
        {"type": "function", "function": FUNCTION},
        {"type": "custom", "custom": {"name": "c", "format": {"type": "text"}}},
    ],
    "top_logprobs": 3,
    "top_p": 0.5,
    "user": "u",
    "verbosity": "low",
    "web_search_options": {},
}
REFUSED = {"audio", "function_call", "functions", "logit_bias"}
"""Fields of the SDK that only null (or nothing) passes for."""


def test_every_field_of_the_sdk_is_known() -> None:
    assert CompletionCreateParamsBase.__annotations__.keys() - REFUSED <= FULL.keys()
    assert not parse_chat(FULL).create.extra


def test_every_field_finds_its_place() -> None:
    chat = parse_chat(FULL)
    request = chat.create
    assert chat.include_usage
    assert request.model == "m"
    assert request.max_output_tokens == 5
    assert request.reasoning == ReasoningConfig(effort="low")
    assert request.text_format == TextFormat("json_schema", "City", {"type": "object"}, None, True)
    assert request.tool_choice == {"type": "function", "name": "f"}
    assert [tool.raw for tool in request.tools] == [
        {"type": "function", **FUNCTION},
        {"type": "custom", "name": "c", "format": {"type": "text"}},
    ]
    assert (request.seed, request.stop, request.store, request.stream) == (
        7,
        ("a", "b"),
        True,
        True,
    )
    assert (request.temperature, request.top_p, request.verbosity) == (0.0, 0.5, "low")


def test_its_response_is_a_whole_resource() -> None:
    """What is stored of a chat is a Response like any other."""
    writer = Writer(Response.of_request(parse_chat(FULL).create, "resp_1", 1))
    for frame in [*writer.begin(), *writer.complete(completed_at=1)]:
        assert frame
    validate_resource(json.loads(writer.resource()))


@pytest.mark.parametrize("field", sorted(FULL.keys() - {"model", "messages"} | REFUSED))
def test_null_passes_for_every_optional_field(field: str) -> None:
    """C40."""
    assert parse_chat({"model": "m", "messages": [USER], field: None}).create.model == "m"


def test_what_nobody_knows_is_kept() -> None:
    assert parse_chat({"model": "m", "messages": [USER], "x": 1}).create.extra == {"x": 1}


def test_a_chat_is_not_stored_unless_it_says_so() -> None:
    assert parse_chat({"model": "m", "messages": [USER]}).create.store is False


def test_messages_become_items_and_keep_their_places() -> None:
    calls = [
        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"id": "call_2", "type": "custom", "custom": {"name": "c", "input": "x"}},
    ]
    chat = parse_chat(
        {
            "model": "m",
            "messages": [
                {"role": "developer", "content": "be brief"},
                USER,
                {"role": "assistant", "content": "let me see", "tool_calls": calls},
                {"role": "tool", "tool_call_id": "call_1", "content": "one"},
                {"role": "tool", "tool_call_id": "call_2", "content": [text("two")]},
                {"role": "assistant", "content": "", "tool_calls": [calls[0] | {"id": "call_3"}]},
            ],
        }
    )
    kinds = [type(item) for item in chat.create.input]
    assert kinds == [
        Message,
        Message,
        Message,
        FunctionCall,
        FunctionCall,
        FunctionCallOutput,
        FunctionCallOutput,
        FunctionCall,
    ]
    assert chat.places == (0, 1, 2, 2, 2, 3, 4, 5)
    assert [output.output for output in chat.create.outputs] == ["one", "two"]
    assert chat.param("input[5].output") == "messages[3].content"
    assert chat.param("input[3].call_id") == "messages[2].tool_call_id"
    assert chat.param("input[7]") == "messages[5]"
    assert chat.param("input[99].output") == "messages"
    assert chat.param("input") == "messages"
    assert chat.param("previous_response_id") == "messages"
    assert chat.param("model") == "model"
    assert chat.param(None) is None


def text(value: str) -> Any:
    return {"type": "text", "text": value}


def test_parts_become_those_of_responses() -> None:
    content = [
        text("look"),
        {"type": "image_url", "image_url": {"url": "https://x/i.png", "detail": "low"}},
        {"type": "image_url", "image_url": "data:image/png;base64,x"},
        {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}},
        {"type": "file", "file": {"file_data": "x", "filename": "a.pdf"}},
        {"type": "video_url", "video_url": {"url": "https://x/v"}},
    ]
    chat = parse_chat({"model": "m", "messages": [{"role": "user", "content": content}]})
    (message,) = chat.create.input
    assert isinstance(message, Message)
    assert [part.raw for part in message.parts] == [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": "https://x/i.png", "detail": "low"},
        {"type": "input_image", "image_url": "data:image/png;base64,x"},
        {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}},
        {"type": "input_file", "file_data": "x", "filename": "a.pdf"},
        {"type": "input_video", "video_url": "https://x/v"},
    ]


def test_allowed_tools_are_told_flat() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": tools}}
    request = parse_chat({"model": "m", "messages": [USER], "tool_choice": choice}).create
    assert request.tool_choice == {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "f"}],
    }


CALL = {"id": "c", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": {}}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].image_url.url",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]},
            "messages[0].content[0].file.file_data",
        ),
        ({"messages": [{"role": "tool", "tool_call_id": "c"}]}, "messages[0].content"),
        ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "assistant", "function_call": {"name": "f"}}]},
            "messages[0].function_call",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"type": "function"}]}]},
            "messages[0].tool_calls[0].id",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [CALL | {"type": "magic"}]}]},
            "messages[0].tool_calls[0].type",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [CALL | {"function": {}}]}]},
            "messages[0].tool_calls[0].function.name",
        ),
        ({"n": 2}, "n"),
        ({"n": "one"}, "n"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"logit_bias": {"1": 100}}, "logit_bias"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"modalities": "audio"}, "modalities"),
        ({"moderation": {"model": "m", "policy": {"input": {"mode": "block"}}}}, "moderation"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": 3}, "stop"),
        ({"stop": [3]}, "stop[0]"),
        ({"stream_options": True}, "stream_options"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.name",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tool_choice": {"type": "magic"}}, "tool_choice.type"),
    ],
)
def test_one_error_names_one_parameter(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat({"model": "m", "messages": [USER], **fields})
    assert caught.value.param == param
    assert len(caught.value.message.splitlines()) == 1


def test_an_assistant_may_have_said_nothing() -> None:
    chat = parse_chat({"model": "m", "messages": [USER, {"role": "assistant", "content": ""}]})
    assert [item.text for item in chat.create.input if isinstance(item, Message)] == ["hi", ""]


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b'{"model": NaN}', b'"chat"'])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_chat(body)
