"""Frames of a Response stream as chat chunks, and its resource as a chat completion."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.errors import FermataError, InvalidInterruptAnswer, RunFailed
from gateway.wire.chat import Chunks, completion, completion_id
from gateway.wire.items import Response, Usage
from gateway.wire.replay import replay
from gateway.wire.request import parse_create
from gateway.wire.writer import DONE, Writer

USAGE = Usage(3, 2, 1, 1, 1)


def writer() -> Writer:
    return Writer(Response.of_request(parse_create({"model": "m", "input": "x"}), "resp_1f", 5))


def said(writer: Writer) -> list[bytes]:
    """Two messages, a thought, a refusal and two calls."""
    frames = writer.begin()
    frames += writer.text("a", "Hello") + writer.text("a", " there\u2028") + writer.close("a")
    frames += writer.reasoning("b", "hm") + writer.text("b", "once more") + writer.close("b")
    frames += writer.refusal("c", "never") + writer.close("c")
    frames += writer.function_call("call_1", "f", '{"a": 1}')
    frames += writer.function_call("call_2", "g", "")
    return frames + writer.complete(completed_at=6, usage=USAGE) + [DONE]


def chunks_of(frames: list[bytes], *, include_usage: bool = False) -> list[bytes]:
    chunks = Chunks(include_usage=include_usage)
    return [chunk for frame in frames for chunk in chunks.of(frame)]


def parsed(chunks: list[bytes]) -> list[ChatCompletionChunk]:
    assert chunks[-1] == DONE
    assert all(chunk.startswith(b"data: {") and chunk.endswith(b"}\n\n") for chunk in chunks[:-1])
    texts = [chunk.removeprefix(b"data: ") for chunk in chunks[:-1]]
    assert all(len(text.decode().strip().splitlines()) == 1 for text in texts)
    return [ChatCompletionChunk.model_validate_json(text, strict=True) for text in texts]


def deltas(chunks: list[ChatCompletionChunk]) -> list[dict[str, Any]]:
    return [
        choice.delta.model_dump(exclude_unset=True, exclude_none=True)
        for chunk in chunks
        for choice in chunk.choices
    ]


def test_a_stream() -> None:
    chunks = parsed(chunks_of(said(writer()), include_usage=True))
    assert deltas(chunks) == [
        {"role": "assistant", "content": ""},
        {"content": "Hello"},
        {"content": " there\u2028"},
        {"content": "\n\nonce more"},
        {"refusal": "never"},
        {"tool_calls": [call(0, "", id="call_1", name="f")]},
        {"tool_calls": [call(0, '{"a": 1}')]},
        {"tool_calls": [call(1, "", id="call_2", name="g")]},
        {"tool_calls": [call(1, "{}")]},
        {},
    ]
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert reasons == [None] * 9 + ["tool_calls"]
    assert {(chunk.id, chunk.created, chunk.model) for chunk in chunks} == {("chatcmpl-1f", 5, "m")}
    usage = chunks[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 2, 5)
    assert chunks[-1].choices == []


def call(index: int, arguments: str, **started: str) -> dict[str, Any]:
    if not started:
        return {"index": index, "function": {"arguments": arguments}}
    function = {"name": started["name"], "arguments": arguments}
    return {"index": index, "id": started["id"], "type": "function", "function": function}


def test_the_completion_is_what_the_chunks_say() -> None:
    one = writer()
    said(one)
    whole = ChatCompletion.model_validate_json(completion(json.loads(one.resource())), strict=True)
    message = whole.choices[0].message
    assert message.content == "Hello there\u2028\n\nonce more"
    assert message.refusal == "never"
    assert [call.id for call in message.tool_calls or ()] == ["call_1", "call_2"]
    assert whole.choices[0].finish_reason == "tool_calls"
    assert whole.usage is not None
    assert whole.usage.prompt_tokens_details is not None
    assert whole.usage.prompt_tokens_details.cached_tokens == 1


def test_a_replay_gives_the_same_but_whole() -> None:
    one = writer()
    first = deltas(parsed(chunks_of(said(one))))
    again = deltas(parsed(chunks_of(list(replay(json.loads(one.resource()))))))
    assert again[1] == {"content": "Hello there\u2028"}
    assert again[2:] == first[3:]


def test_nothing_outside_the_standard_gets_through() -> None:
    one = Writer(writer().response, extensions=True)
    frames = one.begin() + one.extension("step", {"node": "n"})
    assert len(chunks_of(frames)) == 1


@pytest.mark.parametrize(
    ("reason", "told"), [("max_output_tokens", "length"), ("content_filter", "content_filter")]
)
def test_a_cut_answer(reason: str, told: str) -> None:
    one = writer()
    frames = one.begin() + one.text("a", "Once") + one.incomplete(reason)
    chunks = parsed([*chunks_of(frames), DONE])
    assert chunks[-1].choices[0].finish_reason == told
    whole = json.loads(completion(json.loads(one.resource())))
    assert whole["choices"][0]["finish_reason"] == told


def test_a_failure_is_a_chunk_that_sdks_raise() -> None:
    one = writer()
    frames = one.begin() + one.fail(RunFailed("It broke."))
    *_, last = chunks_of(frames)
    assert json.loads(last.removeprefix(b"data: ")) == {
        "error": {
            "message": "It broke.",
            "type": "server_error",
            "param": None,
            "code": "run_failed",
        }
    }


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RunFailed("It broke."), 500, "run_failed"),
        (RunFailed("No.", code="invalid_interrupt_answer"), 400, "invalid_interrupt_answer"),
        (InvalidInterruptAnswer("No."), 400, "invalid_interrupt_answer"),
        (None, 500, "response_cancelled"),
    ],
)
def test_a_failure_is_an_error_of_the_request(
    error: FermataError | None, status: int, code: str
) -> None:
    one = writer()
    one.begin()
    if error is None:
        one.cancel()
    else:
        one.fail(error)
    with pytest.raises(FermataError) as caught:
        completion(json.loads(one.resource()))
    assert (caught.value.status, caught.value.error_code) == (status, code)
    assert caught.value.retry_after is None


def test_ids_are_the_response_s_own() -> None:
    assert completion_id("resp_abc") == "chatcmpl-abc"
