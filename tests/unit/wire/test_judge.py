"""The judge of `tests.openresponses` must catch what crashed real clients (C31)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.wire.items import Response
from gateway.wire.request import parse_create
from gateway.wire.writer import Writer
from tests.openresponses import check_stream, read_frames

Json = dict[str, Any]


def frames() -> list[bytes]:
    request = parse_create({"model": "m", "input": "hi"})
    writer = Writer(Response.of_request(request, "resp_1", 1))
    written = writer.begin() + writer.text("a", "x") + writer.close("a")
    written += writer.function_call("call_1", "f", '{"a":1}')
    return written + writer.complete(completed_at=2)


def _pop(kind: str, *path: Any) -> Callable[[list[Json]], None]:
    return lambda events: _at(_first(events, kind), path[:-1]).pop(path[-1])


def _set(kind: str, value: Any, *path: Any) -> Callable[[list[Json]], None]:
    return lambda events: _at(_first(events, kind), path[:-1]).__setitem__(path[-1], value)


def _first(events: list[Json], kind: str) -> Json:
    return next(event for event in events if event["type"] == "response." + kind)


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


BROKEN: dict[str, Callable[[list[Json]], None]] = {
    "output is null": _set("completed", None, "response", "output"),
    "no sequence number": _pop("output_text.delta", "sequence_number"),
    "a gap": _set("completed", 99, "sequence_number"),
    "no item status": _pop("output_item.done", "item", "status"),
    "no logprobs in a delta": _pop("output_text.delta", "logprobs"),
    "no logprobs in the resource": _pop(
        "completed", "response", "output", 0, "content", 0, "logprobs"
    ),
    "no usage details": _pop("completed", "response", "usage", "input_tokens_details"),
    "another id": _set("output_text.delta", "msg_2", "item_id"),
    "another response id": _set("completed", "resp_2", "response", "id"),
    "another text": _set("output_text.delta", "y", "delta"),
    "a wrong index": _set("output_text.delta", 1, "output_index"),
    "service tier is null": _set("completed", None, "response", "service_tier"),
    "time in fractions": _set("completed", 1.5, "response", "created_at"),
    "a field is missing": _pop("created", "response", "max_tool_calls"),
    "arguments are no object": _set("completed", "1", "response", "output", 1, "arguments"),
    "an unknown event": _set("in_progress", "response.thinking", "type"),
    "no end": lambda events: events.pop(),
    "no start": lambda events: events.pop(0),
}


def test_a_good_stream_passes() -> None:
    assert check_stream(read_frames(frames()))["status"] == "completed"


@pytest.mark.parametrize("broken", BROKEN)
def test_C31_a_broken_stream_is_caught(broken: str) -> None:
    events = read_frames(frames())
    BROKEN[broken](events)
    with pytest.raises(Exception):  # noqa: B017, PT011 - pydantic's, jsonschema's or AssertionError
        check_stream(json.loads(json.dumps(events)))


@pytest.mark.parametrize(
    "sent",
    [
        b'event: a\r\ndata: {"type":"a"}\r\n\r\n',
        b'event: a\ndata: {"type":"a"}\n',
        b'event: b\ndata: {"type":"a"}\n\n',
        b'id: 1\nevent: a\ndata: {"type":"a"}\n\n',
        'event: a\ndata: {"type":"a","x":"\u2028"}\n\n'.encode(),
    ],
)
def test_a_broken_frame_is_caught(sent: bytes) -> None:
    with pytest.raises((AssertionError, ValueError)):
        read_frames(sent)
