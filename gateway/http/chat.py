"""`POST /v1/chat/completions`: the same runs, for clients that speak Chat Completions.

The request is translated before the pipeline and the answer after it (`wire.chat_request`,
`wire.chat`); between them a chat client is like any other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import FermataError
from gateway.http.auth import principal_of
from gateway.http.body import read_body
from gateway.http.idempotency import key_of
from gateway.http.leaving import result_of
from gateway.http.sse import stream
from gateway.http.state import Gateway, ready
from gateway.http.tasks import task_reply
from gateway.runs import opening
from gateway.runs.idempotency import Key
from gateway.runs.principal import Principal
from gateway.runs.replies import Reply
from gateway.wire import encoding
from gateway.wire.chat import Chunks, completion
from gateway.wire.chat_request import ChatRequest, parse_chat
from gateway.wire.writer import Frames

router = APIRouter()


@router.post("/v1/chat/completions", response_model=None)
async def create_completion(request: Request) -> Response:
    """Start a run, or answer the questions of one that waits by `tool` messages; JSON or, with
    `stream`, SSE."""
    gateway = ready(request)
    wanted = parse_chat(await read_body(request, gateway.settings.max_body_bytes))
    task = task_reply(gateway, request.headers, wanted.create)
    key = key_of(request, wanted.create)
    reply = task or await _opened(gateway, wanted, principal_of(request), key)
    if wanted.create.stream:
        settings = gateway.settings
        told = _ChatReply(reply, Chunks(include_usage=wanted.include_usage))
        return stream(told, keepalive=settings.keepalive, grace=settings.shutdown_grace)
    resource = encoding.loads(await result_of(reply, request))
    return Response(completion(resource), media_type="application/json")


async def _opened(
    gateway: Gateway, wanted: ChatRequest, principal: Principal, key: Key | None
) -> Reply:
    """The reply. A refusal names the parameter as the chat client calls it."""
    try:
        return await opening.create(gateway.coordinator, wanted.create, principal, key)
    except FermataError as error:
        error.param = wanted.param(error.param)
        raise


@dataclass(slots=True)
class _ChatReply:
    """A reply whose frames are told as chunks."""

    reply: Reply
    chunks: Chunks

    @property
    def response_id(self) -> str:
        return self.reply.response_id

    @property
    def goes_with_client(self) -> bool:
        return self.reply.goes_with_client

    async def result(self) -> bytes:
        return await self.reply.result()

    async def frames(self) -> AsyncIterator[Frames]:
        async for frames in self.reply.frames():
            if chunks := [chunk for frame in frames for chunk in self.chunks.of(frame)]:
                yield chunks

    def leave(self) -> None:
        self.reply.leave()
