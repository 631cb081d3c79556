"""What every response carries, as plain ASGI: `x-request-id` and `openai-processing-ms`.

Starlette's BaseHTTPMiddleware would put a task and a queue between a stream and its client.
"""

from __future__ import annotations

import re
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.wire.ids import new_id

_SANE_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class RequestFacts:
    """Adds the request's id (the client's own if it is sane) and the time to the first byte, in
    ms."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id = _request_id(scope)

        async def send_with_facts(message: Message) -> None:
            if message["type"] == "http.response.start":
                spent = int((time.perf_counter() - started) * 1000)
                message["headers"] = [
                    *message["headers"],
                    (b"x-request-id", request_id),
                    (b"openai-processing-ms", b"%d" % spent),
                ]
            await send(message)

        await self.app(scope, receive, send_with_facts)


def _request_id(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SANE_ID.fullmatch(value):
            return bytes(value)
    return new_id("req").encode()
