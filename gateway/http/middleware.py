"""What every response carries, as plain ASGI: `x-request-id` and `openai-processing-ms`.

Starlette's BaseHTTPMiddleware would put a task and a queue between a stream and its client.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import FermataError
from gateway.http.envelope import error_response
from gateway.wire.ids import new_id

logger = logging.getLogger("fermata.http")

_STARTS = frozenset(("http.response.start", "websocket.accept", "websocket.http.response.start"))
_ACCEPTED = 101  # of a WebSocket: the server writes the status
_CLOSED = 499  # nginx's, for a client that went before it was answered
_SANE_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class RequestFacts:
    """Adds the request's id (the client's own if it is sane) and the time to the first byte, in
    ms. `observe` is told what was answered, with which status, after how many seconds in all."""

    def __init__(
        self, app: ASGIApp, observe: Callable[[Scope, int, float], None] | None = None
    ) -> None:
        self.app = app
        self.observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id = _request_id(scope)

        told = 0

        async def send_with_facts(message: Message) -> None:
            nonlocal told
            if message["type"] in _STARTS:
                told = message.get("status", _ACCEPTED)
                spent = int((time.perf_counter() - started) * 1000)
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id),
                    (b"openai-processing-ms", b"%d" % spent),
                ]
            await send(message)

        try:
            await self.app(scope, receive, send_with_facts)
        except Exception:
            # A bug of ours: the traceback goes into the log, never to the client.
            logger.exception("unhandled error in %s (%s)", scope["path"], request_id.decode())
            if told:
                raise
            answer = error_response(FermataError("The server had an error; its log says more."))
            await answer(scope, receive, send_with_facts)
        finally:
            if self.observe is not None:
                self.observe(scope, told or _CLOSED, time.perf_counter() - started)


def _request_id(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SANE_ID.fullmatch(value):
            return bytes(value)
    return new_id("req").encode()
