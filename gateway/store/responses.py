"""Writing responses, runs and their questions. The caller owns the transaction.

Functions that a holder calls either fence (`runs.lease.fence` first) or carry their fence in the statement,
and answer False when somebody else was faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from gateway.store.db import Connection, execute


@dataclass(frozen=True, slots=True)
class NewResponse:
    """A response row to be opened. `input` and `body` are JSON text."""

    id: str
    tenant: str
    run_id: str
    model: str
    previous_id: str | None
    stored: bool
    input: str
    body: str


@dataclass(frozen=True, slots=True)
class Ending:
    """How a response ends. `keep` is how long its row stays."""

    id: str
    status: str
    body: str
    keep: timedelta


@dataclass(frozen=True, slots=True)
class Asked:
    """A question to be stored. `question` is JSON text."""

    call_id: str
    interrupt_id: str
    name: str
    question: str


async def open_first(conn: Connection, response: NewResponse, lease_id: str) -> None:
    """A first request starts; `lease_id` is the process's sign of life."""
    await execute(conn, "open_first", **_columns(response), lease_id=lease_id)


async def open_resume(conn: Connection, response: NewResponse) -> None:
    """An answer was accepted; the run's lease keeps the response alive."""
    await execute(conn, "open_resume", **_columns(response))


async def finish_first(conn: Connection, ending: Ending, lease_id: str) -> bool:
    """End a first request; False if recovery ended it already."""
    touched = await execute(
        conn,
        "finish_first",
        id=ending.id,
        status=ending.status,
        body=ending.body,
        retention=ending.keep,
        lease_id=lease_id,
    )
    return touched == 1


async def forget_first(conn: Connection, response_id: str, lease_id: str) -> bool:
    """End a first request that leaves nothing; False if recovery ended it already."""
    return await execute(conn, "forget_first", id=response_id, lease_id=lease_id) == 1


async def finish_resume(conn: Connection, ending: Ending) -> None:
    """End a response of a leased run; the transaction is fenced."""
    await execute(
        conn,
        "finish_resume",
        id=ending.id,
        status=ending.status,
        body=ending.body,
        retention=ending.keep,
    )


async def ask(
    conn: Connection, tenant: str, run_id: str, response_id: str, batch: Sequence[Asked]
) -> None:
    """Store the questions of a pause, in the order in which they are told."""
    await execute(
        conn,
        "ask",
        tenant=tenant,
        run_id=run_id,
        response_id=response_id,
        call_ids=[asked.call_id for asked in batch],
        interrupt_ids=[asked.interrupt_id for asked in batch],
        names=[asked.name for asked in batch],
        questions=[asked.question for asked in batch],
    )


def _columns(response: NewResponse) -> dict[str, object]:
    return {
        "id": response.id,
        "tenant": response.tenant,
        "run_id": response.run_id,
        "model": response.model,
        "previous_id": response.previous_id,
        "stored": response.stored,
        "input": response.input,
        "body": response.body,
    }
