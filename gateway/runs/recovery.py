"""What a dead process left: taken over if an answer was accepted or it runs in the background,
failed otherwise. And what nobody answered in time: silence may be an answer.

Runs on every process. A response is orphaned when the lease that keeps it alive is
gone or over; whoever sees it first acts, and the conditions are checked again in the statement
that acts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from datetime import timedelta
from functools import partial

from gateway.errors import RunFailed, Unavailable
from gateway.runs import audited
from gateway.runs.coordinator import Coordinator
from gateway.runs.meter import METER
from gateway.runs.pickup import take_over
from gateway.runs.reviewing import answer_expired
from gateway.runs.rounds import every
from gateway.store.db import Row, execute, fetch, fetch_one
from gateway.store.retention import NOTHING, Swept, sweep
from gateway.wire import encoding
from gateway.wire.items import Response
from gateway.wire.writer import Writer

logger = logging.getLogger("fermata.recovery")

LOOKS_PER_TTL = 3
ORPHANS_AT_ONCE = 50


async def recover_for_ever(coordinator: Coordinator) -> None:
    """Look for orphans until cancelled, several times within a lease's TTL."""
    pause = coordinator.leases.ttl.total_seconds() / LOOKS_PER_TTL
    await every(pause, partial(recover, coordinator), "recovery")


async def recover(coordinator: Coordinator) -> int:
    """Look once; how many responses were taken over or failed, and silences taken as answers."""
    async with coordinator.database.connection() as conn:
        if abandoned := coordinator.abandoned.ids():
            await execute(conn, "disown", ids=abandoned)
        if unbegun := coordinator.unbegun.ids():
            await execute(conn, "forget_unbegun", ids=unbegun, lease_id=coordinator.leases.owner)
        mine = {
            "models": list(coordinator.graphs),
            "skipped": coordinator.postponed.ids(),
            "limit": ORPHANS_AT_ONCE,
        }
        orphans = await fetch(conn, "orphans", **mine)
        silent = await fetch(conn, "due_defaults", **mine)
    done = 0
    for question in silent:
        call_id = question["call_id"]
        answered = answer_expired(coordinator, question["tenant"], call_id)
        done += await _tried(coordinator, call_id, answered)
    for orphan in orphans:
        done += await _tried(coordinator, orphan["id"], _recover_one(coordinator, orphan))
    return done


async def _recover_one(coordinator: Coordinator, orphan: Row) -> bool:
    if orphan["resumes"]:
        return await take_over(coordinator, orphan["tenant"], orphan["run_id"], orphan["id"])
    return await _fail(coordinator, orphan)


async def _tried(coordinator: Coordinator, id: str, work: Awaitable[bool]) -> bool:
    """One that cannot be recovered must not keep the others from it."""
    try:
        return await work
    except Unavailable:
        raise
    except Exception:
        coordinator.postponed.add(id)
        logger.exception("%s could not be recovered; it is tried later", id)
        return False


async def _fail(coordinator: Coordinator, orphan: Row) -> bool:
    """A first request whose process died: nobody can know how far it came, so it is not run
    again."""
    error = RunFailed("The process that ran this response ended.", code="server_error")
    async with coordinator.database.transaction() as conn:
        row = await fetch_one(conn, "response", tenant=orphan["tenant"], id=orphan["id"])
        if row is None:
            return False
        writer = Writer(Response.of_resource(encoding.loads(row["body"])))
        writer.fail(error)
        body = writer.resource().decode()
        failed = await execute(
            conn,
            "fail_orphan",
            id=orphan["id"],
            body=body,
            retention=coordinator.keep.response,
            details=audited.failure(error.error_code, error.message),
        )
    METER.orphans_failed += failed
    return failed == 1


async def sweep_for_ever(coordinator: Coordinator, interval: timedelta) -> None:
    """Sweep every so often until cancelled."""

    async def once() -> None:
        keep = coordinator.keep
        log_swept(
            await sweep(coordinator.database, keep.response, keep.effects, events=keep.events)
        )

    await every(interval.total_seconds(), once, "the sweep")


def log_swept(swept: Swept) -> None:
    """Say what a sweep did, if it did anything."""
    if swept != NOTHING:
        logger.info(
            "swept: %d runs expired, %d runs, %d responses and %d effects deleted",
            swept.expired_runs,
            swept.deleted_runs,
            swept.deleted_responses,
            swept.deleted_effects,
        )
