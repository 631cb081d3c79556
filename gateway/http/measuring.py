"""`/v1/responses/input_tokens` and `/v1/responses/compact`: they read a context, run nothing."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.http.auth import principal_of
from gateway.http.body import json_response, read_body
from gateway.http.state import ready
from gateway.runs import measuring
from gateway.wire.measuring import parse_compact, parse_input_tokens

router = APIRouter()


@router.post("/v1/responses/input_tokens", response_model=None)
async def count_input_tokens(request: Request) -> Response:
    """How many tokens the input of such a request is; `fermata.counted_by` says by whose count."""
    gateway = ready(request)
    body = await read_body(request, gateway.settings.max_body_bytes)
    wanted, named = parse_input_tokens(body)
    count, counted_by = await measuring.count_input(
        gateway.coordinator, wanted, principal_of(request), named=named
    )
    return json_response(
        {
            "object": "response.input_tokens",
            "input_tokens": count,
            "fermata": {"counted_by": counted_by},
        }
    )


@router.post("/v1/responses/compact", response_model=None)
async def compact_response(request: Request) -> Response:
    """A context in one item, to be sent instead of it."""
    gateway = ready(request)
    wanted = parse_compact(await read_body(request, gateway.settings.max_body_bytes))
    return json_response(
        await measuring.compact(gateway.coordinator, wanted, principal_of(request))
    )
