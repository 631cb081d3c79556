"""The heart of a process beats whatever its nodes do, and a lost database is noticed in time."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import timedelta

import psycopg
import pytest

from gateway.errors import Unavailable
from gateway.runs.lease import Lease, Leases, acquired
from gateway.store.db import Database, open_database
from tests.integration.api import Api, calls, output, serving, texts
from tests.integration.small_graphs import GRAPHS
from tests.integration.test_background import (
    OWN,
    gate,
    polled,
    queued,
    reached,
    rejoined,
    until,
)
from tests.integration.test_leases import sql, take
from tests.postgres.pooler import pooled
from tests.postgres.proxy import proxied

TTL = timedelta(seconds=1)


async def held(leases: Leases, database: Database, lost: list[str]) -> Lease:
    lease = await take(leases, database, "run_1")
    assert lease is not None
    leases.hold(lease, lambda: lost.append("run_1"))
    return lease


def is_held(url: str) -> bool:
    """Asked from outside of the blocked loop."""
    with psycopg.connect(url) as conn:
        row = conn.execute("SELECT bool_and(expires_at > now()) FROM fermata.leases").fetchone()
    return row is not None and row[0] is True


# --- the heart -------------------------------------------------------------------------------


async def test_a_node_that_blocks_the_loop_does_not_lose_its_lease(database_url: str) -> None:
    lost: list[str] = []
    seen: list[bool] = []

    def look() -> None:
        for _ in range(10):
            time.sleep(0.25)
            seen.append(is_held(database_url))

    async with open_database(database_url, size=2) as database:
        leases = Leases(database, TTL)
        await held(leases, database, lost)
        async with leases.beating():
            onlooker = threading.Thread(target=look)
            onlooker.start()
            time.sleep(3 * TTL.total_seconds())  # noqa: ASYNC251  # as a bad node would
            onlooker.join()
            await asyncio.sleep(0.05)
            assert leases.is_alive
    assert all(seen)
    assert lost == []


async def test_a_pool_without_a_free_connection_does_not_stop_the_heart(database_url: str) -> None:
    lost: list[str] = []
    async with open_database(database_url, size=1) as database:
        leases = Leases(database, TTL)
        await held(leases, database, lost)
        async with leases.beating(), database.connection():
            await asyncio.sleep(2 * TTL.total_seconds())
            assert leases.is_alive
            assert is_held(database_url)
    assert lost == []


async def test_what_was_taken_is_told_by_the_next_beat(database_url: str) -> None:
    lost: list[str] = []
    async with open_database(database_url, size=2) as database:
        leases = Leases(database, TTL)
        await held(leases, database, lost)
        await sql(database_url, "UPDATE fermata.leases SET token = token + 1")
        async with leases.beating():
            await until(lambda: lost == ["run_1"])


@pytest.fixture
def deaf_address() -> Iterator[str]:
    """A server that takes connections and never says a word, as a stopped PostgreSQL does."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        yield f"postgresql://fermata@127.0.0.1:{server.getsockname()[1]}/fermata"


async def test_a_database_that_does_not_answer_for_a_ttl_costs_the_leases(
    deaf_address: str,
) -> None:
    lost: list[str] = []
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(deaf_address, size=1))
        leases = Leases(database, TTL)
        leases.hold(Lease("run_1", 1), lambda: lost.append("run_1"))
        started = time.monotonic()
        async with leases.beating():
            await until(lambda: lost == ["run_1"])
        assert TTL.total_seconds() <= time.monotonic() - started < 4 * TTL.total_seconds()
        assert not leases.is_alive


async def test_an_orderly_end_leaves_no_sign_of_life(database_url: str) -> None:
    async with open_database(database_url, size=2) as database:
        leases = Leases(database, timedelta(seconds=0.1))
        async with leases.beating():
            await until(lambda: sql(database_url, "SELECT 1 FROM fermata.leases"))
            await leases.release_all()
            await asyncio.sleep(0.2)
            assert await sql(database_url, "SELECT 1 FROM fermata.leases") == []
            async with database.transaction() as conn:
                assert await acquired(await leases.acquire(conn, "run_1"), "run_1")


# --- the pool --------------------------------------------------------------------------------


async def ended_backends(api: Api) -> None:
    """What a restart of PostgreSQL does to connections."""
    await api.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


async def test_C23_the_first_request_after_all_connections_died_works(database_url: str) -> None:
    async with serving(database_url, GRAPHS, POOL_SIZE="4") as api:
        for _ in range(3):
            await asyncio.gather(*(api.create("usage", "hi") for _ in range(8)))
            await ended_backends(api)
            answer = await api.post({"model": "usage", "input": "hi"})
            assert answer.status_code == 200, answer.text
            assert texts(answer.json()) == ["counted"]
            ready = await api.http.get("/readyz")
            assert ready.status_code == 200


async def test_a_statement_that_never_ends_is_a_503(database_url: str) -> None:
    async with open_database(database_url, size=1) as database:
        started = time.monotonic()
        with pytest.raises(Unavailable):
            async with database.connection(patience=0.2) as conn:
                await conn.execute("SELECT pg_sleep(30)")
        assert time.monotonic() - started < 10
        async with database.connection() as conn:
            await conn.execute("SELECT 1")


async def test_C25_a_lost_database_is_a_503_and_the_first_request_after_it_works(
    database_url: str,
) -> None:
    with proxied(database_url) as proxy:
        settings = {"DATABASE_DIRECT_URL": database_url, "LEASE_TTL": "1s"}
        async with serving(proxy.url, GRAPHS, **settings) as api:
            paused = await api.create("ask", "hi")
            for _ in range(2):
                with proxy.away():
                    await until(lambda: not_ready(api))
                    refused = await api.post({"model": "usage", "input": "hi"})
                    assert refused.status_code == 503
                    assert refused.json()["error"]["code"] == "service_unavailable"
                    assert int(refused.headers["retry-after"]) > 0
                answer = await api.post({"model": "usage", "input": "hi"})
                assert answer.status_code == 200, answer.text
            ended = await api.create("ask", [output(calls(paused)[0])])
            assert texts(ended) == ["answer: 'yes'"]


async def not_ready(api: Api) -> bool:
    return (await api.http.get("/readyz")).status_code == 503


# --- behind a pooler -------------------------------------------------------------------------


async def test_C24_everything_works_behind_a_transaction_mode_pooler(database_url: str) -> None:
    with pooled(database_url, size=3) as pooler:
        settings = {"DATABASE_DIRECT_URL": database_url, "LEASE_TTL": "1s"}
        async with (
            serving(pooler.url, OWN, **settings) as one,
            serving(pooler.url, OWN, BACKGROUND_RUNS="0", **settings) as other,
        ):
            asked = await one.create("ask", "hi")
            answered = await other.create("ask", [output(calls(asked)[0])])
            assert texts(answered) == ["answer: yes", "four five"]
            events, last = await other.stream("talk", "hi", background=True)
            assert texts(last) == ["one two three", "four five"]
            assert await rejoined(one, last, 2) == events[3:]
            response = await queued(other, "slow", "pooled")
            await reached(other, response, "waits")
            await asyncio.sleep(1.5)  # longer than a lease: the heart beats through the pooler
            gate("pooled").set()
            assert (await polled(other, response))["status"] == "completed"
            (row,) = await one.sql("SELECT sum(takeovers) AS takeovers FROM fermata.responses")
            assert row["takeovers"] == 0
