"""Output items and the Response resource, rendered straight to JSON bytes.

A stream renders the resource three times and each item twice, so everything that does not change is
rendered once: the echo of the request per response (`Response.echo`), an item's JSON when the item
is done. The SDK's own models would cost 22 µs an event; tests validate these bytes against them
instead.

All fields are always present (design of the wire, "The Response resource"): the moving ones here,
the echoed ones from `CreateResponse.echo`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.errors import FermataError
from gateway.wire.encoding import Json, line
from gateway.wire.request import CreateResponse


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that a run used; add them up over model calls and over resumes."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )

    def resource(self) -> dict[str, Json]:
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {
                "cached_tokens": self.cached_tokens,
                "cache_write_tokens": self.cache_write_tokens,
            },
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.total_tokens,
        }

    @classmethod
    def of_resource(cls, usage: Mapping[str, Any]) -> Usage:
        return cls(
            usage["input_tokens"],
            usage["output_tokens"],
            usage["input_tokens_details"]["cached_tokens"],
            usage["input_tokens_details"]["cache_write_tokens"],
            usage["output_tokens_details"]["reasoning_tokens"],
        )


@dataclass(frozen=True, slots=True)
class State:
    """The moving part of a response: how far it is and what came out so far."""

    status: str = "in_progress"
    completed_at: int | None = None
    error: Mapping[str, Json] | None = None
    incomplete_reason: str | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """The standing part of a response. `echo` is the echo of its request as JSON, without braces.

    `created_at` is in whole seconds. `ids` are the item ids to use again, for a replay.
    """

    id: str
    created_at: int
    echo: bytes
    background: bool = False
    ids: tuple[str, ...] = field(default=())

    @classmethod
    def of_request(cls, request: CreateResponse, id: str, created_at: int) -> Response:
        return cls(id, created_at, line(request.echo)[1:-1], request.background)

    @classmethod
    def of_resource(cls, resource: Mapping[str, Json]) -> Response:
        """From a stored resource, whose every field that does not move is echo."""
        echo = {name: value for name, value in resource.items() if name not in _NO_ECHO}
        return cls(
            id=resource["id"],
            created_at=resource["created_at"],
            echo=line(echo)[1:-1],
            background=bool(resource["background"]),
            ids=tuple(item["id"] for item in resource["output"]),
        )

    def render(self, state: State, output: Iterable[bytes] = ()) -> bytes:
        """The resource as JSON; `output` are rendered items."""
        reason = state.incomplete_reason
        moving = {
            "status": state.status,
            "completed_at": state.completed_at,
            "error": state.error,
            "incomplete_details": None if reason is None else {"reason": reason},
            "usage": None if state.usage is None else state.usage.resource(),
        }
        return b'{"id":%b,"object":"response","created_at":%d,%b,"output":[%b],%b}' % (
            line(self.id),
            self.created_at,
            line(moving)[1:-1],
            b",".join(output),
            self.echo,
        )


_STANDING = ("id", "object", "created_at")
_MOVING = ("status", "completed_at", "error", "incomplete_details", "usage", "output")
_NO_ECHO = frozenset((*_STANDING, *_MOVING))


def error_resource(error: FermataError) -> dict[str, Json]:
    """The `error` of a failed response. `type` and `param` too: some clients refuse it without."""
    return {
        "code": error.error_code,
        "message": error.message,
        "type": error.type,
        "param": error.param,
    }


# --- items -----------------------------------------------------------------------------------


def text_part(text: str) -> bytes:
    return b'{"type":"output_text","text":%b,"annotations":[],"logprobs":[]}' % line(text)


def refusal_part(refusal: str) -> bytes:
    return b'{"type":"refusal","refusal":%b}' % line(refusal)


def summary_part(text: str) -> bytes:
    return b'{"type":"summary_text","text":%b}' % line(text)


def message_item(id: str, status: str, parts: Iterable[bytes] = ()) -> bytes:
    return b'{"id":"%b","type":"message","status":"%b","role":"assistant","content":[%b]}' % (
        id.encode(),
        status.encode(),
        b",".join(parts),
    )


def reasoning_item(id: str, status: str, summary: Iterable[bytes] = ()) -> bytes:
    """Summaries only: what a model thinks in full is not shown."""
    return b'{"id":"%b","type":"reasoning","status":"%b","summary":[%b]}' % (
        id.encode(),
        status.encode(),
        b",".join(summary),
    )


def function_call_item(id: str, status: str, call: tuple[str, str, str]) -> bytes:
    """`call` is call id, name and arguments."""
    call_id, name, arguments = call
    return (
        b'{"id":"%b","type":"function_call","status":"%b","call_id":%b,"name":%b,"arguments":%b}'
        % (id.encode(), status.encode(), line(call_id), line(name), line(arguments))
    )


def as_function_name(name: str, otherwise: str = "interrupt") -> str:
    """`name` made fit for a function call: at most 64 letters, digits, `_` and `-`."""
    fitting = re.sub(r"[^a-zA-Z0-9_-]+", "_", name).strip("_")[:64]
    return fitting or otherwise
