"""`/v1/responses`: create, retrieve, cancel and delete. Parsing, planning and running are
elsewhere; this is transport."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.errors import InvalidRequest, Unavailable
from gateway.http.auth import principal_of
from gateway.http.body import read_body
from gateway.http.extensions import with_extensions
from gateway.http.idempotency import key_of
from gateway.http.leaving import result_of
from gateway.http.sse import stream
from gateway.http.state import Gateway, gateway_of
from gateway.http.tasks import task_reply
from gateway.runs import opening, withdrawal
from gateway.runs.following import FollowedReply, rejoin
from gateway.runs.principal import Principal
from gateway.runs.replies import Reply
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
    key = key_of(request, wanted)
    wanted = with_extensions(wanted, request.headers)
    reply = task or await opening.create(gateway.coordinator, wanted, principal, key)
    if wanted.stream:
        settings = gateway.settings
        return stream(reply, keepalive=settings.keepalive, grace=settings.shutdown_grace)
    if wanted.background and task is None:
        return Response(await _as_accepted(gateway, reply, principal), media_type=JSON)
    return Response(await result_of(reply, request), media_type=JSON)


async def _create(request: Request) -> Response:
    request.scope["route"] = CREATE  # FastAPI's router says so of its own routes only
    return await create_response(request)


CREATE = Route("/v1/responses", _create, methods=["POST"])
"""What is asked most, without what FastAPI does for parameters that this route does not have: a
sixth of the processor time of a short request (measured). Put before the router, whose route of the
same path is what the OpenAPI document is made from."""


async def _as_accepted(gateway: Gateway, reply: Reply, principal: Principal) -> bytes:
    """Queued; a repeat sees how far it is."""
    if isinstance(reply, FollowedReply) and reply.accepted is not None:
        return reply.accepted
    return await retrieve(gateway.coordinator.database, reply.response_id, principal)


@router.get("/v1/responses/{response_id}", response_model=None)
async def retrieve_response(request: Request, response_id: str) -> Response:
    """A stored response as it stands, with what reviewers' answers made of it; with `stream`, its
    events again."""
    if _is_true(request.query_params.get("stream"), "stream"):
        return await _rejoin(request, response_id)
    database = gateway_of(request).coordinator.database
    body = await retrieve(database, response_id, principal_of(request))
    return Response(body, media_type=JSON)


async def _rejoin(request: Request, response_id: str) -> Response:
    gateway = gateway_of(request)
    after = _number(request.query_params.get("starting_after"))
    reply = await rejoin(gateway.coordinator, response_id, principal_of(request), after)
    settings = gateway.settings
    return stream(reply, keepalive=settings.keepalive, grace=settings.shutdown_grace)


def _is_true(text: str | None, param: str) -> bool:
    if text is not None and text not in ("true", "false"):
        raise InvalidRequest(f"'{param}' is true or false.", param=param)
    return text == "true"


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    # The length first: int() refuses to read thousands of digits with an error of its own.
    if not (len(text) < 10 and text.isascii() and text.isdigit()):
        message = "The number of an event is needed, as in its sequence_number."
        raise InvalidRequest(message, param="starting_after")
    return int(text)


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
