"""Frames -> a stream. sse-starlette gets ready-made bytes: its dicts cost three times as much."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta

from sse_starlette import EventSourceResponse, ServerSentEvent

from gateway.errors import FermataError
from gateway.runs.replies import Reply
from gateway.wire.writer import DONE, error_frame

LF = "\n"
LAST_WORDS = 3.0  # seconds
HEADERS = {"Cache-Control": "no-cache"}  # X-Accel-Buffering: no is sse-starlette's own


def stream(
    reply: Reply,
    *,
    keepalive: timedelta,
    grace: timedelta,
    told: Callable[[FermataError, int], bytes] = error_frame,
) -> EventSourceResponse:
    """The reply as an SSE response.

    An error on the way (the headers are out) is its last event, as `told` says it with its number.
    A comment is sent at least every `keepalive`; after SIGTERM the stream may go on for `grace`,
    then the coordinator ends it in order: what cuts it off is only for streams that do not take
    that.
    """
    return EventSourceResponse(
        _until_left(reply, told),
        headers=HEADERS,
        sep=LF,
        ping=keepalive.total_seconds(),
        ping_message_factory=_keep_alive,
        shutdown_grace_period=grace.total_seconds() + LAST_WORDS,
    )


async def _until_left(
    reply: Reply, told: Callable[[FermataError, int], bytes]
) -> AsyncIterator[bytes]:
    number = 0
    try:
        async for frame in reply.frames():
            yield frame
            number += 1
    except FermataError as error:
        yield told(error, number)
        yield DONE
    finally:
        reply.leave()


def _keep_alive() -> ServerSentEvent:
    return ServerSentEvent(comment="keep-alive", sep=LF)
