"""Input items: what clients resend, and what is refused with the place named."""

from __future__ import annotations

import typing
from typing import Any

import pytest
from openai.types.responses import ResponseInputItem

from gateway.errors import InvalidRequest
from gateway.wire.history import (
    OPAQUE_TYPES,
    FunctionCall,
    FunctionCallOutput,
    ItemReference,
    Message,
    Opaque,
    Reasoning,
    parse_input,
)
from gateway.wire.ids import new_id, response_of_item
from gateway.wire.input_items import as_resource, stored_items


def one(item: dict[str, Any]) -> Any:
    (parsed,) = parse_input([item])
    return parsed


def refusal(*items: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_input(list(items))
    assert len(caught.value.message.splitlines()) == 1
    return caught.value


@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer"])
@pytest.mark.parametrize("typed", [True, False])
def test_C40_messages_of_every_role_with_and_without_type(role: str, typed: bool) -> None:
    message = one({"role": role, "content": "hi"} | ({"type": "message"} if typed else {}))
    assert isinstance(message, Message)
    assert (message.role, message.text) == (role, "hi")
    stored = as_resource(message)
    assert stored["content"][0]["type"] == ("output_text" if role == "assistant" else "input_text")
    assert (stored["type"], stored["status"], stored["id"][:4]) == ("message", "completed", "msg_")


def test_all_kinds_of_parts() -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "output_text", "text": "b"},
        {"type": "text", "text": "c"},
        {"type": "refusal", "refusal": "d"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
        {"type": "input_image", "file_id": "file_1", "image_url": None},
        {"type": "input_file", "file_data": "x", "filename": "a.pdf"},
        {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}},
        {"type": "input_video", "video_url": "https://example.com/v"},
    ]
    message = one({"role": "user", "content": parts})
    assert message.text == "abcd"
    assert [part.type for part in message.parts] == [part["type"] for part in parts]
    stored = as_resource(message)["content"]
    assert [part["type"] for part in stored[:4]] == ["input_text"] * 4
    assert "".join(part["text"] for part in stored[:4]) == "abcd"
    assert stored[5] == {
        "type": "input_image",
        "file_id": "file_1",
        "image_url": None,
        "detail": "auto",
    }


def test_what_an_assistant_said_is_stored_as_output() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    stored = as_resource(one({"role": "assistant", "content": parts}))["content"]
    said = {"type": "output_text", "text": "a", "annotations": [], "logprobs": []}
    assert stored == [said, {"type": "refusal", "refusal": "b"}]


def test_items_without_an_id_get_one_of_their_response() -> None:
    response_id = new_id("resp")
    items = parse_input(
        [{"role": "user", "content": "a", "id": "mine"}, {"role": "user", "content": "b"}]
    )
    ids = [item["id"] for item in stored_items(items, response_id)]
    assert ids[0] == "mine"
    assert response_of_item(ids[1]) == response_id


def test_calls_and_outputs() -> None:
    call, output = parse_input(
        [
            {
                "type": "function_call",
                "id": "fc_1",
                "call_id": "call_1",
                "name": "f",
                "arguments": "{}",
            },
            {"type": "function_call_output", "call_id": "call_1", "output": "yes", "id": None},
        ]
    )
    assert isinstance(call, FunctionCall)
    assert (call.call_id, call.name, call.arguments, call.id) == ("call_1", "f", "{}", "fc_1")
    assert isinstance(output, FunctionCallOutput)
    assert (output.call_id, output.output, output.parts) == ("call_1", "yes", ())
    assert as_resource(call)["id"] == "fc_1"
    assert as_resource(output)["id"].startswith("fco_")


@pytest.mark.parametrize(
    ("arguments", "text"), [("rewritten", "rewritten"), ({"a": 1}, '{"a":1}'), (None, "{}")]
)
def test_arguments_in_a_history_may_be_anything(arguments: Any, text: str) -> None:
    call = one({"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments})
    assert call.arguments == text
    assert as_resource(call)["arguments"] == text


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("", ""),
        ("0", "0"),
        ("false", "false"),
        ("[]", "[]"),
        ("null", "null"),
        ("x" * 1_000_000, "x" * 1_000_000),
        ("a\ud800", "a\ud800"),
        ([], ""),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}], "ab"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_C09_outputs_that_are_taken(output: Any, text: str) -> None:
    assert one({"type": "function_call_output", "call_id": "c", "output": output}).output == text


@pytest.mark.parametrize("output", [None, {"action": "approve"}, 0, False])
def test_C09_outputs_that_are_refused(output: Any) -> None:
    error = refusal({"type": "function_call_output", "call_id": "c", "output": output})
    assert (error.param, error.error_code) == ("input[0].output", "invalid_type")


def test_C07_one_call_is_answered_once() -> None:
    answer = {"type": "function_call_output", "call_id": "c", "output": "yes"}
    error = refusal(answer, {"role": "user", "content": "hi"}, answer | {"output": "no"})
    assert error.param == "input[2].call_id"


