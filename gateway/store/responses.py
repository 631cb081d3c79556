"""Writing responses, runs and their questions. The caller owns the transaction.

Functions that a holder calls either fence (`runs.lease.fence` first) or carry their fence in the
statement, and answer False when somebody else was faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from gateway.store.db import Connection, Cursor, execute, send


@dataclass(frozen=True, slots=True)
class NewResponse:
    """A response row to be opened. `input` and `body` are JSON text; `age` is how long ago its run
    began."""

    id: str
    tenant: str
    run_id: str
    model: str
    previous_id: str | None
    stored: bool
    input: str
    body: str
    age: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a response ends. `keep` is how long its row stays."""

    id: str
    status: str
    body: str
    keep: timedelta


@dataclass(frozen=True, slots=True)
class Asked:
    """A question to be stored. `question` and `audit`, what the audit says of it, are JSON text."""

    call_id: str
    interrupt_id: str
    name: str
    question: str
    audit: str
    expires_in: timedelta
    has_default: bool = False
    card: str | None = None


async def open_first(conn: Connection, responses: Sequence[NewResponse], lease_id: str) -> None:
    """First requests start; `lease_id` is the process's sign of life."""
    await send(conn, "open_first", lease_id=lease_id, **_columns(responses))


async def open_late(conn: Connection, response: NewResponse, lease_id: str) -> None:
    """The row of a first request, if it has none yet, for the caller's transaction to end."""
    await send(conn, "open_late", lease_id=lease_id, **_columns([response]))


def late_columns(response: NewResponse | None) -> dict[str, object]:
    """What `pause_first` needs to know of a row that may not be there yet; None: it is there."""
    if response is None:
        return {"late": False, "previous_id": None, "stored": None, "input": None, "age": None}
    return {
        "late": True,
        "previous_id": response.previous_id,
        "stored": response.stored,
        "input": response.input,
        "age": response.age,
    }


async def arrive(
    conn: Connection, ended: Sequence[tuple[NewResponse, Ending]], lease_id: str
) -> Cursor:
    """First requests that have ended before anybody could ask for them, each with its last body.
    The cursor's rows are the ids that were this process's to end."""
    return await send(
        conn,
        "arrive",
        lease_id=lease_id,
        **_columns([response for response, _ in ended]),
        statuses=[end.status for _, end in ended],
        keeps=[end.keep for _, end in ended],
    )


async def open_in_conversation(
    conn: Connection, response: NewResponse, lease_id: str, conversation_id: str
) -> None:
    """A first request of a conversation starts; the caller holds the conversation's row."""
    await send(
        conn,
        "open_in_conversation",
        id=response.id,
        tenant=response.tenant,
        run_id=response.run_id,
        model=response.model,
        stored=response.stored,
        lease_id=lease_id,
        conversation_id=conversation_id,
        input=response.input,
        body=response.body,
    )


def _columns(responses: Sequence[NewResponse]) -> dict[str, object]:
    return {
        "ids": [one.id for one in responses],
        "tenants": [one.tenant for one in responses],
        "run_ids": [one.run_id for one in responses],
        "models": [one.model for one in responses],
        "previous_ids": [one.previous_id for one in responses],
        "stored": [one.stored for one in responses],
        "inputs": [one.input for one in responses],
        "bodies": [one.body for one in responses],
        "ages": [one.age for one in responses],
    }


async def finish_first(conn: Connection, end: Sequence[Ending], lease_id: str) -> Cursor:
    """End first requests. The cursor's rows are the ids that were this process's to end."""
    return await send(
        conn,
        "finish_first",
        lease_id=lease_id,
        ids=[one.id for one in end],
        statuses=[one.status for one in end],
        bodies=[one.body for one in end],
        keeps=[one.keep for one in end],
    )


async def forget_first(conn: Connection, response_id: str, lease_id: str) -> bool:
    """End a first request that leaves nothing; False if recovery ended it already."""
    return await execute(conn, "forget_first", id=response_id, lease_id=lease_id) == 1


async def ask(
    conn: Connection, tenant: str, run_id: str, response_id: str, batch: Sequence[Asked]
) -> None:
    """Store the questions of a later pause."""
    await send(
        conn, "ask", tenant=tenant, run_id=run_id, response_id=response_id, **asked_columns(batch)
    )


def asked_columns(batch: Sequence[Asked]) -> dict[str, object]:
    """The questions of a pause as arrays, in the order in which they are told."""
    return {
        "call_ids": [asked.call_id for asked in batch],
        "interrupt_ids": [asked.interrupt_id for asked in batch],
        "names": [asked.name for asked in batch],
        "questions": [asked.question for asked in batch],
        "audits": [asked.audit for asked in batch],
        "expires_in": [asked.expires_in for asked in batch],
        "defaults": [asked.has_default for asked in batch],
        "card": batch[0].card if batch else None,  # all of a batch, or none
    }
