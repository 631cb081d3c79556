"""The items that a response was made from: the conversation before it, and its own input.

Each response stores what its request added and what it gave, so the list is read along the chain of
`previous_response_id`. A page costs one walk over the chain's ids and the rows that it shows, not
the conversation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from gateway.errors import NotFound
from gateway.runs.lookup import plausible
from gateway.runs.principal import Principal
from gateway.runs.refusals import on_record
from gateway.store.db import Connection, Database, fetch
from gateway.wire import encoding
from gateway.wire.encoding import Json
from gateway.wire.ids import response_of_item
from gateway.wire.paging import Page, Paging, no_such_item

TURNS_AT_ONCE = 25


async def input_items(
    database: Database, response_id: str, principal: Principal, paging: Paging
) -> Page:
    """A page of what this response was made from.

    Raises `NotFound`; `InvalidRequest` if `paging.after` is not among the items.
    """
    async with on_record(database, principal, response_id), database.connection() as conn:
        chain = await _chain(conn, principal.tenant, response_id)
        if not chain:
            raise NotFound(f"Response with id '{response_id}' not found.", param="response_id")
        order = chain if paging.newest_first else chain[::-1]
        turns = _Turns(conn, principal.tenant, response_id, paging.newest_first)
        home = None if paging.after is None else response_of_item(paging.after)
        page = await turns.page(order[order.index(home) :], paging) if home in order else None
        # An item that a client named itself may stand anywhere.
        page = page or await turns.page(order, paging)
    if page is None:
        raise no_such_item(str(paging.after))
    return page


async def _chain(conn: Connection, tenant: str, response_id: str) -> list[str]:
    if not plausible(response_id):
        return []
    return [row["id"] for row in await fetch(conn, "chain", tenant=tenant, id=response_id)]


class _Turns:
    """The items of a chain's responses, read as far as they are wanted."""

    def __init__(self, conn: Connection, tenant: str, last: str, newest_first: bool) -> None:
        self._conn = conn
        self._tenant = tenant
        self._last = last
        self._newest_first = newest_first

    async def page(self, ids: Sequence[str], paging: Paging) -> Page | None:
        """The page among the items of these responses; None if its `after` is not there."""
        found = paging.after is None
        items: list[dict[str, Json]] = []
        async for item in self._items(ids):
            if found:
                items.append(item)
            found = found or item["id"] == paging.after
            if len(items) > paging.limit:
                break
        return Page(items[: paging.limit], len(items) > paging.limit) if found else None

    async def _items(self, ids: Sequence[str]) -> AsyncIterator[dict[str, Any]]:
        for start in range(0, len(ids), TURNS_AT_ONCE):
            some = list(ids[start : start + TURNS_AT_ONCE])
            rows = await fetch(self._conn, "turns", tenant=self._tenant, ids=some)
            by_id = {row["id"]: row for row in rows}
            for id in some:
                if id in by_id:  # else it was deleted meanwhile
                    for item in self._of_turn(by_id[id]):
                        yield item

    def _of_turn(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = encoding.read_back(row["input"])
        if row["id"] != self._last:
            items += encoding.read_back(row["body"])["output"]
        return items[::-1] if self._newest_first else items
