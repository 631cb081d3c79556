"""What goes when its time is over: indexed, batched, and safe on any number of replicas at once.

Each statement takes at most one batch, of rows that nobody else holds (SKIP LOCKED), in its own
transaction. So a sweep costs what it deletes, holds no lock for long, and two replicas share the
work instead of doing it twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from gateway.store.db import Database, execute

BATCH = 500
SWEEP_PATIENCE = 60.0  # seconds for one batch


@dataclass(frozen=True, slots=True)
class Swept:
    """How many rows a sweep expired or deleted."""

    expired_runs: int
    deleted_runs: int
    deleted_responses: int
    deleted_effects: int = 0


NOTHING = Swept(0, 0, 0)


async def sweep(
    database: Database,
    retention: timedelta,
    effects: timedelta | None = None,
    *,
    events: timedelta = timedelta(days=1),
) -> Swept:
    """Expire the runs that waited beyond their TTL; delete what is beyond its retention.

    `retention` is how long an expired run's own record is kept on; `effects` how long a settled
    effect is kept, None for ever; `events` how long the event log of a background response that has
    ended is.
    """
    expired = await _all_batches(database, "expire_runs", batch=BATCH, retention=retention)
    runs = await _all_batches(database, "delete_runs", batch=BATCH)
    await _all_batches(database, "trim_events", batch=BATCH, retention=events)
    responses = await _all_batches(database, "delete_responses", batch=BATCH)
    await _all_batches(database, "delete_keys", batch=BATCH)
    await _all_batches(database, "clear_leases")
    forgotten = 0
    if effects is not None:
        forgotten = await _all_batches(database, "delete_effects", batch=BATCH, retention=effects)
    return Swept(expired, runs, responses, forgotten)


async def _all_batches(database: Database, statement: str, **params: object) -> int:
    total = 0
    while True:
        async with database.connection(SWEEP_PATIENCE) as conn:
            touched = await execute(conn, statement, **params)
        total += touched
        if touched < BATCH:
            return total
