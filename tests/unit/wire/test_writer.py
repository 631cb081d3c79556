"""The events of a response: the minimal sequences of the wire, in order, valid and foldable."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.errors import FermataError, InvalidRequest, RunFailed
from gateway.wire.ids import new_id, response_of_item
from gateway.wire.items import Response, Usage, as_function_name
from gateway.wire.replay import replay
from gateway.wire.request import parse_create
from gateway.wire.writer import DONE, Writer
from tests.openresponses import check_stream, read_frames, validate_resource


def a_writer(*, extensions: bool = False, **fields: Any) -> Writer:
    request = parse_create({"model": "m", "input": "hi", **fields})
    return Writer(Response.of_request(request, "resp_1", 1_700_000_000), extensions=extensions)


def kinds(frames: list[bytes]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in read_frames(frames)]


MESSAGE = [
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
]
REASONING = [
    "output_item.added",
    "reasoning_summary_part.added",
    "reasoning_summary_text.delta",
    "reasoning_summary_text.done",
    "reasoning_summary_part.done",
    "output_item.done",
]
CALL = [
    "output_item.added",
    "function_call_arguments.delta",
    "function_call_arguments.done",
    "output_item.done",
]


def test_the_minimal_sequences() -> None:
    writer = a_writer()
    assert kinds(writer.begin()) == ["created", "in_progress"]
    assert kinds(writer.text("a", "hi") + writer.close("a")) == MESSAGE
    assert kinds(writer.reasoning("b", "so") + writer.close("b")) == REASONING
    assert kinds(writer.function_call("call_1", "f", "{}")) == CALL
    assert kinds(writer.complete(completed_at=1_700_000_001)) == ["completed"]


def test_a_pause_as_the_refund_page_wants_it() -> None:
    """Streams show the notice above the review; the JSON answer carries only the call."""
    writer = a_writer(stream=True)
    frames = writer.begin()
    frames += writer.text("lc_1", "I will") + writer.text("lc_1", " ask.") + writer.close("lc_1")
    frames += writer.function_call("call_1", "review_refund", '{"expects":"any","payload":1}')
    frames += writer.complete(completed_at=1_700_000_009, usage=Usage(3, 4, 1, 0, 2))
    last = check_stream(read_frames(frames))
    assert [item["type"] for item in last["output"]] == ["message", "function_call"]
    assert last == json.loads(writer.resource())
    alone = json.loads(writer.resource(only_calls=True))
    validate_resource(alone)
    assert alone == last | {"output": last["output"][1:]}
    assert last["status"] == "completed"
    assert last["completed_at"] == 1_700_000_009
    assert last["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 7,
    }


def test_background_responses_are_queued_first() -> None:
    writer = a_writer(background=True)
    assert kinds(writer.queue()) == ["created", "queued"]
    assert json.loads(writer.resource())["status"] == "queued"
    assert kinds(writer.begin()) == ["in_progress"]
    assert kinds(a_writer(background=True).begin()) == ["created", "queued", "in_progress"]


def test_ids_hold_their_response_and_nobody_guesses_them() -> None:
    response = Response.of_request(parse_create(b'{"model":"m","input":"x"}'), new_id("resp"), 1)
    writer = Writer(response)
    frames = writer.begin() + writer.text("lc_1", "x") + writer.function_call("call_1", "f", "")
    frames += writer.close("lc_1") + writer.complete(completed_at=1_700_000_001)
    message, call = check_stream(read_frames(frames))["output"]
    assert response_of_item(message["id"]) == response_of_item(call["id"]) == response.id
    assert call["id"].startswith("fc_")
    assert call["arguments"] == "{}"
    assert "lc_1" not in b"".join(frames).decode()


def test_messages_of_parallel_nodes_do_not_interleave() -> None:
    writer = a_writer()
    frames = writer.begin() + writer.text("a", "A1")
    assert writer.text("b", "B1") == []
    assert writer.function_call("call_1", "f", "{}") == []
    assert kinds(writer.text("a", "A2") + writer.text("b", "B2")) == ["output_text.delta"]
    frames = writer.close("a")
    assert kinds(frames)[-3:] == ["output_item.added", "content_part.added", "output_text.delta"]
    assert read_frames(frames)[-1]["delta"] == "B1B2"
    assert kinds(writer.text("b", "B3")) == ["output_text.delta"]
    assert kinds(writer.close("b")) == MESSAGE[-3:] + CALL
    output = writer.output
    assert [item["type"] for item in output] == ["message", "message", "function_call"]
    assert [item["content"][0]["text"] for item in output[:2]] == ["A1A2", "B1B2B3"]


def test_a_message_that_closed_while_it_waited_leaves_whole() -> None:
    writer = a_writer()
    frames = writer.begin() + writer.text("a", "A") + writer.text("b", "B") + writer.close("b")
    frames += writer.text("c", "C") + writer.close("a") + writer.text("c", "c")
    frames += writer.complete(completed_at=1_700_000_001)
    last = check_stream(read_frames(frames))
    assert [item["content"][0]["text"] for item in last["output"]] == ["A", "B", "Cc"]


def test_a_message_closes_its_own_reasoning() -> None:
    writer = a_writer()
    frames = writer.begin() + writer.reasoning("a", "so ") + writer.reasoning("a", "it is")
    frames += writer.text("a", "hi") + writer.complete(completed_at=1_700_000_001)
    last = check_stream(read_frames(frames))
    assert [item["type"] for item in last["output"]] == ["reasoning", "message"]
    assert last["output"][0]["summary"] == [{"type": "summary_text", "text": "so it is"}]


def test_a_refusal_is_a_part_of_its_message() -> None:
    writer = a_writer()
    frames = writer.begin() + writer.text("a", "Well, ") + writer.refusal("a", "I will not.")
    frames += writer.text("a", "Sorry.") + writer.complete(completed_at=1_700_000_001)
    (message,) = check_stream(read_frames(frames))["output"]
    assert [part["type"] for part in message["content"]] == [
        "output_text",
        "refusal",
        "output_text",
    ]


def test_empty_deltas_say_nothing() -> None:
    writer = a_writer()
    writer.begin()
    assert writer.text("a", "") == writer.refusal("a", "") == writer.reasoning("a", "") == []
    assert not writer.seen("a")
    assert writer.close("never") == []


def test_text_after_the_close_is_a_new_item() -> None:
    writer = a_writer()
    frames = writer.begin() + writer.text("a", "1") + writer.close("a") + writer.close("a")
    frames += writer.text("a", "2") + writer.complete(completed_at=1_700_000_001)
    assert len(check_stream(read_frames(frames))["output"]) == 2


def test_what_was_written_is_seen() -> None:
    writer = a_writer()
    writer.text("a", "x")
    writer.text("b", "waits")
    writer.reasoning("c", "is no message")
    assert [writer.seen(key) for key in "abcd"] == [True, True, False, False]


# --- endings ---------------------------------------------------------------------------------

ENDINGS: dict[str, Callable[[Writer], list[bytes]]] = {
    "completed": lambda writer: writer.complete(completed_at=1_700_000_001, usage=Usage(1, 1)),
    "incomplete": lambda writer: writer.incomplete("max_output_tokens", usage=Usage(1, 1)),
    "failed": lambda writer: writer.fail(RunFailed("The graph\nraised.", param="x")),
    "cancelled": lambda writer: writer.cancel(),
}


def ended(status: str, **fields: Any) -> tuple[Writer, list[bytes]]:
    writer = a_writer(**fields)
    frames = writer.begin() + writer.reasoning("a", "hm") + writer.text("a", "done ")
    frames += writer.close("a") + writer.function_call("call_1", "f", '{"a":"\ud800"}')
    frames += writer.text("b", "open") + ENDINGS[status](writer)
    return writer, frames


@pytest.mark.parametrize("status", ENDINGS)
def test_every_ending_closes_what_is_open(status: str) -> None:
    writer, frames = ended(status)
    last = check_stream(read_frames(frames))
    assert last["status"] == status
    assert last["output"][1]["status"] == "completed"
    assert last["output"][-1]["status"] == ("completed" if status == "completed" else "incomplete")
    assert (last["completed_at"] is not None) == (status == "completed")
    assert json.loads(writer.resource()) == last


def test_C41_the_reason_of_an_incomplete_response() -> None:
    last = check_stream(read_frames(ended("incomplete")[1]))
    assert last["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize(
    "error", [RunFailed("x"), InvalidRequest("x", param="tools"), FermataError("x")]
)
def test_C32_a_failed_response_says_what_failed(error: FermataError) -> None:
    writer = a_writer()
    last = check_stream(read_frames(writer.begin() + writer.fail(error)))
    assert last["error"] == {
        "code": error.error_code,
        "message": "x",
        "type": error.type,
        "param": error.param,
    }


@pytest.mark.parametrize("status", ENDINGS)
def test_C33_a_replay_is_the_same_response(status: str) -> None:
    writer, _ = ended(status, metadata={"a": "b"}, instructions="x", tools=[{"type": "mcp"}])
    stored = json.loads(writer.resource())
    frames = list(replay(stored))
    assert frames[-1] == DONE
    assert check_stream(read_frames(frames[:-1]), validate=False) == stored


def test_a_background_response_is_replayed_with_its_queue() -> None:
    writer, _ = ended("completed", background=True)
    frames = list(replay(json.loads(writer.resource())))
    assert kinds(frames[:3]) == ["created", "queued", "in_progress"]


# --- extensions, names, usage ----------------------------------------------------------------


def test_extensions_leave_only_when_asked_for() -> None:
    assert a_writer().extension("progress", {"step": 1}) == []
    writer = a_writer(extensions=True)
    frames = writer.begin() + writer.extension("progress", {"step": 1})
    frames += writer.complete(completed_at=1_700_000_001)
    events = read_frames(frames)
    check_stream(events)
    assert events[2] == {"type": "fermata:progress", "sequence_number": 2, "payload": {"step": 1}}


@pytest.mark.parametrize(
    ("name", "fitting"),
    [
        ("review_refund", "review_refund"),
        ("review refund!", "review_refund"),
        ("prüfen", "pr_fen"),
        ("???", "interrupt"),
        ("", "interrupt"),
        ("x" * 100, "x" * 64),
    ],
)
def test_function_names_fit(name: str, fitting: str) -> None:
    assert as_function_name(name) == fitting


def test_usage_adds_up() -> None:
    total = Usage(1, 2, 3, 4, 5) + Usage(10, 20, 30, 40, 50)
    assert total == Usage(11, 22, 33, 44, 55)
    assert total.total_tokens == 33
    assert Usage.of_resource(total.resource()) == total


def test_frames_are_single_lines_whatever_the_text() -> None:
    writer = a_writer(instructions="a\u2028b")
    frames = writer.begin() + writer.text("a", "x\r\ny\u2028z\u0085 \ud800 grüß 😀\x00")
    frames += writer.complete(completed_at=1_700_000_001)
    last = check_stream(read_frames(frames), validate=False)
    assert last["output"][0]["content"][0]["text"] == "x\r\ny\u2028z\u0085 \ud800 grüß 😀\x00"
