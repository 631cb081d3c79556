"""The WebSocket transport of Open Responses, sans-IO: messages in, events out, and what one
connection remembers.

A client sends `response.create`: the body of `POST /v1/responses` with a `type`. It gets the events
of the HTTP stream, one JSON text each, and an `error` event for what HTTP would refuse.

`Memory` holds the most recent response of the connection if nothing else does, i.e. after
`store: false`. Continued by `previous_response_id`, it is put before the new input, exactly as a
client would that resends its history; so there is no second way to plan a request. What a turn that
fails continued is forgotten, as Open Responses demands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gateway.errors import FermataError, InvalidRequest
from gateway.wire import checks
from gateway.wire.encoding import Json, dumps, line, loads, read_back
from gateway.wire.history import FunctionCall, Item, parse_item
from gateway.wire.items import error_resource
from gateway.wire.request import CreateResponse, parse_create
from gateway.wire.writer import DONE

CREATE = "response.create"


@dataclass(frozen=True, slots=True)
class Turn:
    """One `response.create`. Without `generate` nothing runs: the input waits for the next turn."""

    request: CreateResponse
    generate: bool = True


def parse_turn(text: str | bytes) -> Turn:
    """Read a client's message. Raises `InvalidRequest` naming the one parameter that is wrong."""
    event = loads(text)
    if not isinstance(event, dict):
        raise InvalidRequest("A message must be a JSON object.", code="invalid_type")
    kind = checks.required(event, "type", "", checks.string)
    if kind != CREATE:
        raise checks.unknown(kind, "type", (CREATE,))
    body = {key: value for key, value in event.items() if key not in _OF_THE_TRANSPORT}
    for key, allowed in _OF_THE_TRANSPORT.items():
        value = event.get(key)
        if value is not None and allowed is not None and value not in allowed:
            message = (
                f"'{key}' cannot be {dumps(value)[:40]} here: a connection streams its events."
            )
            checks.refuse(key, message, "unsupported_parameter")
    generate = checks.optional(event, "generate", "", checks.boolean)
    return Turn(replace(parse_create(body), stream=True), generate is not False)


_OF_THE_TRANSPORT: Mapping[str, tuple[Json, ...] | None] = {
    "type": None,
    "generate": None,
    "stream": (True,),
    "stream_options": None,
    "background": (False,),
    "stream_id": (),
}
"""Fields that are no part of the body, and the values that are taken; None: any."""


def event_text(frame: bytes) -> str | None:
    """The event of an SSE frame; None for the frame that closes a stream."""
    return None if frame == DONE else frame.partition(b"\ndata: ")[2].rstrip().decode()


def error_event(error: FermataError) -> str:
    """What HTTP would have refused, or could not finish."""
    retry = error.retry_after
    headers = {"x-should-retry": "false"} if retry is None else {"retry-after": str(retry)}
    told = error_resource(error) | {"headers": headers}
    return line({"type": "error", "status": error.status, "error": told}).decode()


# --- what a connection remembers -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Remembered:
    """A response that is not stored: what it continued (if that is stored), and its items since."""

    id: str
    previous_id: str | None
    items: tuple[Item, ...]
    calls: tuple[str, ...]
    """The calls of its output: the next turn has to answer them."""


class Memory:
    """The most recent response of one connection. `limit` bounds it, in characters of JSON."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._last: Remembered | None = None

    def recall(self, request: CreateResponse) -> Remembered | None:
        """What the request continues, if it is remembered here."""
        last = self._last
        return last if last is not None and last.id == request.previous_response_id else None

    def keep(self, request: CreateResponse, event: str) -> None:
        """Remember what ended with this event, in answer to this request (as it was resent).

        One that is stored, or failed, or is too long, is not. Nor is an answer that continued what
        is stored: its questions are in the database, and cannot be answered once more from here.
        Nor is a turn of a conversation, which has its own memory.
        """
        self._last = None
        answers_stored = bool(request.outputs) and request.previous_response_id is not None
        if request.store or answers_stored or request.conversation is not None:
            return
        resource = read_back(event)["response"]
        if resource["status"] not in ("completed", "incomplete"):
            return
        output = tuple(parse_item(item, "output") for item in resource["output"])
        items = (*request.input, *output)
        if sum(len(dumps(item.raw)) for item in items) > self._limit:
            return
        calls = tuple(item.call_id for item in output if isinstance(item, FunctionCall))
        self._last = Remembered(resource["id"], request.previous_response_id, items, calls)

    def evict(self) -> None:
        """A turn failed: what it continued is not to be continued any more."""
        self._last = None


def refuse_open_calls(request: CreateResponse, last: Remembered) -> None:
    """Raises `InvalidRequest` if a call of what is continued gets no output: a text is none."""
    answered = {output.call_id for output in request.outputs}
    for call_id in last.calls:
        if call_id not in answered:
            message = f"No tool output found for function call {call_id}."
            raise InvalidRequest(message, param="input")


def resent(request: CreateResponse, last: Remembered) -> CreateResponse:
    """The request with what it continues put before its input."""
    return replace(
        request,
        previous_response_id=last.previous_id,
        told_previous_id=last.id,
        input=(*last.items, *request.input),
    )


def own_param(param: str | None, last: Remembered) -> str | None:
    """A parameter of the resent request, as the client numbers its input."""
    match = _INDEX.match(param or "")
    if param is None or match is None:
        return param
    index = int(match[1]) - len(last.items)
    return f"input[{index}]{param[match.end() :]}" if index >= 0 else "previous_response_id"


_INDEX = re.compile(r"input\[(\d+)\]")
