"""A cancellation is never lost: a gateway told to end ends, at whatever moment it is told."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import Unavailable
from gateway.runs.rounds import every
from gateway.runs.watch import Watch
from gateway.store.db import open_database

SOON = 10.0  # seconds; what hangs hangs for ever
TICKS = 16
"""Turns of the loop from the return of a connection to after whoever waited for it has it."""


@pytest.mark.parametrize("ticks", range(TICKS))
async def test_whoever_waits_for_a_connection_is_cancelled_at_any_moment(
    database_url: str, ticks: int
) -> None:
    """Before Python 3.12 `asyncio.wait_for`, in the pool, forgets a cancellation that comes in the
    same moment as the connection."""
    went_on = False

    async def work() -> None:
        nonlocal went_on
        async with database.connection() as conn:
            await conn.execute("SELECT 1")
        went_on = True

    async with asyncio.timeout(SOON), open_database(database_url, size=1) as database:
        async with database.connection():
            waiting = asyncio.create_task(work())
            while database.usage()[2] == 0:  # noqa: ASYNC110  # the pool tells nobody
                await asyncio.sleep(0)
        for _ in range(ticks):
            await asyncio.sleep(0)
        came_in_time = waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled() is came_in_time
        assert went_on is not came_in_time
        # The connection is free again.
        assert await database.reachable()


@pytest.mark.parametrize("error", [Unavailable("away"), ValueError("odd"), None])
async def test_rounds_end_though_their_work_made_an_error_of_the_cancellation(
    error: Exception | None,
) -> None:
    began = asyncio.Event()

    async def work() -> None:
        try:
            began.set()
            await asyncio.sleep(SOON)
        except asyncio.CancelledError:
            if error is not None:
                raise error from None

    task = asyncio.create_task(every(0.001, work, "the test"))
    await began.wait()
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=SOON)
    assert done
    assert task.cancelled()


async def test_whoever_waits_for_a_response_elsewhere_is_told_that_the_process_ends(
    database_url: str,
) -> None:
    async with asyncio.timeout(SOON), open_database(database_url, size=2) as database:
        async with database.connection() as conn:
            await conn.execute(
                "INSERT INTO fermata.responses"
                " (id, tenant, run_id, model, status, stored, lease_id, input, body) VALUES"
                " ('resp_1', 't', 'run_1', 'm', 'in_progress', true, 'run_1', '[]', '{}')"
            )
        watch = Watch(database)
        waiting = asyncio.create_task(watch.settled("resp_1"))
        await asyncio.sleep(0.5)
        await watch.look()
        assert not waiting.done()
        watch.close()
        with pytest.raises(Unavailable, match="shutting down"):
            await waiting
        with pytest.raises(Unavailable, match="shutting down"):
            await watch.settled("resp_1")