def test_reasoning_and_references() -> None:
    reasoning = one(
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "so"}],
            "encrypted_content": "x",
            "content": None,
        }
    )
    assert reasoning == Reasoning(("so",), reasoning.raw, "x", "rs_1")
    assert "content" not in as_resource(reasoning)
    for item in ({"type": "item_reference", "id": "msg_1"}, {"id": "msg_1"}):
        assert isinstance(one(item), ItemReference)


def test_every_item_type_of_the_sdk_is_known() -> None:
    models = typing.get_args(typing.get_args(ResponseInputItem)[0])
    kinds = {
        kind
        for model in models
        for kind in typing.get_args(str_literal(model.model_fields["type"].annotation))
    }
    ours = {"message", "function_call", "function_call_output", "reasoning", "item_reference"}
    ours.add("compaction")
    assert kinds == ours | set(OPAQUE_TYPES)


def str_literal(annotation: Any) -> Any:
    """`Literal[…]` out of `Optional[Literal[…]]`."""
    inner = [one for one in typing.get_args(annotation) if typing.get_args(one)]
    return inner[0] if inner else annotation


@pytest.mark.parametrize("kind", OPAQUE_TYPES)
def test_items_of_built_in_tools_are_kept_as_they_are(kind: str) -> None:
    item = one({"type": kind, "id": "x_1", "anything": [1]})
    assert isinstance(item, Opaque)
    assert as_resource(item) == {"type": kind, "id": "x_1", "anything": [1]}


WRONG: list[tuple[Any, str, str]] = [
    ("hi", "input[0]", "invalid_type"),
    (None, "input[0]", "invalid_type"),
    ({}, "input[0].type", "missing_required_parameter"),
    ({"text": "hi"}, "input[0].type", "missing_required_parameter"),
    ({"type": "telepathy"}, "input[0].type", "invalid_value"),
    ({"type": "tele\npathy\ud800" * 50}, "input[0].type", "invalid_value"),
    ({"type": 5}, "input[0].type", "invalid_type"),
    ({"type": "message", "content": "x"}, "input[0].role", "missing_required_parameter"),
    ({"role": "tool", "content": "x"}, "input[0].role", "invalid_value"),
    ({"role": 1, "content": "x"}, "input[0].role", "invalid_type"),
    ({"role": "user"}, "input[0].content", "missing_required_parameter"),
    ({"role": "user", "content": None}, "input[0].content", "invalid_type"),
    ({"role": "user", "content": {}}, "input[0].content", "invalid_type"),
    ({"role": "user", "content": ["x"]}, "input[0].content[0]", "invalid_type"),
    (
        {"role": "user", "content": [{"text": "x"}]},
        "input[0].content[0].type",
        "missing_required_parameter",
    ),
    (
        {"role": "user", "content": [{"type": "image_url"}]},
        "input[0].content[0].type",
        "invalid_value",
    ),
    (
        {"role": "user", "content": [{"type": "input_text", "text": 1}]},
        "input[0].content[0].text",
        "invalid_type",
    ),
    (
        {"role": "user", "content": [{"type": "input_image"}]},
        "input[0].content[0].image_url",
        "missing_required_parameter",
    ),
    (
        {"role": "user", "content": [{"type": "input_image", "image_url": {"url": "x"}}]},
        "input[0].content[0].image_url",
        "invalid_type",
    ),
    ({"role": "user", "content": "x", "id": 5}, "input[0].id", "invalid_type"),
    (
        {"type": "function_call", "name": "f"},
        "input[0].call_id",
        "missing_required_parameter",
    ),
    (
        {"type": "function_call_output", "output": "x"},
        "input[0].call_id",
        "missing_required_parameter",
    ),
    (
        {"type": "function_call_output", "call_id": "", "output": "x"},
        "input[0].call_id",
        "empty_string",
    ),
    (
        {"type": "function_call_output", "call_id": "c"},
        "input[0].output",
        "missing_required_parameter",
    ),
    (
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "x"}]},
        "input[0].output[0].type",
        "invalid_value",
    ),
    ({"type": "item_reference"}, "input[0].id", "missing_required_parameter"),
    ({"type": "reasoning", "summary": ["x"]}, "input[0].summary[0]", "invalid_type"),
]


@pytest.mark.parametrize(("item", "param", "code"), WRONG, ids=lambda value: repr(value)[:60])
def test_a_wrong_item_is_named(item: Any, param: str, code: str) -> None:
    error = refusal(item)
    assert (error.status, error.param, error.error_code) == (400, param, code)
    assert len(error.message) < 1200


def test_the_place_counts_from_the_start() -> None:
    fine = {"role": "user", "content": "x"}
    assert refusal(fine, fine, fine, {"type": "telepathy"}).param == "input[3].type"
