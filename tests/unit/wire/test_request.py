"""What clients send: all recorded requests, every field, and one error per wrong field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from gateway.errors import InvalidRequest
from gateway.wire.items import Response
from gateway.wire.request import (
    CreateResponse,
    ReasoningConfig,
    TextFormat,
    parse_create,
    request_fingerprint,
)
from gateway.wire.writer import Writer
from tests.openresponses import validate_resource

RECORDED = json.loads((Path(__file__).parents[2] / "cases" / "client_requests.json").read_text())

FULL: dict[str, Any] = {
    "model": "m",
    "input": "hi",
    "background": False,
    "frequency_penalty": 0.5,
    "include": ["reasoning.encrypted_content", "something.new"],
    "instructions": "be brief",
    "max_output_tokens": 5,
    "max_tool_calls": 2,
    "metadata": {"a": "b"},
    "parallel_tool_calls": False,
    "presence_penalty": -2,
    "previous_response_id": "resp_1",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "reasoning": {"effort": "minimal", "summary": "auto"},
    "safety_identifier": "s",
    "service_tier": "flex",
    "store": False,
    "stream": True,
    "stream_options": {"include_obfuscation": False},
    "temperature": 0,
    "text": {
        "format": {"type": "json_schema", "name": "City", "schema": {"type": "object"}},
        "verbosity": "low",
    },
    "tool_choice": {"type": "function", "name": "f"},
    "tools": [{"type": "function", "name": "f"}, {"type": "web_search", "x": True}],
    "top_logprobs": 3,
    "top_p": 0.5,
    "truncation": "auto",
    "user": "u",
}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "input": "hi", **fields}


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_create(body(**fields))
    assert len(caught.value.message.splitlines()) == 1
    return caught.value


def resource(request: CreateResponse) -> dict[str, Any]:
    writer = Writer(Response.of_request(request, "resp_2", 1))
    writer.begin()
    rendered: dict[str, Any] = json.loads(writer.resource())
    validate_resource(rendered)
    return rendered


@pytest.mark.parametrize(
    "recorded", RECORDED, ids=[f"{n}-{one['client']}" for n, one in enumerate(RECORDED)]
)
def test_recorded_requests_are_taken_and_echoed(recorded: dict[str, Any]) -> None:
    request = parse_create(json.dumps(recorded["body"]).encode())
    sent = recorded["body"]["input"]
    assert len(request.input) == (1 if isinstance(sent, str) else len(sent))
    assert len(request.tools) == len(recorded["body"].get("tools") or [])
    resource(request)


def test_every_field_arrives() -> None:
    request = parse_create(json.dumps(FULL))
    assert request.input[0].raw["content"] == [{"type": "input_text", "text": "hi"}]
    assert request.reasoning == ReasoningConfig("minimal", "auto")
    assert request.text_format == TextFormat("json_schema", "City", {"type": "object"})
    assert request.verbosity == "low"
    assert [(tool.type, tool.name) for tool in request.tools] == [
        ("function", "f"),
        ("web_search", None),
    ]
    assert (request.temperature, request.presence_penalty) == (0.0, -2.0)
    assert request.include == ("reasoning.encrypted_content", "something.new")
    assert (request.stream, request.store, request.background) == (True, False, False)


def test_every_field_is_echoed() -> None:
    echoed = resource(parse_create(FULL))
    same = FULL.keys() - {"input", "include", "stream", "stream_options", "text", "tools"}
    assert {key: echoed[key] for key in same} == {key: FULL[key] for key in same}
    assert echoed["tools"] == [
        {"type": "function", "name": "f", "description": None, "parameters": None, "strict": None},
        {"type": "web_search", "x": True},
    ]
    assert echoed["text"] == {
        "format": {
            "type": "json_schema",
            "name": "City",
            "description": None,
            "schema": {"type": "object"},
            "strict": False,
        },
        "verbosity": "low",
    }


def test_defaults_are_openais() -> None:
    echoed = resource(parse_create(body()))
    assert echoed["metadata"] == {}
    assert echoed["tools"] == []
    assert echoed["tool_choice"] == "auto"
    assert echoed["text"] == {"format": {"type": "text"}}
    assert (echoed["temperature"], echoed["top_p"], echoed["truncation"]) == (1.0, 1.0, "disabled")
    assert (echoed["store"], echoed["background"], echoed["service_tier"]) == (
        True,
        False,
        "default",
    )


def test_C40_null_is_fine_for_every_field_of_the_sdk() -> None:
    known = set(ResponseCreateParamsBase.__annotations__) | {"stream"}
    nulls = dict.fromkeys(known - {"model", "input"})
    assert parse_create(body(**nulls)) == parse_create(body()).__class__(
        model="m", raw=body(**nulls), input=parse_create(body()).input
    )


@pytest.mark.parametrize("name", ResponseCreateParamsBase.__annotations__)
def test_every_field_of_the_sdk_is_known(name: str) -> None:
    """A field that the SDK can send is no `extra`: somebody has thought about it."""
    sent = {"model": "m", "input": "hi", name: _SAMPLES.get(name, {})}
    if name == "prompt":
        with pytest.raises(InvalidRequest):
            parse_create(sent)
    else:
        assert parse_create(sent).extra == {}


_SAMPLES: dict[str, Any] = {
    **FULL,
    "context_management": [{"type": "compaction"}],
    "conversation": "conv_1",
    "moderation": {"model": "omni-moderation-latest"},
    "prompt": {"id": "pmpt_1"},
}


def test_C40_unknown_fields_are_kept_aside() -> None:
    request = parse_create(body(x_thread="t", client_metadata={"a": 1}))
    assert request.extra == {"x_thread": "t", "client_metadata": {"a": 1}}


def test_C40_an_empty_input_is_no_item() -> None:
    assert parse_create({"model": "m", "input": []}).input == ()


@pytest.mark.parametrize("text", ["", "x" * 1_000_000, "\ud800", "\x00"])
def test_any_text_is_an_input(text: str) -> None:
    assert parse_create(body(input=text)).input[0].raw["content"][0]["text"] == text


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"model": None}, "model", "missing_required_parameter"),
    ({"model": ""}, "model", "empty_string"),
    ({"model": 7}, "model", "invalid_type"),
    ({"input": None}, "input", "missing_required_parameter"),
    ({"input": 7}, "input", "invalid_type"),
    ({"input": {"role": "user"}}, "input", "invalid_type"),
    ({"stream": "true"}, "stream", "invalid_type"),
    ({"store": 1}, "store", "invalid_type"),
    ({"background": "no"}, "background", "invalid_type"),
    ({"background": True, "store": False}, "background", "unsupported_value"),
    ({"temperature": 2.1}, "temperature", "decimal_above_max_value"),
    ({"temperature": -0.1}, "temperature", "decimal_below_min_value"),
    ({"temperature": "1"}, "temperature", "invalid_type"),
    ({"temperature": True}, "temperature", "invalid_type"),
    ({"top_p": 1.5}, "top_p", "decimal_above_max_value"),
    ({"top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
    ({"max_output_tokens": 0}, "max_output_tokens", "integer_below_min_value"),
    ({"max_output_tokens": 1.5}, "max_output_tokens", "invalid_type"),
    ({"max_tool_calls": -1}, "max_tool_calls", "integer_below_min_value"),
    ({"instructions": ["x"]}, "instructions", "invalid_type"),
    ({"include": "x"}, "include", "invalid_type"),
    ({"include": [1]}, "include[0]", "invalid_type"),
    ({"metadata": "x"}, "metadata", "invalid_type"),
    ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
    ({"metadata": {"a": "x" * 513}}, "metadata.a", "string_above_max_length"),
    ({"metadata": {"x" * 65: "a"}}, "metadata", "string_above_max_length"),
    (
        {"metadata": {str(n): "a" for n in range(17)}},
        "metadata",
        "object_above_max_properties",
    ),
    ({"reasoning": "low"}, "reasoning", "invalid_type"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value"),
    ({"service_tier": "gold"}, "service_tier", "invalid_value"),
    ({"truncation": "some"}, "truncation", "invalid_value"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "invalid_value"),
    ({"text": {"format": {}}}, "text.format.type", "missing_required_parameter"),
    (
        {"text": {"format": {"type": "json_schema", "schema": {}}}},
        "text.format.name",
        "missing_required_parameter",
    ),
    (
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": 1}}},
        "text.format.schema",
        "invalid_type",
    ),
    ({"text": {"verbosity": "loud"}}, "text.verbosity", "invalid_value"),
    ({"tool_choice": "maybe"}, "tool_choice", "invalid_value"),
    ({"tool_choice": 1}, "tool_choice", "invalid_type"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.name", "missing_required_parameter"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.tools", "missing_required_parameter"),
    ({"tools": {}}, "tools", "invalid_type"),
    ({"tools": ["f"]}, "tools[0]", "invalid_type"),
    ({"tools": [{"name": "f"}]}, "tools[0].type", "missing_required_parameter"),
    (
        {"tools": [{"type": "web_search"}, {"type": "function", "function": {"name": "f"}}]},
        "tools[1].name",
        "missing_required_parameter",
    ),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "invalid_value"),
    (
        {"tools": [{"type": "function", "name": "f", "parameters": "{}"}]},
        "tools[0].parameters",
        "invalid_type",
    ),
    ({"previous_response_id": 5}, "previous_response_id", "invalid_type"),
    ({"conversation": {}}, "conversation.id", "missing_required_parameter"),
    (
        {"conversation": "conv_1", "previous_response_id": "resp_1"},
        "previous_response_id",
        "mutually_exclusive_parameters",
    ),
    ({"stream_options": "x"}, "stream_options", "invalid_type"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_parameter"),
    ({"n": 2}, "n", "unsupported_parameter"),
    ({"generate": False}, "generate", "unsupported_parameter"),
    (
        {"prompt_cache_options": {"prewarm": True}},
        "prompt_cache_options",
        "unsupported_parameter",
    ),
    (
        {"moderation": {"model": "m", "policy": {"input": {"mode": "block"}}}},
        "moderation",
        "unsupported_parameter",
    ),
]


@pytest.mark.parametrize(("fields", "param", "code"), WRONG, ids=lambda value: repr(value)[:60])
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str, code: str) -> None:
    error = refusal(**fields)
    assert (error.status, error.param, error.error_code) == (400, param, code)


@pytest.mark.parametrize("sent", [b"[]", b'"hi"', b"null", b"1"])
def test_C40_a_body_that_is_no_object(sent: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_create(sent)


@pytest.mark.parametrize("name", ["n", "generate", "prompt_cache_options", "moderation"])
def test_harmless_uses_of_refused_fields_pass(name: str) -> None:
    harmless = {
        "n": 1,
        "generate": True,
        "prompt_cache_options": {"mode": "implicit"},
        "moderation": {"model": "m", "policy": {"input": {"mode": "score"}}},
    }
    parse_create(body(**{name: harmless[name]}))


def test_a_conversation_is_an_id_or_an_object() -> None:
    for sent in ("conv_1", {"id": "conv_1"}):
        request = parse_create(body(conversation=sent))
        assert request.conversation == "conv_1"
        assert resource(request)["conversation"] == {"id": "conv_1"}


@pytest.mark.parametrize(
    "choice",
    [
        "none",
        "required",
        {"type": "function", "name": "f"},
        {"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]},
        {"type": "web_search_preview"},
        {"type": "mcp", "server_label": "s"},
        {"type": "custom", "name": "c"},
    ],
)
def test_any_tool_choice_is_echoed(choice: Any) -> None:
    echoed = resource(parse_create(body(tool_choice=choice)))["tool_choice"]
    assert echoed == choice if isinstance(choice, str) else choice.items() <= echoed.items()


def test_the_old_name_of_the_reasoning_summary_is_known() -> None:
    request = parse_create(body(reasoning={"generate_summary": "concise"}))
    assert resource(request)["reasoning"] == {"effort": None, "summary": "concise"}


# --- fingerprints ----------------------------------------------------------------------------


def test_a_request_is_the_same_whatever_the_order_of_its_keys() -> None:
    first = parse_create('{"model":"m","input":"a","metadata":{"a":"1","b":"2"}}')
    again = parse_create('{"metadata":{"b":"2","a":"1"},"input":"a","model":"m"}')
    other = parse_create('{"metadata":{"b":"2","a":"1"},"input":"b","model":"m"}')
    assert request_fingerprint(first) == request_fingerprint(again)
    assert request_fingerprint(first) != request_fingerprint(other)
