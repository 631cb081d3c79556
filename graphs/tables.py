"""Tables of the demonstrations' own: made when they are first needed, by one process."""

from __future__ import annotations

from typing import LiteralString

from psycopg import AsyncConnection
from psycopg.rows import DictRow

from gateway import database

_LOCK = 0x64656D6F  # "demo"


async def make_tables(table: str, statements: LiteralString) -> None:
    """Run `statements` unless `table` is there.

    The lock ends with the transaction: two processes that come first at the same time would both
    find nothing there, and one of them would fail.
    """
    async with database().connection() as conn:
        if await _exists(conn, table):
            return
    async with database().transaction() as conn:
        await conn.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        if not await _exists(conn, table):
            await conn.execute(statements)


async def _exists(conn: AsyncConnection[DictRow], table: str) -> bool:
    # Not to_regclass(): behind the lock it may answer from what this connection has cached before.
    cursor = await conn.execute(
        "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname || '.' || tablename = %s) AS there",
        (table,),
    )
    row = await cursor.fetchone()
    return row is not None and bool(row["there"])
