"""Frames -> a stream. sse-starlette gets ready-made bytes: its dicts cost three times as much."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from datetime import timedelta

from sse_starlette import EventSourceResponse, ServerSentEvent

from gateway.errors import FermataError
from gateway.runs.replies import Reply

logger = logging.getLogger("fermata.http")

LF = "\n"
LAST_WORDS = 3.0  # seconds
HEADERS = {"Cache-Control": "no-cache"}  # X-Accel-Buffering: no is sse-starlette's own


def stream(reply: Reply, *, keepalive: timedelta, grace: timedelta) -> EventSourceResponse:
    """The reply as an SSE response.

    A comment is sent at least every `keepalive`; after SIGTERM the stream may go on for `grace`,
    then the coordinator ends it in order: what cuts it off is only for streams that do not take
    that.
    """
    return EventSourceResponse(
        _until_left(reply),
        headers=HEADERS,
        sep=LF,
        ping=keepalive.total_seconds(),
        ping_message_factory=_keep_alive,
        shutdown_grace_period=grace.total_seconds() + LAST_WORDS,
    )


async def _until_left(reply: Reply) -> AsyncIterator[bytes]:
    try:
        async for frames in reply.frames():
            yield b"".join(frames)
    except FermataError as error:  # it is followed from the record: its client comes again
        logger.warning("the stream of %s ends early: %s", reply.response_id, error.message)
    finally:
        reply.leave()


def _keep_alive() -> ServerSentEvent:
    return ServerSentEvent(comment="keep-alive", sep=LF)
