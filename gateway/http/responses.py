"""`/v1/responses`: create, retrieve, cancel and delete. Parsing, planning and running are
elsewhere; this is transport."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import Unavailable
from gateway.http.auth import principal_of
from gateway.http.body import read_body
from gateway.http.extensions import with_extensions
from gateway.http.leaving import result_of
from gateway.http.sse import stream
from gateway.http.state import gateway_of
from gateway.http.tasks import task_reply
from gateway.runs import opening, withdrawal
from gateway.runs.retrieval import retrieve
from gateway.wire import encoding
from gateway.wire.request import parse_create

JSON = "application/json"

router = APIRouter()


@router.post("/v1/responses", response_model=None)
async def create_response(request: Request) -> Response:
    """Start a run, or answer the questions of one that waits; JSON or, with `stream`, SSE."""
    gateway = gateway_of(request)
    principal = principal_of(request)
    wanted = parse_create(await read_body(request, gateway.settings.max_body_bytes))
    if not gateway.migrated:
        raise Unavailable("The database is not ready yet.")
    task = task_reply(gateway, request.headers, wanted)
    wanted = with_extensions(wanted, request.headers)
    reply = task or await opening.create(gateway.coordinator, wanted, principal)
    if wanted.stream:
        settings = gateway.settings
        return stream(reply, keepalive=settings.keepalive, grace=settings.shutdown_grace)
    if wanted.background and task is None:
        database = gateway.coordinator.database
        return Response(await retrieve(database, reply.response_id, principal), media_type=JSON)
    return Response(await result_of(reply, request), media_type=JSON)


@router.get("/v1/responses/{response_id}", response_model=None)
async def retrieve_response(request: Request, response_id: str) -> Response:
    """A stored response as it stands, with what reviewers' answers made of it."""
    database = gateway_of(request).coordinator.database
    body = await retrieve(database, response_id, principal_of(request))
    return Response(body, media_type=JSON)


@router.post("/v1/responses/{response_id}/cancel", response_model=None)
async def cancel_response(request: Request, response_id: str) -> Response:
    """Stop a response in progress, withdraw a run that waits; any other is left as it is."""
    coordinator = gateway_of(request).coordinator
    body = await withdrawal.cancel(coordinator, response_id, principal_of(request))
    return Response(body, media_type=JSON)


@router.delete("/v1/responses/{response_id}", response_model=None)
async def delete_response(request: Request, response_id: str) -> Response:
    """Delete a response; a run that waits with it is withdrawn."""
    coordinator = gateway_of(request).coordinator
    await withdrawal.delete(coordinator, response_id, principal_of(request))
    told = {"id": response_id, "object": "response", "deleted": True}
    return Response(encoding.dumps(told), media_type=JSON)
