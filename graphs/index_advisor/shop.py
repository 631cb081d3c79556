"""A small shop in PostgreSQL, its workload, and what the planner thinks of indexes.

The shop is the schema `index_advisor_demo` in the gateway's own database; `make_shop` makes it
where it is missing. Its rows are computed, not drawn, and few enough for ANALYZE to read them all,
so that the planner estimates the same everywhere.

Nobody has to build an index to know its worth: `supposing` creates it in a transaction that is
rolled back, and EXPLAIN within that transaction plans with it. (It locks the table against writes
for some milliseconds. For tables that others write to, the extension hypopg does without.)
"""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, LiteralString

from psycopg import AsyncConnection, sql
from psycopg.rows import DictRow

Connection = AsyncConnection[DictRow]

SCHEMA = "index_advisor_demo"
PAGE = 8192  # bytes
UPKEEP = 0.02
"""What a page of an index costs beside the workload, in the unit of `costs`: every write pays for
its indexes, and somebody pays for the disk."""

SHOP = """
CREATE SCHEMA index_advisor_demo;
CREATE TABLE index_advisor_demo.customers (
    id integer PRIMARY KEY, email text NOT NULL, country text NOT NULL
);
CREATE TABLE index_advisor_demo.orders (
    id integer PRIMARY KEY, customer_id integer NOT NULL, status text NOT NULL,
    placed_on date NOT NULL, total numeric(10, 2) NOT NULL, note text NOT NULL
);
INSERT INTO index_advisor_demo.customers
SELECT n, 'customer' || n || '@shop.example', (ARRAY['at', 'ch', 'de', 'fr', 'it'])[1 + n % 5]
  FROM generate_series(1, 1000) AS n;
INSERT INTO index_advisor_demo.orders
SELECT n, 1 + n * 7919 % 1000, CASE WHEN n % 50 = 0 THEN 'open' ELSE 'paid' END,
       date '2025-01-01' + n * 104729 % 365, 5 + n * 31 % 200, 'Please leave it at the door.'
  FROM generate_series(1, 10000) AS n;
-- Somebody made this once. No query of the workload has any use for it.
CREATE INDEX orders_note ON index_advisor_demo.orders (note);
ANALYZE index_advisor_demo.customers, index_advisor_demo.orders;
"""


@dataclass(frozen=True, order=True)
class Index:
    """An index of a table, on these columns in this order."""

    table: str
    columns: tuple[str, ...]

    @property
    def name(self) -> str:
        return "_".join((self.table, *self.columns))

    def __str__(self) -> str:
        return f"{self.table} ({', '.join(self.columns)})"


@dataclass(frozen=True)
class Query:
    """A statement of the workload, how often it is called, and the columns that it selects by:
    those that it compares with `=`, and the one that it sorts or ranges by."""

    name: str
    calls: int
    statement: LiteralString
    table: str
    equal: tuple[str, ...] = ()
    sorted_by: str | None = None


WORKLOAD = (
    Query(
        "orders of a customer",
        40,
        "SELECT id, total FROM index_advisor_demo.orders"
        " WHERE customer_id = 42 ORDER BY placed_on DESC LIMIT 10",
        "orders",
        equal=("customer_id",),
        sorted_by="placed_on",
    ),
    Query(
        "open orders since December",
        10,
        "SELECT id, customer_id FROM index_advisor_demo.orders"
        " WHERE status = 'open' AND placed_on >= '2025-12-01' ORDER BY placed_on",
        "orders",
        equal=("status",),
        sorted_by="placed_on",
    ),
    Query(
        "customer by address",
        30,
        "SELECT * FROM index_advisor_demo.customers WHERE email = 'customer42@shop.example'",
        "customers",
        equal=("email",),
    ),
    Query(
        "sales by country",
        3,
        "SELECT c.country, sum(o.total) FROM index_advisor_demo.orders AS o"
        " JOIN index_advisor_demo.customers AS c ON c.id = o.customer_id GROUP BY c.country",
        "orders",
    ),
)


