"""`/v1/conversations`: conversations and their items, as OpenAI's API has them."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.http.auth import principal_of
from gateway.http.body import json_response, read_body
from gateway.http.state import ready
from gateway.runs import conversations
from gateway.store.db import Database
from gateway.wire import conversations as wire
from gateway.wire.paging import parse_paging

router = APIRouter()


@router.post("/v1/conversations", response_model=None)
async def create_conversation(request: Request) -> Response:
    """A new conversation, with items and metadata if they are sent."""
    items, metadata = wire.parse_conversation(await _body(request))
    made = await conversations.create(_database(request), principal_of(request), items, metadata)
    return json_response(made)


@router.get("/v1/conversations/{conversation_id}", response_model=None)
async def retrieve_conversation(request: Request, conversation_id: str) -> Response:
    """One conversation."""
    database, principal = _database(request), principal_of(request)
    return json_response(await conversations.retrieve(database, principal, conversation_id))


@router.post("/v1/conversations/{conversation_id}", response_model=None)
async def update_conversation(request: Request, conversation_id: str) -> Response:
    """New metadata."""
    metadata = wire.parse_metadata(await _body(request))
    database, principal = _database(request), principal_of(request)
    return json_response(await conversations.update(database, principal, conversation_id, metadata))


@router.delete("/v1/conversations/{conversation_id}", response_model=None)
async def delete_conversation(request: Request, conversation_id: str) -> Response:
    """Delete a conversation and its items; responses stay."""
    await conversations.delete(_database(request), principal_of(request), conversation_id)
    return json_response(wire.deleted_resource(conversation_id))


@router.get("/v1/conversations/{conversation_id}/items", response_model=None)
async def list_items(request: Request, conversation_id: str) -> Response:
    """Its items, newest first; `after`, `limit` and `order` page through them."""
    paging = parse_paging(request.query_params)
    database, principal = _database(request), principal_of(request)
    page = await conversations.list_items(database, principal, conversation_id, paging)
    return json_response(page.resource())


@router.post("/v1/conversations/{conversation_id}/items", response_model=None)
async def create_items(request: Request, conversation_id: str) -> Response:
    """Append items; the list of those that are new."""
    items = wire.parse_items(await _body(request))
    database, principal = _database(request), principal_of(request)
    page = await conversations.add_items(database, principal, conversation_id, items)
    return json_response(page.resource())


@router.get("/v1/conversations/{conversation_id}/items/{item_id}", response_model=None)
async def retrieve_item(request: Request, conversation_id: str, item_id: str) -> Response:
    """One item."""
    database, principal = _database(request), principal_of(request)
    return json_response(
        await conversations.retrieve_item(database, principal, conversation_id, item_id)
    )


@router.delete("/v1/conversations/{conversation_id}/items/{item_id}", response_model=None)
async def delete_item(request: Request, conversation_id: str, item_id: str) -> Response:
    """Take one item out; the conversation."""
    database, principal = _database(request), principal_of(request)
    return json_response(
        await conversations.delete_item(database, principal, conversation_id, item_id)
    )


def _database(request: Request) -> Database:
    return ready(request).coordinator.database


async def _body(request: Request) -> bytes:
    return await read_body(request, ready(request).settings.max_body_bytes)
