"""What every response carries, as plain ASGI: `x-request-id` and `openai-processing-ms`.

Starlette's BaseHTTPMiddleware would put a task and a queue between a stream and its client.
"""

from __future__ import annotations

import logging
import re
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import FermataError
from gateway.http.envelope import error_response
from gateway.wire.ids import new_id

logger = logging.getLogger("fermata.http")

_STARTS = frozenset(("http.response.start", "websocket.accept", "websocket.http.response.start"))
_SANE_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class RequestFacts:
    """Adds the request's id (the client's own if it is sane) and the time to the first byte, in
    ms."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id = _request_id(scope)

        told = False

        async def send_with_facts(message: Message) -> None:
            nonlocal told
            if message["type"] in _STARTS:
                told = True
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


def _request_id(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SANE_ID.fullmatch(value):
            return bytes(value)
    return new_id("req").encode()
