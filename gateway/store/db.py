"""The pool, transactions, the named statements and the migrations.

Theory of operation ------------------- Connections carry no session state: autocommit outside
transactions, schema-qualified names, no session locks, no LISTEN. That keeps the gateway correct
behind a transaction-mode pooler, where the next statement may meet another backend. Prepared
statements are used only when the server is our own embedded one; behind a pooler only
`prepare_threshold=None` works (measured with pgbouncer).

Migrations are numbered files, applied in order, each in one transaction, under an advisory lock
that is polled: a blocking `pg_advisory_lock` holds a snapshot, on which LangGraph's CREATE INDEX
CONCURRENTLY waits, so that racing processes deadlock (measured: 4 of 8 failed; polling: none).
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, LiteralString, TypeAlias

import psycopg
from psycopg import AsyncConnection, AsyncCursor, AsyncPipeline
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from gateway.errors import ConversationLocked, StartupError, Unavailable
from gateway.store.checkpoints import set_up_checkpoints
from gateway.store.statements import SQL, SQL_FILES

Connection: TypeAlias = AsyncConnection[DictRow]
Cursor: TypeAlias = AsyncCursor[DictRow]
Row: TypeAlias = DictRow

MIGRATION_LOCK = 0x6665726D  # "ferm"
MIGRATION_POLL = 0.1  # seconds between two tries for the migration lock
TRANSACTION_PATIENCE = timedelta(seconds=30)  # until a transaction that does not end is ended
POOL_WAIT = 30.0  # seconds until a request that finds no free connection is told 503
POOL_SLICE = 5.0  # seconds until it asks the pool again
AWAY_WAIT = 5.0  # seconds until it is told 503 while the database is known to be away
PATIENCE = 20.0
"""Seconds until a connection whose work does not end is cut, and its request told 503."""
APPLICATION_NAME = "fermata"
BUSY_CONVERSATION = "responses_busy_conversation"
"""The index that lets one response at a time work on a conversation."""


async def send(conn: Connection, name: str, **params: Any) -> Cursor:
    """Run the named statement. In a pipeline it is only sent; the cursor has its rows after a
    sync."""
    return await conn.execute(SQL[name], params)


async def fetch(conn: Connection, name: str, **params: Any) -> list[Row]:
    """All rows of the named statement (`sql/*.sql`)."""
    cursor = await conn.execute(SQL[name], params)
    return await cursor.fetchall()


async def fetch_one(conn: Connection, name: str, **params: Any) -> Row | None:
    """The first row of the named statement, or None."""
    cursor = await conn.execute(SQL[name], params)
    return await cursor.fetchone()


async def execute(conn: Connection, name: str, **params: Any) -> int:
    """Run the named statement; the number of rows it touched."""
    cursor = await conn.execute(SQL[name], params)
    return cursor.rowcount


class Unfinished(psycopg.InternalError):
    """A transaction could not be committed: one of its statements had failed. A bug of ours, told
    as the driver tells other states that should not be."""


DatabaseError = psycopg.Error
"""Whatever PostgreSQL, or the way to it, refuses a statement with."""

AlreadyThere = psycopg.errors.UniqueViolation
"""A row with this key is there."""

_AWAY = (
    PoolTimeout,
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,  # a standby that is not promoted yet, a full disk
    psycopg.errors.IdleInTransactionSessionTimeout,
    psycopg.errors.TransactionTimeout,
)
"""What a later try can cure: the server is away, or is not the one it will be."""


class Database:
    """A pool of at most `size` connections.

    A connection is taken for a statement or a transaction and given back at once: none is held
    while a graph runs or a person thinks. All methods raise `Unavailable` when PostgreSQL cannot
    be reached.
    """

    def __init__(
        self,
        pool: AsyncConnectionPool[Connection],
        dsn: str,
        patience: timedelta = TRANSACTION_PATIENCE,
    ) -> None:
        self._pool = pool
        self.dsn = dsn
        self.away = False
        """Whether the last heartbeat did not get through: then nobody waits long."""
        self._patience = f"{max(1, int(patience.total_seconds() * 1000))}ms"
        self._away = False

    @asynccontextmanager
    async def connection(self, patience: float = PATIENCE) -> AsyncIterator[Connection]:
        """One connection, in autocommit; it is cut after `patience` seconds."""
        try:
            conn = await self._sound()
            try:
                with deadline(conn, patience):
                    # `async with conn` would also commit, which autocommit has nothing for: a
                    # round through psycopg's waiting at each use.
                    try:
                        yield conn
                    except BaseException as error:
                        await conn.__aexit__(type(error), error, error.__traceback__)
                        raise
                    self._away = False
            finally:
                await self._pool.putconn(conn)
        except _AWAY as error:
            self._away = True
            raise Unavailable("The database cannot be reached; try again shortly.") from error
        except psycopg.errors.UniqueViolation as error:
            if error.diag.constraint_name == BUSY_CONVERSATION:
                raise ConversationLocked from error
            raise

    async def _sound(self) -> Connection:
        """A connection that the server has not closed: after a restart of PostgreSQL all that wait
        in the pool are dead, and each would cost somebody a 503. A look at the socket costs
        microseconds, a question to the server a round trip."""
        until = time.monotonic() + (AWAY_WAIT if self.away else POOL_WAIT)
        while True:
            try:
                # In slices: the pool gives up reconnecting after a while; each call is a new try.
                wait = max(0.0, min(POOL_SLICE, until - time.monotonic()))
                conn = await self._taken(wait)
            except PoolTimeout:
                if time.monotonic() >= until:
                    raise
                continue
            if not _has_ended(conn):
                return conn
            conn.pgconn.finish()
            await self._pool.putconn(conn)

    async def _taken(self, wait: float) -> Connection:
        """A connection of the pool. Raises `PoolTimeout` after `wait` seconds.

        The pool waits with `asyncio.wait_for`, which before Python 3.12 forgets a cancellation
        that comes in the same moment as the connection; whoever was cancelled would go on.
        """
        task = asyncio.current_task()
        assert task is not None
        cancelled = task.cancelling()
        conn = await self._pool.getconn(timeout=wait)
        if task.cancelling() > cancelled:
            await self._pool.putconn(conn)
            raise asyncio.CancelledError
        return conn

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """One transaction: committed when the block ends, rolled back when it raises."""
        async with self.connection() as conn, conn.transaction():
            await execute(conn, "bound_transaction", patience=self._patience)
            yield conn

    @asynccontextmanager
    async def pipeline(self) -> AsyncIterator[tuple[Connection, AsyncPipeline]]:
        """One transaction in pipeline mode: statements leave together, a sync brings their results.

        Check what must hold after a `sync`, before the block ends: the end is the commit. Raises
        `Unfinished` if a statement failed and the block swallowed that: nothing is written.
        """
        async with self.connection() as conn:
            async with conn.pipeline() as pipe:
                # psycopg's own transaction would sync around itself (measured: a third more CPU).
                await conn.execute("BEGIN")
                await send(conn, "bound_transaction", patience=self._patience)
                yield conn, pipe
                ended = await conn.execute("COMMIT")
            if ended.statusmessage != "COMMIT":  # an error that the block swallowed
                raise Unfinished("A statement of the transaction failed; nothing was written.")

    async def confirm(self) -> None:
        """Raise `Unavailable` if the last use failed and the next one fails as well. Free while
        all goes well."""
        if self._away:
            async with self.connection() as conn:
                await conn.execute("SELECT 1")

    def usage(self) -> tuple[int, int, int]:
        """Connections that there are, those in use, and statements that wait for one."""
        stats = self._pool.get_stats()
        size = stats["pool_size"]
        return size, size - stats["pool_available"], stats["requests_waiting"]

    async def reachable(self, within: float = 2.0) -> bool:
        """Whether a statement gets through within so many seconds."""
        try:
            async with asyncio.timeout(within), self.connection() as conn:
                await conn.execute("SELECT 1")
        except (Unavailable, TimeoutError):
            return False
        return True


def _has_ended(conn: Connection) -> bool:
    """Nothing comes on an idle connection but its end, or word of it."""
    if conn.closed:
        return True
    look = select.poll()
    look.register(conn.fileno(), select.POLLIN)
    return bool(look.poll(0))


@contextmanager
def deadline(conn: Connection, seconds: float) -> Iterator[None]:
    """Cut the connection if the block is not through in time: what waits for the server raises.

    Cancelling would ask that same server to cancel the statement, and wait for its answer.
    """
    timer = asyncio.get_running_loop().call_later(seconds, _cut, conn)
    try:
        yield
    finally:
        timer.cancel()


def _cut(conn: Connection) -> None:
    if not conn.closed:
        with socket.socket(fileno=os.dup(conn.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)


@asynccontextmanager
async def own_connection(dsn: str, *, within: float) -> AsyncIterator[Connection]:
    """A connection outside of the pool, for whoever must not wait for others. Made within so many
    seconds. Raises `Unavailable`."""
    try:
        async with asyncio.timeout(within):
            conn: Connection = await AsyncConnection.connect(
                dsn,
                autocommit=True,
                row_factory=dict_row,
                application_name=APPLICATION_NAME,
                prepare_threshold=None,
            )
        try:
            yield conn
        finally:
            conn.pgconn.finish()  # no word to a server that may not answer
    except (TimeoutError, *_AWAY) as error:
        raise Unavailable("The database cannot be reached; try again shortly.") from error


class DatabaseAway(StartupError):
    """The database cannot be reached now; it may be later."""


@asynccontextmanager
async def open_database(
    dsn: str, *, size: int, prepared: bool = False, patience: timedelta = TRANSACTION_PATIENCE
) -> AsyncIterator[Database]:
    """A `Database` over `dsn` with at most `size` connections.

    `prepared` allows server-side prepared statements: only without a transaction-mode pooler
    between. A transaction that has not ended after `patience` is ended by PostgreSQL: the locks of
    a process that was stopped in the middle of one must not stop the others. Does not wait for
    PostgreSQL: a gateway may start before its database does.
    """
    options = {
        "autocommit": True,
        "row_factory": dict_row,
        "prepare_threshold": 5 if prepared else None,
        "application_name": APPLICATION_NAME,
        "keepalives_idle": 30,
        "connect_timeout": 10,
    }
    pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
        dsn, kwargs=options, min_size=1, max_size=size, open=False, check=None, reconnect_timeout=5
    )
    async with pool:
        yield Database(pool, dsn, patience)


def migrations() -> Iterator[tuple[int, str, LiteralString]]:
    """Number, name and text of every migration, in order."""
    for file in sorted((SQL_FILES / "migrations").iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            yield int(number), name, file.read_text()


async def migrate(dsn: str) -> int:
    """Bring the schema of `dsn` up to date, LangGraph's tables included; the version it is at.

    `dsn` must reach PostgreSQL directly, not through a transaction-mode pooler: the lock belongs
    to the session. Any number of processes may do this at once.

    Raises `DatabaseAway` if the database cannot be reached, `StartupError` if its schema is newer
    than this code.
    """
    try:
        conn: Connection = await AsyncConnection.connect(
            dsn, autocommit=True, row_factory=dict_row, application_name=APPLICATION_NAME
        )
    except psycopg.OperationalError as error:
        raise DatabaseAway(f"The database cannot be reached: {error}") from error
    async with conn:
        await _lock(conn)
        version = await _apply(conn)
        await _leave_own_schema(conn)
        await set_up_checkpoints(conn)
    return version


async def _leave_own_schema(conn: Connection) -> None:
    """LangGraph's tables are not qualified. For a user called fermata, `"$user"` in the search
    path would put them into our schema, where other users would not find them."""
    await conn.execute(
        "SELECT set_config('search_path',"
        " coalesce(string_agg(quote_ident(name), ', '), 'public'), false)"
        " FROM unnest(current_schemas(false)) AS path (name) WHERE name <> 'fermata'"
    )


async def _lock(conn: Connection) -> None:
    """Take the migration lock; it goes with the connection."""
    statement = "SELECT pg_try_advisory_lock(%s) AS taken"
    while True:
        row = await (await conn.execute(statement, (MIGRATION_LOCK,))).fetchone()
        if row is not None and row["taken"]:
            return
        await asyncio.sleep(MIGRATION_POLL)


async def _apply(conn: Connection) -> int:
    await conn.execute("CREATE SCHEMA IF NOT EXISTS fermata")
    await conn.execute(
        "CREATE TABLE IF NOT EXISTS fermata.migrations"
        " (version integer PRIMARY KEY, name text NOT NULL,"
        " applied_at timestamptz NOT NULL DEFAULT now())"
    )
    known = list(migrations())
    applied = await _applied(conn)
    if max(applied, default=0) > known[-1][0]:
        raise StartupError(
            f"The database's schema is at version {max(applied)}, newer than this Fermata knows"
            f" ({known[-1][0]}). Upgrade Fermata, or use another database."
        )
    for version, name, text in known:
        if version not in applied:
            async with conn.transaction():
                await conn.execute(text)
                await conn.execute(
                    "INSERT INTO fermata.migrations (version, name) VALUES (%s, %s)",
                    (version, name),
                )
    return known[-1][0]


async def _applied(conn: Connection) -> set[int]:
    cursor = await conn.execute("SELECT version FROM fermata.migrations")
    return {row["version"] for row in await cursor.fetchall()}
