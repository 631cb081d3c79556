"""What a run says, as Chat Completions says it: pure, from the Responses side of the wire.

The run is written once, by `wire.writer`, and what is stored is a Response. A chat client gets a
translation of that: `completion` of the final resource, `Chunks` of the frames. Both give the same
text: a run that says several messages says them in one, a blank line between.

    response.created            the first chunk, with the role
    …output_text.delta          a chunk with content
    …refusal.delta              a chunk with refusal
    …output_item.done, a call   two chunks: id and name, then the arguments
    response.completed          a chunk with the reason, then one with usage if that was asked for
    response.failed             a chunk with an error, which every SDK raises
    all others                  nothing

Reasoning summaries have no place in Chat Completions and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.errors import FermataError, InvalidInterruptAnswer, InvalidRequest, RunFailed
from gateway.wire.encoding import Json, line, read_back
from gateway.wire.writer import DONE

BETWEEN = "\n\n"
"""What stands between two messages of one run."""


def completion_id(response_id: str) -> str:
    """`resp_…` as `chatcmpl-…`: the same run is found by either."""
    return f"chatcmpl-{response_id.partition('_')[2]}"


def completion(resource: Mapping[str, Json]) -> bytes:
    """The chat completion that the resource of an ended response is, as JSON.

    Raises the run's failure as an error: a chat completion has no way to say it.
    """
    if resource["status"] in ("failed", "cancelled"):
        raise failure(resource)
    calls = [item for item in resource["output"] if item["type"] == "function_call"]
    said = _message(resource["output"], calls)
    choice = {
        "index": 0,
        "message": said,
        "logprobs": None,
        "finish_reason": _finish_reason(resource, bool(calls)),
    }
    return line(
        _about(resource, "chat.completion") | {"choices": [choice], "usage": _usage(resource)}
    )


def failure(resource: Mapping[str, Json]) -> FermataError:
    """The error of a failed response. An answer that its graph refused is the client's mistake."""
    error = resource["error"]
    if error is None:
        return RunFailed("The response was cancelled.", code="response_cancelled")
    code, message, param = error["code"], error["message"], error["param"]
    if code == InvalidInterruptAnswer.code:
        return InvalidInterruptAnswer(message, param="messages")
    if error["type"] == InvalidRequest.type:
        return InvalidRequest(message, param=param, code=code)
    return RunFailed(message, param=param, code=code)


class Chunks:
    """Translates the frames of one stream. `done` of the stream passes as it is."""

    def __init__(self, *, include_usage: bool) -> None:
        self._usage = include_usage
        self._head = b""
        self._tail = b',"logprobs":null,"finish_reason":null}]%b}\n\n' % self._no_usage()
        self._index: int | None = None  # of the item that spoke last
        self._calls = 0

    def of(self, frame: bytes) -> list[bytes]:
        """What one frame of the Responses stream is here: mostly one chunk, or none."""
        if frame == DONE:
            return [frame]
        name, _, data = frame.partition(b"\n")
        translate = _EVENTS.get(name)
        return [] if translate is None else translate(self, read_back(data[_DATA:]))

    def _no_usage(self) -> bytes:
        return b',"usage":null' if self._usage else b""

    def _delta(self, delta: Json) -> bytes:
        return b"%b%b%b" % (self._head, line(delta), self._tail)

    def _start(self, event: Json) -> list[bytes]:
        about = line(_about(event["response"], "chat.completion.chunk"))
        self._head = b'data: %b,"choices":[{"index":0,"delta":' % about[:-1]
        return [self._delta({"role": "assistant", "content": "", "refusal": None})]

    def _text(self, event: Json) -> list[bytes]:
        text = event["delta"]
        index = event["output_index"]
        if self._index is not None and self._index != index:
            text = BETWEEN + text
        self._index = index
        return [self._delta({"content": text})]

    def _refusal(self, event: Json) -> list[bytes]:
        return [self._delta({"refusal": event["delta"]})]

    def _item(self, event: Json) -> list[bytes]:
        item = event["item"]
        if item["type"] != "function_call":
            return []
        number = self._calls
        self._calls += 1
        started = {"name": item["name"], "arguments": ""}
        call = {"index": number, "id": item["call_id"], "type": "function", "function": started}
        rest = {"index": number, "function": {"arguments": item["arguments"]}}
        return [self._delta({"tool_calls": [call]}), self._delta({"tool_calls": [rest]})]

    def _end(self, event: Json) -> list[bytes]:
        resource = event["response"]
        reason = line(_finish_reason(resource, self._calls > 0))
        chunks = [
            b'%b{},"logprobs":null,"finish_reason":%b}]%b}\n\n'
            % (self._head, reason, self._no_usage())
        ]
        if self._usage:
            about = _about(resource, "chat.completion.chunk")
            told = about | {"choices": [], "usage": _usage(resource)}
            chunks.append(b"data: %b\n\n" % line(told))
        return chunks

    def _fail(self, event: Json) -> list[bytes]:
        return [error_chunk(failure(event["response"]))]


def error_chunk(error: FermataError) -> bytes:
    """A chunk that the SDKs raise, in the middle of a stream as well."""
    told = {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.error_code,
    }
    return b"data: %b\n\n" % line({"error": told})


_DATA = len(b"data: ")
_EVENTS: Mapping[bytes, Callable[[Chunks, Json], list[bytes]]] = {
    b"event: response.created": Chunks._start,
    b"event: response.output_text.delta": Chunks._text,
    b"event: response.refusal.delta": Chunks._refusal,
    b"event: response.output_item.done": Chunks._item,
    b"event: response.completed": Chunks._end,
    b"event: response.incomplete": Chunks._end,
    b"event: response.failed": Chunks._fail,
}


# --- parts of both ---------------------------------------------------------------------------


def _about(resource: Mapping[str, Json], kind: str) -> dict[str, Json]:
    return {
        "id": completion_id(resource["id"]),
        "object": kind,
        "created": resource["created_at"],
        "model": resource["model"],
        "service_tier": resource["service_tier"],
        "system_fingerprint": None,
    }


def _message(output: list[Json], calls: list[Json]) -> dict[str, Json]:
    texts, refusals = [], []
    for item in output:
        parts = item["content"] if item["type"] == "message" else []
        texts.append("".join(part["text"] for part in parts if part["type"] == "output_text"))
        refusals += [part["refusal"] for part in parts if part["type"] == "refusal"]
    said: dict[str, Json] = {
        "role": "assistant",
        "content": BETWEEN.join(text for text in texts if text) or None,
        "refusal": "".join(refusals) or None,
        "annotations": [],
    }
    if calls:
        said["tool_calls"] = [_tool_call(item) for item in calls]
    return said


def _tool_call(item: Json) -> Json:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def _finish_reason(resource: Mapping[str, Json], has_calls: bool) -> str:
    incomplete = resource["incomplete_details"]
    if incomplete is not None:
        return "content_filter" if incomplete["reason"] == "content_filter" else "length"
    return "tool_calls" if has_calls else "stop"


def _usage(resource: Mapping[str, Json]) -> Json:
    usage = resource["usage"]
    if usage is None:
        return None
    read, written = usage["input_tokens_details"], usage["output_tokens_details"]
    return {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
        "prompt_tokens_details": {
            "cached_tokens": read["cached_tokens"],
            "cache_write_tokens": read["cache_write_tokens"],
            "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": written["reasoning_tokens"],
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
