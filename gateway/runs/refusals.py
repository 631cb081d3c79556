"""Refusals go on record: who was not allowed to answer, what was no answer, what came too late.

A refusal rolls its transaction back, so its row has one of its own; it is committed before the
refusal is told. An id of another tenant is unknown to whoever sends it, and looks the same whether
it exists or not; the attempt is on record where the thing belongs, naming the stranger. What nobody
has leaves no row, nor does what is merely malformed.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from gateway.errors import (
    InterruptAlreadyAnswered,
    InterruptClosed,
    InterruptExpired,
    InvalidInterruptAnswer,
    InvalidRequest,
    NotFound,
    ReviewerNotAllowed,
)
from gateway.runs.meter import METER
from gateway.runs.principal import Principal
from gateway.store.db import Connection, Database, execute
from gateway.wire.ids import response_of_item

OF_ANSWERS = (
    ReviewerNotAllowed,
    InvalidInterruptAnswer,
    InterruptAlreadyAnswered,
    InterruptExpired,
    InterruptClosed,
)
"""Refusals of an answer to a known question."""

_OURS = re.compile(r"(resp|call)_[0-9a-f]{40}")


@asynccontextmanager
async def on_record(database: Database, principal: Principal, *ids: str) -> AsyncIterator[None]:
    """Whatever the block refuses to `principal` is on record before it is told.

    `ids` are the responses, calls and items that the request names. The block must own its
    transaction: it is rolled back when the row is written.
    """
    try:
        yield
    except OF_ANSWERS as refusal:
        METER.answers[refusal.error_code] += 1
        if refusal.call_id is not None:
            await _refused(database, principal, refusal, refusal.call_id)
        raise
    except InvalidRequest as refusal:
        async with database.connection() as conn:
            await strangers(conn, principal, ids, refusal.error_code)
        raise


async def strangers(
    conn: Connection, principal: Principal, ids: Iterable[str], code: str = NotFound.code
) -> None:
    """Put on record that `principal` sent ids which belong to other tenants, if any does; in the
    caller's transaction, if there is one.

    Only ids of our own making are looked up, so that a client's own tool calls cost nothing.
    """
    named = {response_of_item(id) or id for id in ids}
    ours = [id for id in named if _OURS.fullmatch(id)]
    if not ours:
        return
    await execute(
        conn,
        "record_stranger",
        ids=ours,
        tenant=principal.tenant,
        actor=principal.subject,
        code=code,
    )


async def _refused(
    database: Database, principal: Principal, refusal: InvalidRequest, call_id: str
) -> None:
    async with database.connection() as conn:
        await execute(
            conn,
            "record_refusal",
            tenant=principal.tenant,
            call_id=call_id,
            actor=principal.subject,
            roles=sorted(principal.roles) or None,
            code=refusal.error_code,
            message=refusal.message,
        )
