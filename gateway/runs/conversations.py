"""Conversations: made, read and changed by their owner; a turn of one held while it starts.

A response that names a conversation is started with all its items and its input, and appends its
input and output in the transaction that ends it (`runs.endings`). One response at a time: the next
one is refused until that has ended. While a question waits, what comes next is its answer, as with
`previous_response_id`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.errors import ConversationLocked, InvalidRequest, NotFound
from gateway.runs.lookup import plausible, refuse_unresolved, resolve_references
from gateway.runs.principal import Principal
from gateway.store import conversations as store
from gateway.store.db import Connection, Database, Row, execute, fetch_one
from gateway.wire import encoding
from gateway.wire.conversations import conversation_resource
from gateway.wire.history import Item, parse_item
from gateway.wire.ids import new_id
from gateway.wire.input_items import as_resource
from gateway.wire.paging import Page, Paging, no_such_item

# --- the conversation ---


async def create(
    database: Database, principal: Principal, items: Sequence[Item], metadata: Mapping[str, str]
) -> dict[str, Any]:
    """A new conversation that holds these items; its resource."""
    async with database.transaction() as conn:
        row = await fetch_one(
            conn,
            "create_conversation",
            id=new_id("conv"),
            tenant=principal.tenant,
            metadata=encoding.dumps(metadata),
        )
        assert row is not None  # RETURNING
        await _append(conn, principal, row["id"], items)
    return _resource(row)


async def retrieve(database: Database, principal: Principal, id: str) -> dict[str, Any]:
    """The resource. Raises `NotFound`."""
    async with database.connection() as conn:
        return _resource(await _row(conn, principal, id))


async def update(
    database: Database, principal: Principal, id: str, metadata: Mapping[str, str]
) -> dict[str, Any]:
    """New metadata, in place of the old; the resource. Raises `NotFound`."""
    new = encoding.dumps(metadata)
    async with database.connection() as conn:
        return _resource(await _row(conn, principal, id, "update_conversation", metadata=new))


async def delete(database: Database, principal: Principal, id: str) -> None:
    """Delete it and its items. Raises `NotFound`, `ConversationLocked`."""
    async with database.transaction() as conn:
        await _hold_free(conn, principal, id)
        await execute(conn, "delete_conversation", tenant=principal.tenant, id=id)


# --- its items ---


async def add_items(
    database: Database, principal: Principal, id: str, items: Sequence[Item]
) -> Page:
    """Append items; those that it did not hold yet. Raises `NotFound`, `ConversationLocked`,
    `InvalidRequest` for a reference to what is not stored."""
    async with database.transaction() as conn:
        await _hold_free(conn, principal, id)
        return Page(await _append(conn, principal, id, items), has_more=False)


async def list_items(database: Database, principal: Principal, id: str, paging: Paging) -> Page:
    """A page of its items. Raises `NotFound`; `InvalidRequest` if `after` is not among them."""
    async with database.connection() as conn:
        await _row(conn, principal, id)
        after = None
        if paging.after is not None:
            found = await _item(conn, principal, id, paging.after)
            if found is None:
                raise no_such_item(paging.after)
            after = int(found["position"])
        items = await store.page(
            conn,
            principal.tenant,
            id,
            after=after,
            batch=paging.limit + 1,
            newest_first=paging.newest_first,
        )
    return Page(items[: paging.limit], len(items) > paging.limit)


async def retrieve_item(
    database: Database, principal: Principal, id: str, item_id: str
) -> dict[str, Any]:
    """One item. Raises `NotFound`."""
    async with database.connection() as conn:
        await _row(conn, principal, id)
        row = await _item(conn, principal, id, item_id)
    if row is None:
        raise _no_item(item_id)
    item: dict[str, Any] = encoding.loads(row["item"])
    return item


async def delete_item(
    database: Database, principal: Principal, id: str, item_id: str
) -> dict[str, Any]:
    """Take one item out; the conversation's resource. Raises `NotFound`, `ConversationLocked`."""
    async with database.transaction() as conn:
        row = await _hold_free(conn, principal, id)
        names = {"tenant": principal.tenant, "id": id, "item_id": item_id}
        if not plausible(item_id) or not await execute(conn, "delete_item", **names):
            raise _no_item(item_id)
    return _resource(row)


async def _append(
    conn: Connection, principal: Principal, id: str, items: Sequence[Item]
) -> list[dict[str, Any]]:
    resolved = await resolve_references(conn, principal.tenant, items)
    refuse_unresolved(resolved, "items")
    if not resolved:
        return []
    return await store.append(conn, principal.tenant, id, [as_resource(one) for one in resolved])


# --- a turn ---


async def hold(conn: Connection, principal: Principal, id: str) -> Row:
    """The conversation's row, locked. Raises `NotFound`."""
    row = await store.lock(conn, principal.tenant, id) if plausible(id) else None
    if row is None:
        raise not_found(id)
    return row


async def refuse_busy(conn: Connection, principal: Principal, id: str) -> None:
    """Raises `ConversationLocked` while a response works on it; the caller holds its row."""
    busy = await fetch_one(conn, "busy_with", tenant=principal.tenant, id=id)
    if busy is not None:
        raise ConversationLocked


async def read(conn: Connection, principal: Principal, id: str) -> tuple[Item, ...]:
    """All its items, oldest first."""
    items = await store.history(conn, principal.tenant, id)
    return tuple(parse_item(item, "conversation") for item in items)


async def read_named(conn: Connection, principal: Principal, id: str) -> tuple[Item, ...]:
    """All its items, oldest first. Raises `NotFound`."""
    await _row(conn, principal, id)
    return await read(conn, principal, id)


async def _hold_free(conn: Connection, principal: Principal, id: str) -> Row:
    row = await hold(conn, principal, id)
    await refuse_busy(conn, principal, id)
    return row


# --- rows ---


async def _row(
    conn: Connection, principal: Principal, id: str, statement: str = "conversation", **more: str
) -> Row:
    names = {"tenant": principal.tenant, "id": id, **more}
    row = await fetch_one(conn, statement, **names) if plausible(id) else None
    if row is None:
        raise not_found(id)
    return row


async def _item(conn: Connection, principal: Principal, id: str, item_id: str) -> Row | None:
    if not plausible(item_id):
        return None
    return await fetch_one(
        conn, "conversation_item", tenant=principal.tenant, id=id, item_id=item_id
    )


def _resource(row: Mapping[str, Any]) -> dict[str, Any]:
    metadata = encoding.loads(row["metadata"])
    return conversation_resource(row["id"], metadata, row["created_at"])


def not_found(id: str) -> InvalidRequest:
    """Unknown, deleted, or another tenant's: all look alike."""
    return NotFound(f"Conversation with id '{id}' not found.", param="conversation")


def _no_item(item_id: str) -> InvalidRequest:
    return NotFound(f"Item with id '{item_id}' not found.", param="item_id")
