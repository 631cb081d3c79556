"""The gateway's PostgreSQL, for graphs that keep tables of their own in it.

    from gateway import database

    async with database().transaction() as conn:
        await conn.execute("INSERT INTO shop.orders (id) VALUES (%s)", (order,))

The connections are those of the gateway's pool: take one for a statement or a transaction, and give
it back before you call a model or wait for anything else. Keep to a schema of your own, and name it
in every statement: the schema `fermata` is the gateway's, and a connection carries no search path,
no session setting and no lock from one use to the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeAlias

from psycopg import AsyncConnection
from psycopg.rows import DictRow

Connection: TypeAlias = AsyncConnection[DictRow]


class Database(Protocol):
    """A pool of connections, whose rows are dicts. Both methods raise `Unavailable` while
    PostgreSQL cannot be reached."""

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """One connection, in autocommit."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Connection]:
        """One transaction: committed when the block ends, rolled back when it raises."""
        ...


_DATABASE: ContextVar[Database] = ContextVar("fermata_database")


def database() -> Database:
    """The database of the gateway that runs the calling graph, for async nodes and tools.

    Raises `LookupError` outside of a run that a gateway started.
    """
    return _DATABASE.get()


def enter_database(database: Database) -> None:
    """Make it the one of the calling task and all that it starts."""
    _DATABASE.set(database)


@contextmanager
def database_for_tests(database: Database) -> Iterator[None]:
    """While the block runs, the calling code has this database."""
    token = _DATABASE.set(database)
    try:
        yield
    finally:
        _DATABASE.reset(token)
