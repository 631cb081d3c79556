"""A client takes a response back: it cancels it, or deletes it.

Whoever moves a run holds its row, so a withdrawal and an answer queue there: the first to commit
wins, the other sees what it did. A run that waits, or failed after its answer, is withdrawn: its
questions are closed, its checkpoints deleted, and a late answer gets 410. A run that moves is not
torn from its holder. In the background its holder, on whatever replica, is asked to end it. In the
foreground a first request ends as cancelled if this process moves it, an accepted answer is
carried out; the rest is a 409, to be tried again.

A run may have answered this response long ago and wait for another one now. It is that one's to
withdraw: a client that tidies up its old responses ends nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gateway.errors import NotFound, ResponseInProgress
from gateway.runs.coordinator import Coordinator
from gateway.runs.lookup import plausible
from gateway.runs.principal import Principal
from gateway.runs.refusals import on_record
from gateway.runs.retrieval import retrieve
from gateway.runs.run import RunStatus
from gateway.store.db import Connection, Row, execute, fetch, fetch_one, send
from gateway.wire import encoding
from gateway.wire.items import Response
from gateway.wire.told import told_by
from gateway.wire.writer import Writer

PATIENCE = 10.0  # seconds until somebody who cancels is told that the response is still in progress


@dataclass(frozen=True, slots=True)
class _Found:
    """A response and how its run stands. `ids` are its own and those of all that reviewers' answers
    made of it; `waiting` is the run that waits with it."""

    ids: tuple[str, ...]
    in_progress: bool = False
    waiting: str | None = None


async def cancel(coordinator: Coordinator, response_id: str, principal: Principal) -> bytes:
    """End what has not ended of this response; the resource as it stands then, as JSON.

    What was told stays as it was told: a response that asked is completed, before and after.
    Raises `NotFound`; `ResponseInProgress` if it cannot be stopped from here.
    """
    if await _withdraw(coordinator, response_id, principal):
        await _stop(coordinator, response_id, principal)
        # It may have asked before it stopped; or what moves its run is not to be stopped from here.
        if await _withdraw(coordinator, response_id, principal):
            raise _in_progress(response_id)
    return await retrieve(coordinator.database, response_id, principal)


async def delete(coordinator: Coordinator, response_id: str, principal: Principal) -> None:
    """Delete this response and what reviewers' answers made of it; a run that waits is withdrawn.

    Raises `NotFound`, `ResponseInProgress`.
    """
    async with (
        on_record(coordinator.database, principal, response_id),
        coordinator.database.transaction() as conn,
    ):
        found = await _find(conn, response_id, principal)
        if found.in_progress:
            raise _in_progress(response_id)
        await _close(coordinator, conn, found, principal)
        ids = list(found.ids)
        names = {"tenant": principal.tenant, "actor": principal.subject}
        if not await execute(conn, "take_responses_back", ids=ids, **names):
            raise _not_found(response_id)


async def _withdraw(coordinator: Coordinator, response_id: str, principal: Principal) -> bool:
    """Withdraw the run if it waits with this response. True if the response is in progress."""
    async with (
        on_record(coordinator.database, principal, response_id),
        coordinator.database.transaction() as conn,
    ):
        found = await _find(conn, response_id, principal)
        await _close(coordinator, conn, found, principal)
    return found.in_progress


async def _stop(coordinator: Coordinator, response_id: str, principal: Principal) -> None:
    elsewhere = await _ask_to_stop(coordinator, response_id, principal)
    execution = coordinator.running(response_id)
    if execution is not None and execution.stoppable:
        execution.cancel("The response was cancelled.", principal.subject)
        await asyncio.shield(execution.ended)
        return
    if not elsewhere:
        return
    try:
        async with asyncio.timeout(PATIENCE):
            await coordinator.watch.settled(response_id)
    except TimeoutError:
        raise _in_progress(response_id) from None


async def _ask_to_stop(coordinator: Coordinator, response_id: str, principal: Principal) -> bool:
    """A background response that is queued ends at once; one that is under way is marked, for
    its holder wherever that is. False if it is neither."""
    names = {"tenant": principal.tenant, "id": response_id}
    async with coordinator.database.transaction() as conn:
        await fetch_one(conn, "lock_run_of", tenant=principal.tenant, response_id=response_id)
        row = await fetch_one(conn, "request_of", **names)
        if row is None or not row["logged"]:
            return False
        if row["status"] == "queued" and await _cancel_queued(coordinator, conn, principal, row):
            return True
        await execute(conn, "ask_to_cancel", actor=principal.subject, **names)
    return True


async def _cancel_queued(
    coordinator: Coordinator, conn: Connection, principal: Principal, row: Row
) -> bool:
    names = {"tenant": principal.tenant, "id": row["id"]}
    chunks = await fetch(conn, "all_events", **names)
    told = told_by(chunk["frames"] for chunk in chunks)
    writer = Writer(Response.of_resource(encoding.loads(row["body"])))
    writer.go_on(told)
    frames = writer.cancel()
    ended = await fetch_one(
        conn,
        "cancel_queued",
        body=writer.resource().decode(),
        first=told.next,
        last=told.next + len(frames) - 1,
        frames=b"".join(frames),
        retention=coordinator.keep.response,
        actor=principal.subject,
        **names,
    )
    return ended is not None


async def _find(conn: Connection, response_id: str, principal: Principal) -> _Found:
    """The response; its run is locked.

    The response is read before the lock: if it has ended by then, a run that it left is there.
    """
    names = {"tenant": principal.tenant}
    row = None
    if plausible(response_id):
        row = await fetch_one(conn, "response", id=response_id, **names)
    if row is None or not row["stored"]:
        raise _not_found(response_id)
    run = await fetch_one(conn, "lock_run_of", response_id=response_id, **names)
    if run is None:
        return _Found((response_id,), row["status"] in ("queued", "in_progress"))
    followers = await fetch(conn, "followers", id=response_id, **names)
    ids = (response_id, *(one["id"] for one in followers))
    concerned = await fetch(conn, "stands_with", run_id=run["id"], **names)
    if not any(one["response_id"] in ids for one in concerned):
        return _Found(ids)
    status = RunStatus(run["status"])
    waits = status in (RunStatus.WAITING, RunStatus.STALLED)
    return _Found(ids, status is RunStatus.RUNNING, run["id"] if waits else None)


async def _close(
    coordinator: Coordinator, conn: Connection, found: _Found, principal: Principal
) -> None:
    if found.waiting is not None:
        await send(
            conn,
            "withdraw",
            tenant=principal.tenant,
            run_id=found.waiting,
            response_id=found.ids[0],
            actor=principal.subject,
            retention=coordinator.keep.response,
        )


def _not_found(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{response_id}' not found.", param="response_id")


def _in_progress(response_id: str) -> ResponseInProgress:
    return ResponseInProgress(
        f"Response '{response_id}' is still in progress.", param="response_id"
    )
