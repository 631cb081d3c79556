"""Conversations and their items. The caller owns the transaction.

A conversation's row is locked by whoever changes it, before any run's row (`lock`). That only one
response at a time works on it is a unique index's to say, `BUSY`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.store.db import Connection, Row, fetch, fetch_one, send
from gateway.wire import encoding
from gateway.wire.ids import new_id

ALL = 2**62
"""A position behind every item."""


async def lock(conn: Connection, tenant: str, id: str) -> Row | None:
    """The conversation's row, held until the transaction ends; None if there is none."""
    return await fetch_one(conn, "lock_conversation", tenant=tenant, id=id)


async def append(
    conn: Connection, tenant: str, id: str, items: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Add items in their order; those that are new, as they are stored.

    Nothing happens if the conversation is gone.
    """
    kept = [_storable(item) for item in items]
    cursor = await send(
        conn,
        "append_items",
        tenant=tenant,
        id=id,
        ids=[item["id"] for item in kept],
        answers=[_answers(item) for item in kept],
        items=[encoding.dumps(item) for item in kept],
    )
    rows = sorted(await cursor.fetchall(), key=lambda row: int(row["position"]))
    return [encoding.read_back(row["item"]) for row in rows]


async def append_turn(
    conn: Connection, tenant: str, id: str, response_id: str, output: Sequence[Mapping[str, Any]]
) -> None:
    """What a response took, as its row has it, and what it gave. The answers that resumed a run are
    new; what else a client sent with them is history, which the conversation holds."""
    row = await fetch_one(conn, "input_of", tenant=tenant, id=response_id)
    taken = encoding.read_back(row["input"]) if row is not None else []
    if row is not None and row["answers"]:
        taken = [item for item in taken if item["type"] == "function_call_output"]
    await append(conn, tenant, id, [*taken, *output])


async def history(conn: Connection, tenant: str, id: str) -> list[dict[str, Any]]:
    """All items, oldest first."""
    rows = await fetch(conn, "conversation_history", tenant=tenant, id=id)
    return [encoding.read_back(row["item"]) for row in rows]


async def page(
    conn: Connection, tenant: str, id: str, *, after: int | None, batch: int, newest_first: bool
) -> list[dict[str, Any]]:
    """At most `batch` items behind the position `after`, in the order of reading."""
    if newest_first:
        statement, start = "items_backward", ALL if after is None else after
    else:
        statement, start = "items_onward", 0 if after is None else after
    rows = await fetch(conn, statement, tenant=tenant, id=id, position=start, batch=batch)
    return [encoding.read_back(row["item"]) for row in rows]


def _storable(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """An id that PostgreSQL cannot index is no id: it gets one of ours."""
    id = item["id"]
    if 0 < len(id) <= 256 and id.isascii() and id.isprintable():
        return item
    return {**item, "id": new_id("item")}


def _answers(item: Mapping[str, Any]) -> str | None:
    call_id = item.get("call_id")
    if item["type"] != "function_call_output" or not isinstance(call_id, str):
        return None
    return call_id if call_id.isascii() and call_id.isprintable() else None