async def make_shop(conn: Connection) -> None:
    """Make the schema, its tables and rows, unless they are there. In a transaction."""
    await one_at_a_time(conn)
    row = await (await conn.execute("SELECT to_regnamespace(%s) AS made", (SCHEMA,))).fetchone()
    if row is None or row["made"] is None:
        await conn.execute(SHOP)


async def one_at_a_time(conn: Connection) -> None:
    """Wait until no other transaction makes or changes the shop; then keep them out to the end."""
    await conn.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (SCHEMA,))


async def existing(conn: Connection) -> list[Index]:
    """The indexes that the shop has; those on expressions or with conditions do not count."""
    rows = await conn.execute(
        "SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = %s", (SCHEMA,)
    )
    found = []
    async for row in rows:
        if plain := re.search(r"USING btree \(([\w, ]+)\)$", row["indexdef"]):
            found.append(Index(row["tablename"], tuple(plain[1].split(", "))))
    return sorted(found)


def candidates(known: Iterable[Index]) -> list[Index]:
    """What could help a query of the workload: the columns that it compares, then the one that it
    sorts by, and each shorter form of that; without those that are known."""
    found: set[Index] = set()
    for query in WORKLOAD:
        last = (query.sorted_by,) if query.sorted_by else ()
        for columns in (*accumulate([query.equal, last]), last):
            if columns:
                found.add(Index(query.table, columns))
    return sorted(found - set(known))


async def costs(conn: Connection) -> list[float]:
    """What each query of the workload costs in thousands of the planner's units, its calls
    counted."""
    found = []
    for query in WORKLOAD:
        cursor = await conn.execute("EXPLAIN (FORMAT JSON) " + query.statement)
        row: Any = await cursor.fetchone()
        found.append(query.calls * row["QUERY PLAN"][0]["Plan"]["Total Cost"] / 1000)
    return found


@asynccontextmanager
async def supposing(conn: Connection, indexes: Sequence[Index]) -> AsyncIterator[list[int]]:
    """Have the indexes to the end of the block, and no longer; their sizes in pages."""
    async with conn.transaction(force_rollback=True):
        # Names of nobody else's: another run may suppose the same at this moment.
        names = [f"supposed_{uuid.uuid4().hex}" for _ in indexes]
        for name, index in zip(names, indexes, strict=True):
            await conn.execute(_creation(name, index))
        yield [await _pages(conn, name) for name in names]


async def create(conn: Connection, index: Index) -> int:
    """Create the index unless it is there; its size in pages. In a transaction."""
    await one_at_a_time(conn)
    if index not in await existing(conn):
        await conn.execute(_creation(index.name, index))
    return await _pages(conn, index.name)


async def drop(conn: Connection, name: str) -> bool:
    """Drop the shop's index of that name; False if there is none. In a transaction."""
    await one_at_a_time(conn)
    if not await _exists(conn, name):
        return False
    await conn.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(SCHEMA, name)))
    return True


def _creation(name: str, index: Index) -> sql.Composed:
    return sql.SQL("CREATE INDEX {} ON {} ({})").format(
        sql.Identifier(name),
        sql.Identifier(SCHEMA, index.table),
        sql.SQL(", ").join(map(sql.Identifier, index.columns)),
    )


async def _pages(conn: Connection, name: str) -> int:
    row: Any = await (
        await conn.execute(
            "SELECT pg_relation_size(to_regclass(%s)) AS bytes",
            (sql.Identifier(SCHEMA, name).as_string(),),
        )
    ).fetchone()
    return int(row["bytes"]) // PAGE


async def _exists(conn: Connection, name: str) -> bool:
    rows = await conn.execute(
        "SELECT FROM pg_indexes WHERE schemaname = %s AND indexname = %s", (SCHEMA, name)
    )
    return await rows.fetchone() is not None
