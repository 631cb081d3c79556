"""A WebSocket client of an ASGI application in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.integration.api import Api
from tests.openresponses import TERMINAL, Json, check_stream, validate_socket_error

DENIAL = {"websocket.http.response": {}}


class Socket:
    """One connection: what the server does is read message by message."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[Json] = asyncio.Queue()
        self.received: asyncio.Queue[Json] = asyncio.Queue()
        self.headers: dict[str, str] = {}

    async def send(self, message: Any) -> None:
        """A message: JSON, or text as it is."""
        text = message if isinstance(message, str) else json.dumps(message)
        await self.sent.put({"type": "websocket.receive", "text": text})

    async def create(self, model: str, said: Any, **fields: Any) -> None:
        await self.send({"type": "response.create", "model": model, "input": said, **fields})

    async def next(self) -> Json:
        """The next event."""
        async with asyncio.timeout(10):
            message = await self.received.get()
        assert message["type"] == "websocket.send", message
        return dict(json.loads(message["text"]))

    async def events(self) -> list[Json]:
        """The events of one turn, up to the last one."""
        events = [await self.next()]
        while events[-1]["type"] not in (*TERMINAL, "error"):
            events.append(await self.next())
        return events

    async def response(self) -> Json:
        """The resource that a turn ends with; its events are validated as a stream's."""
        return check_stream(await self.events())

    async def error(self) -> Json:
        """The error that a turn is refused with, validated."""
        (event,) = await self.events()
        validate_socket_error(event)
        return dict(event["error"])

    async def closed(self) -> int:
        """The code that the server closes with."""
        async with asyncio.timeout(10):
            message = await self.received.get()
        assert message["type"] == "websocket.close", message
        return int(message["code"])


@asynccontextmanager
async def connected(
    api: Api, headers: Mapping[str, str] | None = None, *, denial: bool = True
) -> AsyncIterator[Socket]:
    """A connection that was accepted; leaving closes it."""
    async with opened(api, headers, denial=denial) as (socket, first):
        assert first["type"] == "websocket.accept", first
        yield socket


@asynccontextmanager
async def opened(
    api: Api, headers: Mapping[str, str] | None = None, *, denial: bool = True
) -> AsyncIterator[tuple[Socket, Json]]:
    """A connection, and how its handshake was answered."""
    socket = Socket()
    sent = {"host": "gateway", **(headers or {})}
    scope = {
        "type": "websocket",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "ws",
        "path": "/v1/responses",
        "raw_path": b"/v1/responses",
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
        "subprotocols": [],
        "extensions": DENIAL if denial else {},
    }
    await socket.sent.put({"type": "websocket.connect"})
    served = asyncio.create_task(api.app(scope, socket.sent.get, socket.received.put))  # type: ignore[arg-type]
    try:
        async with asyncio.timeout(10):
            first = await socket.received.get()
        answered = first.get("headers", ())
        socket.headers = {name.decode(): value.decode() for name, value in answered}
        yield socket, first
    finally:
        await socket.sent.put({"type": "websocket.disconnect", "code": 1005})
        async with asyncio.timeout(10):
            await served
