"""`/v1/responses` as a WebSocket: many turns over one connection, one after the other.

Two tasks a connection. One reads: it puts messages in line, and ends when the client is gone. The
other takes them one by one; a run is told by the same frames as over HTTP, and a client that goes
in the middle of one leaves it as it would leave a stream. Who asks is looked at again at every
turn: a connection may outlive its key.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from dataclasses import replace

from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect

from gateway.errors import (
    BodyTooLarge,
    ConnectionLimitReached,
    FermataError,
    ModelNotFound,
    PreviousResponseNotFound,
    ResponseInProgress,
    Unauthenticated,
)
from gateway.http.auth import identified
from gateway.http.extensions import with_extensions
from gateway.http.state import Gateway, gateway_of, ready
from gateway.http.tasks import task_reply
from gateway.runs import opening
from gateway.runs.principal import Principal
from gateway.runs.replies import Reply
from gateway.runs.saying import said
from gateway.wire.request import CreateResponse
from gateway.wire.socket import (
    Memory,
    Remembered,
    Turn,
    error_event,
    event_text,
    own_param,
    parse_turn,
    refuse_open_calls,
    resent,
)

logger = logging.getLogger("fermata.socket")

MOST_WAITING = 16
"""Messages that may stand in line behind the turn under way."""

_TOO_LARGE, _BROKEN, _POLICY = 1009, 1011, 1008  # RFC 6455, section 7.4.1

router = APIRouter()


@router.websocket("/v1/responses")
async def respond(socket: WebSocket) -> None:
    """Turns until the client goes, or the connection is too old."""
    await socket.accept()
    connection = _Connection(socket)
    reading = asyncio.create_task(connection.read())
    turns = asyncio.create_task(connection.take_turns())
    await asyncio.wait((reading, turns), return_when=asyncio.FIRST_COMPLETED)
    for task in (reading, turns):
        task.cancel()
    for failed in await asyncio.gather(reading, turns, return_exceptions=True):
        if isinstance(failed, Exception) and not isinstance(failed, WebSocketDisconnect):
            logger.error("a connection failed", exc_info=failed)
            await connection.close(_BROKEN)


class _Connection:
    """One client. `read` and `take_turns` are its two tasks."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._gateway: Gateway = gateway_of(socket)
        self._limit = self._gateway.settings.max_body_bytes
        self._memory = Memory(self._limit)
        self._waiting: deque[str | bytes] = deque()
        self._arrived = asyncio.Event()

    async def read(self) -> None:
        """Put what comes in line, until the client is gone or sends what is too long."""
        while (message := await self._socket.receive())["type"] == "websocket.receive":
            content: str | bytes = message.get("text") or message.get("bytes") or ""
            if len(content) > self._limit:
                await self._tell(
                    error_event(BodyTooLarge(f"The message is longer than {self._limit} bytes."))
                )
                await self.close(_TOO_LARGE)
                return
            if self._is_full(content):
                busy = ResponseInProgress("Too many requests wait on this connection already.")
                await self._tell(error_event(busy))
                continue
            self._waiting.append(content)
            self._arrived.set()

    def _is_full(self, content: str | bytes) -> bool:
        size = sum(map(len, self._waiting), len(content))
        return bool(self._waiting) and (len(self._waiting) >= MOST_WAITING or size > self._limit)

    async def take_turns(self) -> None:
        """One message after the other. A connection that is too old is told so between two."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._gateway.settings.websocket_limit.total_seconds()
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    content = await self._next()
            except TimeoutError:
                await self._tell(error_event(ConnectionLimitReached()))
                await self.close(_POLICY)
                return
            if not await self._turn(content):
                return

    async def _next(self) -> str | bytes:
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        # Also if there is no need to wait: a line that is never empty must not outlive the limit.
        await asyncio.sleep(0)
        return self._waiting.popleft()

    async def _turn(self, content: str | bytes) -> bool:
        """Answer one message; False if nothing more is to be answered."""
        try:
            principal = await identified(self._socket)
            await self._respond(parse_turn(content), principal)
        except FermataError as error:
            await self._tell(error_event(error))
            if isinstance(error, Unauthenticated):
                await self.close(_POLICY)
                return False
        return True

    async def _respond(self, turn: Turn, principal: Principal) -> None:
        gateway = ready(self._socket)
        request = with_extensions(turn.request, self._socket.headers)
        reply: Reply | None = task_reply(gateway, self._socket.headers, request)
        if reply is not None:
            await self._tell_all(reply)
        elif turn.generate:
            await self._run(request, principal)
        else:
            await self._warm_up(request)

    async def _run(self, request: CreateResponse, principal: Principal) -> None:
        last = self._memory.recall(request)
        if last is None:
            reply, whole = await self._opened(request, principal), request
        else:
            reply, whole = await self._continued(request, last, principal)
        self._memory.keep(whole, await self._tell_all(reply))

    async def _continued(
        self, request: CreateResponse, last: Remembered, principal: Principal
    ) -> tuple[Reply, CreateResponse]:
        """The reply to what goes on from the memory, and the request as it was resent. Outputs may
        answer questions, which are known however the response that asked was stored."""
        whole = resent(request, last)
        try:
            if request.outputs:
                with contextlib.suppress(PreviousResponseNotFound):
                    return await self._opened(request, principal), whole
            refuse_open_calls(request, last)
            return await self._opened_resent(whole, last, principal), whole
        except FermataError:
            self._memory.evict()
            raise

    async def _opened_resent(
        self, whole: CreateResponse, last: Remembered, principal: Principal
    ) -> Reply:
        try:
            return await self._opened(whole, principal)
        except FermataError as error:
            error.param = own_param(error.param, last)
            raise

    async def _opened(self, request: CreateResponse, principal: Principal) -> Reply:
        """The reply. A client that goes meanwhile must not tear the opening apart."""
        opened = asyncio.create_task(opening.create(self._gateway.coordinator, request, principal))
        try:
            return await asyncio.shield(opened)
        except asyncio.CancelledError:
            opened.add_done_callback(_leave)
            raise

    async def _warm_up(self, request: CreateResponse) -> None:
        """A response without output, which the next turn of this connection may continue."""
        if request.model not in self._gateway.coordinator.graphs:
            raise ModelNotFound(request.model)
        last = self._memory.recall(request)
        whole = replace(request if last is None else resent(request, last), store=False)
        self._memory.keep(whole, await self._tell_all(said(whole, "")))

    async def _tell_all(self, reply: Reply) -> str:
        """Every event of the reply; the last one, which carries the whole response, is returned."""
        last = ""
        try:
            async for frames in reply.frames():
                for text in filter(None, map(event_text, frames)):
                    last = text
                    await self._tell(text)
            return last
        finally:
            reply.leave()

    async def _tell(self, text: str) -> None:
        await self._socket.send_text(text)

    async def close(self, code: int) -> None:
        """Close, unless the client did."""
        try:
            await self._socket.close(code)
        except (RuntimeError, WebSocketDisconnect):
            logger.debug("the client closed first")


def _leave(opened: asyncio.Task[Reply]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().leave()
