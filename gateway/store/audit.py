"""The audit: what happened to a run, in rows that nobody changes. The caller owns the transaction.

A row is written in the transaction of what it records, so that there is neither without the other.
The table chains the rows of a run by hash, and refuses to have any changed
(`sql/migrations/0004_audit.sql`). A run is in it from its first question, effect or refusal on; one
that only talks never is. Most rows are written by the statements that do what they record, as part
of them; `record` is for everything else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from gateway.store.chain import AuditRow, faults
from gateway.store.db import Connection, Row, fetch, send
from gateway.wire.encoding import dumps

ROWS_AT_ONCE = 1000


async def record(
    conn: Connection,
    *,
    tenant: str,
    run_id: str,
    event: str,
    response_id: str | None = None,
    call_id: str | None = None,
    actor: str | None = None,
    details: Mapping[str, Any],
    requester: str | None = None,
) -> None:
    """Write one row about the run, as the last thing of the caller's transaction: the run's audit
    is locked until that ends.

    `actor` is the subject of credentials or a `system:…`; None if the run itself acts. `details`
    are JSON, without prompts and secrets. `requester` is who started the run: the first row of its
    audit names them, and a run that has not paused yet is not known otherwise.
    """
    await send(
        conn,
        "record",
        tenant=tenant,
        run_id=run_id,
        event=event,
        response_id=response_id,
        call_id=call_id,
        actor=actor,
        details=dumps(details),
        requester=requester,
    )


# --- reading ----------------------------------------------------------------------------------


async def run_of(conn: Connection, id: str) -> str | None:
    """The run that a run's, a response's or a call's id names; None if nothing is on record."""
    rows = await fetch(conn, "audited_run", id=id)
    return rows[0]["run_id"] if rows else None


async def rows_of(conn: Connection, run_id: str) -> list[AuditRow]:
    """All rows of the run, in order."""
    return [row async for row in all_rows(conn, run_id)]


async def all_rows(conn: Connection, run_id: str | None = None) -> AsyncIterator[AuditRow]:
    """All rows, run by run and in order; or those of one run."""
    last: dict[str, Any] = {"after_run": "", "after_seq": 0}
    while rows := await fetch(conn, "audit_rows", run_id=run_id, batch=ROWS_AT_ONCE, **last):
        for row in rows:
            yield _row(row)
        last = {"after_run": rows[-1]["run_id"], "after_seq": rows[-1]["seq"]}


async def rows_since(conn: Connection, moment: datetime) -> AsyncIterator[AuditRow]:
    """Rows that were written at `moment` or later, in the order of their times."""
    last: dict[str, Any] = {"after": moment, "after_run": "", "after_seq": 0}
    while rows := await fetch(conn, "audit_since", batch=ROWS_AT_ONCE, **last):
        for row in rows:
            yield _row(row)
        names = {"after": "at", "after_run": "run_id", "after_seq": "seq"}
        last = {key: rows[-1][name] for key, name in names.items()}


async def hashes_of(conn: Connection, rows: Sequence[AuditRow]) -> dict[tuple[str, int], bytes]:
    """What the database has in these places: the hash by run and number."""
    found = await fetch(
        conn, "audit_hashes", run_ids=[row.run_id for row in rows], seqs=[row.seq for row in rows]
    )
    return {(row["run_id"], row["seq"]): bytes(row["hash"]) for row in found}


async def verify(conn: Connection, run_id: str | None = None) -> tuple[int, list[str]]:
    """How many rows the run has, or all have, and what is wrong with them, a sentence each.

    Rows that were changed, removed or moved; and what the tables of runs, questions and effects
    tell of and the audit does not: its last rows may have been taken away.
    """
    wrong: list[str] = []
    count = 0
    before: AuditRow | None = None
    async for row in all_rows(conn, run_id):
        wrong += faults(before, row)
        before = row
        count += 1
    for one in await fetch(conn, "audit_missing", run_id=run_id):
        wrong.append(f"{one['run_id']}: '{one['event']}' is not on record ({one['about']})")
    return count, wrong


def _row(row: Row) -> AuditRow:
    return AuditRow(**{**row, "previous": bytes(row["previous"]), "hash": bytes(row["hash"])})
