"""The audit: what happened to a run, in rows that nobody changes. The caller owns the transaction.

A row is written in the transaction of what it records, so that there is neither without the other.
The table chains the rows of a run by hash, and refuses to have any changed
(`sql/migrations/0004_audit.sql`). A run is in it from its first question, effect or refusal on; one
that only talks never is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.store.db import Connection, send
from gateway.wire.encoding import dumps


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
