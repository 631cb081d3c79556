"""Messages of the WebSocket transport, and what a connection remembers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import InvalidRequest, PreviousResponseNotFound, ResponseInProgress
from gateway.wire.history import FunctionCall, Message
from gateway.wire.items import Response
from gateway.wire.request import CreateResponse
from gateway.wire.socket import (
    Memory,
    error_event,
    event_text,
    own_param,
    parse_turn,
    refuse_open_calls,
    resent,
)
from gateway.wire.writer import DONE, Writer
from tests.openresponses import validate_socket_error


def request(said: Any = "hi", **fields: Any) -> CreateResponse:
    event = {"type": "response.create", "model": "m", "input": said, "store": False, **fields}
    return parse_turn(json.dumps(event)).request


def ended(request: CreateResponse, *, call: bool = False, failed: bool = False) -> str:
    """The last event of a response to this request."""
    writer = Writer(Response.of_request(request, "resp_1", 1))
    writer.begin()
    writer.text("a", "hello")
    if call:
        writer.function_call("call_1", "f", "{}")
    error = InvalidRequest("no")
    frames = writer.fail(error) if failed else writer.complete(completed_at=2)
    text = event_text(frames[-1])
    assert text is not None
    return text


def test_a_turn_is_a_body_with_a_type() -> None:
    turn = parse_turn(b'{"type": "response.create", "model": "m", "input": "hi", "stream": true}')
    assert turn.generate
    assert turn.request.stream
    assert turn.request.raw.keys() == {"model", "input"}
    warm = parse_turn('{"type": "response.create", "model": "m", "input": [], "generate": false}')
    assert not warm.generate


def test_events_are_the_data_of_the_frames() -> None:
    frame = b'event: x\ndata: {"type":"x"}\n\n'
    assert event_text(frame) == '{"type":"x"}'
    assert event_text(DONE) is None


@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (PreviousResponseNotFound("resp_1"), 400, {"x-should-retry": "false"}),
        (ResponseInProgress("busy"), 409, {"retry-after": "1"}),
    ],
)
def test_an_error_is_an_envelope(error: Any, status: int, headers: Any) -> None:
    event = json.loads(error_event(error))
    validate_socket_error(event)
    assert (event["status"], event["error"]["headers"]) == (status, headers)


def test_what_is_continued_comes_before_the_new_input() -> None:
    memory, first = Memory(1000), request()
    memory.keep(first, ended(first))
    second = request("more", previous_response_id="resp_1")
    last = memory.recall(second)
    assert last is not None
    whole = resent(second, last)
    assert [item.text for item in whole.input if isinstance(item, Message)] == [
        "hi",
        "hello",
        "more",
    ]
    assert whole.previous_response_id is None
    assert whole.echo["previous_response_id"] == "resp_1"
    assert own_param("input[2].content", last) == "input[0].content"
    assert own_param("input[1]", last) == "previous_response_id"
    assert own_param("model", last) == "model"
    assert own_param(None, last) is None


def test_a_chain_grows_from_what_is_stored() -> None:
    memory = Memory(1000)
    first = request(previous_response_id="resp_stored")
    memory.keep(first, ended(first))
    second = request("more", previous_response_id="resp_1")
    last = memory.recall(second)
    assert last is not None
    assert resent(second, last).previous_response_id == "resp_stored"


def test_calls_need_their_outputs() -> None:
    memory, first = Memory(1000), request()
    memory.keep(first, ended(first, call=True))
    text = request("please", previous_response_id="resp_1")
    last = memory.recall(text)
    assert last is not None
    with pytest.raises(InvalidRequest, match="call_1"):
        refuse_open_calls(text, last)
    output = {"type": "function_call_output", "call_id": "call_1", "output": "x"}
    answer = request([output], previous_response_id="resp_1")
    refuse_open_calls(answer, last)
    assert isinstance(resent(answer, last).input[2], FunctionCall)


@pytest.mark.parametrize(
    ("fields", "about"),
    [
        ({"store": True}, {}),
        ({}, {"failed": True}),
        ({"said": "x" * 2000}, {}),
        (
            {
                "said": [{"type": "function_call_output", "call_id": "c", "output": "x"}],
                "previous_response_id": "resp_stored",
            },
            {},
        ),
    ],
)
def test_what_is_not_remembered(fields: Any, about: Any) -> None:
    memory, first = Memory(1000), request()
    memory.keep(first, ended(first))
    other = request(**fields)
    memory.keep(other, ended(other, **about))
    assert memory.recall(request(previous_response_id="resp_1")) is None


def test_only_what_is_named_is_recalled_and_what_failed_is_evicted() -> None:
    memory, first = Memory(1000), request()
    memory.keep(first, ended(first))
    assert memory.recall(request(previous_response_id="resp_2")) is None
    assert memory.recall(request()) is None
    memory.evict()
    assert memory.recall(request(previous_response_id="resp_1")) is None
