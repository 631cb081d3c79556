"""What a request would be started with, for those that only look at it: counting, compacting."""

from __future__ import annotations

from gateway.errors import PreviousResponseNotFound, ResponseInProgress
from gateway.runs import conversations
from gateway.runs.conversation import without_echoes
from gateway.runs.lookup import plausible, read_history, refuse_unresolved, resolve_references
from gateway.runs.principal import Principal
from gateway.runs.refusals import on_record
from gateway.store.db import Connection, Database, fetch_one
from gateway.wire.history import Item, ItemReference
from gateway.wire.request import CreateResponse


async def read_context(
    database: Database, request: CreateResponse, principal: Principal
) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """The history that the request names, and what it adds to that.

    Raises `PreviousResponseNotFound`, `ResponseInProgress`, `NotFound` for a conversation,
    `InvalidRequest` for a reference to what is not stored.
    """
    referred = [item.id for item in request.input if isinstance(item, ItemReference)]
    named = filter(None, (request.previous_response_id, request.conversation, *referred))
    async with on_record(database, principal, *named), database.connection() as conn:
        history = await _history(conn, request, principal)
        items = await resolve_references(conn, principal.tenant, request.input)
        added = without_echoes(history, items) if history else items
        refuse_unresolved(added)
    return history, added


async def _history(
    conn: Connection, request: CreateResponse, principal: Principal
) -> tuple[Item, ...]:
    if request.conversation is not None:
        return await conversations.read_named(conn, principal, request.conversation)
    previous = request.previous_response_id
    if previous is None:
        return ()
    row = None
    if plausible(previous):
        row = await fetch_one(conn, "response", tenant=principal.tenant, id=previous)
    if row is None or not row["stored"]:
        raise PreviousResponseNotFound(previous)
    if row["status"] in ("queued", "in_progress"):
        raise ResponseInProgress(
            f"Response '{previous}' is still in progress.", param="previous_response_id"
        )
    return await read_history(conn, principal.tenant, previous)
