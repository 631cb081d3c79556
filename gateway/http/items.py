"""`/v1/responses/{id}/input_items`: what a response was made from."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.http.auth import principal_of
from gateway.http.body import json_response
from gateway.http.state import ready
from gateway.runs.items import input_items
from gateway.wire.paging import parse_paging

router = APIRouter()


@router.get("/v1/responses/{response_id}/input_items", response_model=None)
async def list_input_items(request: Request, response_id: str) -> Response:
    """The conversation before the response and its own input, newest first; `after`, `limit` and
    `order` page through it."""
    paging = parse_paging(request.query_params)
    database = ready(request).coordinator.database
    page = await input_items(database, response_id, principal_of(request), paging)
    return json_response(page.resource())
