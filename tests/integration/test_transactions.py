"""Transactions of the pool: all of a block is written, or nothing, and the connection is sound."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from gateway.store.db import Connection, Database, Unfinished, open_database

KINDS = pytest.mark.parametrize("kind", ["transaction", "pipeline"])


@pytest.fixture
async def database(database_url: str, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Database]:
    async with open_database(database_url, size=1) as opened:
        async with opened.connection() as conn:
            await conn.execute("CREATE TABLE notes (text text PRIMARY KEY, CHECK (text <> 'bad'))")
        with caplog.at_level(logging.WARNING):
            yield opened
            # One connection: what the block left behind, the next one meets.
            async with opened.connection() as conn:
                assert conn.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
                assert conn.pgconn.pipeline_status == psycopg.pq.PipelineStatus.OFF
    assert "rolling back returned connection" not in caplog.text


async def note(conn: Connection, text: str) -> None:
    await conn.execute("INSERT INTO notes VALUES (%s)", (text,))


async def notes(database: Database) -> list[str]:
    async with database.connection() as conn:
        rows = await (await conn.execute("SELECT text FROM notes ORDER BY text")).fetchall()
    return [row["text"] for row in rows]


def conn_of(entered: Any) -> Connection:
    return entered[0] if isinstance(entered, tuple) else entered


async def write(database: Database, kind: str, *texts: str, then: Exception | None = None) -> None:
    async with getattr(database, kind)() as entered:
        for text in texts:
            await note(conn_of(entered), text)
        if then is not None:
            raise then


@KINDS
async def test_all_of_a_block_is_written(database: Database, kind: str) -> None:
    await write(database, kind, "a", "b")
    assert await notes(database) == ["a", "b"]


@KINDS
async def test_nothing_is_written_of_a_block_that_raises(database: Database, kind: str) -> None:
    with pytest.raises(LookupError):
        await write(database, kind, "a", then=LookupError())
    assert await notes(database) == []


@KINDS
@pytest.mark.parametrize("texts", [("bad", "a"), ("a", "bad")])
async def test_nothing_is_written_if_a_statement_fails(
    database: Database, kind: str, texts: tuple[str, ...]
) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        await write(database, kind, *texts)
    assert await notes(database) == []


async def test_a_failure_that_the_block_swallows_is_told(database: Database) -> None:
    async def swallow() -> None:
        async with database.pipeline() as (conn, pipe):
            await note(conn, "a")
            await note(conn, "bad")
            with suppress(psycopg.errors.CheckViolation):
                await pipe.sync()

    with pytest.raises(Unfinished):
        await swallow()
    assert await notes(database) == []


async def test_a_failure_of_the_commit_is_told(database: Database) -> None:
    async def refer() -> None:
        async with database.pipeline() as (conn, _):
            await note(conn, "a")
            await conn.execute("INSERT INTO more VALUES ('unknown')")

    async with database.connection() as conn:
        await conn.execute(
            "CREATE TABLE more (text text REFERENCES notes DEFERRABLE INITIALLY DEFERRED)"
        )
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        await refer()
    assert await notes(database) == []


@KINDS
async def test_nothing_is_written_of_a_block_that_is_cancelled(
    database: Database, kind: str
) -> None:
    written = asyncio.Event()

    async def work() -> None:
        async with getattr(database, kind)() as entered:
            await note(conn_of(entered), "a")
            if kind == "pipeline":
                await entered[1].sync()
            written.set()
            await conn_of(entered).execute("SELECT pg_sleep(60)")
            if kind == "pipeline":
                await entered[1].sync()

    task = asyncio.create_task(work())
    await written.wait()
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await notes(database) == []
