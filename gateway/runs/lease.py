"""Leases: who may move a run, and the one heartbeat of a process.

A lease is a row with an owner, a fencing token and an expiry on the database's clock. `Leases`
holds all leases of this process: one statement a beat renews them all and says by its rows
exactly which were lost. A lost lease cancels what it protects. When no beat got through for a
whole TTL, by this process's own clock, all count as lost: somebody else may have them by then.

The process itself has one more row, its sign of life: first requests, which conflict with nobody,
live by it instead of leases of their own.

The heart shares nothing with what it keeps alive: it beats in a thread with an event loop and a
connection of its own, so that a node that blocks the process's loop, or a pool that is empty, does
not look like death. Each beat has a deadline, so that a database that does not answer is noticed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta

from gateway.errors import Unavailable
from gateway.runs.meter import METER
from gateway.store.db import (
    Connection,
    Cursor,
    Database,
    deadline,
    execute,
    fetch,
    own_connection,
    send,
)
from gateway.wire.ids import new_id

logger = logging.getLogger("fermata.lease")

BEATS_PER_TTL = 5


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to move the run `id`, as long as `token` is the newest. `inherited`: its holder
    before died with it."""

    id: str
    token: int
    inherited: bool = False


async def acquired(cursor: Cursor, run_id: str) -> Lease | None:
    """The lease that `Leases.acquire` got; None if a living process has it."""
    row = await cursor.fetchone()
    return None if row is None else Lease(run_id, row["token"], row["inherited"])


class Leases:
    """The leases of this process; `owner` is its id in the table.

    `ttl` is how long a run stays with a process that stopped beating.
    """

    def __init__(self, database: Database, ttl: timedelta) -> None:
        self.owner = new_id("proc")
        self.ttl = ttl
        self._database = database
        self._held: dict[str, tuple[Lease, Callable[[], object]]] = {}
        self._last_beat = time.monotonic()
        self._released = False
        self.in_beat = False
        """Whether a beat of the heart is under way."""
        self.dsn = database.dsn

    async def acquire(self, conn: Connection, run_id: str) -> Cursor:
        """Ask for the run's lease in the caller's transaction; `acquired` reads the cursor."""
        return await send(conn, "acquire_lease", id=run_id, owner=self.owner, ttl=self.ttl)

    def hold(self, lease: Lease, on_loss: Callable[[], object]) -> None:
        """From now on the lease is renewed; `on_loss` is called once if it is lost."""
        self._held[lease.id] = (lease, on_loss)

    def drop(self, lease: Lease) -> None:
        """Stop renewing it."""
        if lease.id in self._held and self._held[lease.id][0] == lease:
            del self._held[lease.id]

    @contextmanager
    def paused(self, lease: Lease | None) -> Iterator[None]:
        """While the block runs the lease is not renewed: its end consumes it, which is no loss."""
        held = self._held.pop(lease.id, None) if lease is not None else None
        try:
            yield
        except Unavailable:
            if held is not None:
                self._held[held[0].id] = held
            raise

    @asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """The heart of the process beats while the block runs, in a thread of its own."""
        heart = _Heart(self, asyncio.get_running_loop())
        heart.start()
        try:
            yield
        finally:
            heart.stop()
            # Not awaited by the loop's own threads: those may all be busy with nodes.
            while heart.is_alive():  # noqa: ASYNC110  # a thread sets no event of this loop
                await asyncio.sleep(0.01)

    @property
    def is_alive(self) -> bool:
        """Whether the last beat is younger than the TTL, by this process's own clock."""
        return time.monotonic() - self._last_beat < self.ttl.total_seconds()

    async def beat(self) -> None:
        """Renew everything once; what is lost is told."""
        if self._released:
            return
        started, held = time.monotonic(), self.held
        try:
            async with self._database.connection() as conn:
                alive = await self.renew(conn, held)
        except Exception:
            self.give_up_if_silent()
            raise
        self.heard(started, held, alive)

    @property
    def held(self) -> list[Lease]:
        """What is renewed now."""
        return [lease for lease, _ in list(self._held.values())]

    async def renew(self, conn: Connection, held: Sequence[Lease]) -> set[str]:
        """Renew the sign of life and `held`; the ids of those that are still this process's."""
        async with conn.transaction():
            # A process that is stopped in here must not hold its leases' rows beyond their time.
            milliseconds = max(1, int(self.ttl.total_seconds() * 1000))
            await execute(conn, "bound_transaction", patience=f"{milliseconds}ms")
            await conn.execute("SET LOCAL synchronous_commit = off")
            await execute(conn, "sign_of_life", owner=self.owner, ttl=self.ttl)
            if not held:
                return set()
            ids, tokens = [lease.id for lease in held], [lease.token for lease in held]
            rows = await fetch(conn, "beat", ids=ids, tokens=tokens, ttl=self.ttl)
        return {row["id"] for row in rows}

    def heard(self, started: float, held: Sequence[Lease], alive: set[str]) -> None:
        """A beat that started then got through; what of `held` is not `alive` is lost."""
        self._last_beat = max(self._last_beat, started)
        self._database.away = False
        for lease in held:
            if lease.id not in alive:
                self._lose(lease)

    def give_up_if_silent(self) -> None:
        """A beat did not get through: after a whole TTL all is lost."""
        self._database.away = True
        if self.is_alive:
            return
        for lease, _ in list(self._held.values()):
            self._lose(lease)

    @property
    def released(self) -> bool:
        """Whether the process has taken its leases down, and beats no more."""
        return self._released

    async def release_all(self) -> None:
        """Take down the sign of life and all leases, at an orderly end."""
        self._released = True
        while self.in_beat:  # noqa: ASYNC110  # what it writes would outlive the release
            await asyncio.sleep(0.01)
        async with self._database.connection() as conn:
            await execute(conn, "release_owner", owner=self.owner)

    def _lose(self, lease: Lease) -> None:
        current = self._held.get(lease.id)
        if current is None or current[0] != lease:
            return  # released while the beat was on its way
        del self._held[lease.id]
        METER.leases_lost += 1
        logger.warning("lease of run %s was lost", lease.id)
        current[1]()


class _Heart(threading.Thread):
    """Beats until it is stopped; tells the process's loop what it heard."""

    def __init__(self, leases: Leases, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name="fermata-heart", daemon=True)
        self._leases = leases
        self._loop = loop
        self._pause = leases.ttl.total_seconds() / BEATS_PER_TTL
        self._ending = threading.Event()

    def stop(self) -> None:
        """After the beat that is under way, if one is."""
        self._ending.set()

    def run(self) -> None:
        """The thread."""
        asyncio.run(self._live())

    async def _live(self) -> None:
        leases = self._leases
        while not (self._ending.is_set() or leases.released):
            try:
                async with own_connection(leases.dsn, within=self._pause) as conn:
                    await self._beat_on(conn)
            except Unavailable:
                self._tell(leases.give_up_if_silent)
            except Exception:
                # A heart that stopped at the first odd error would be death.
                logger.exception("a beat failed; it is tried again")
                self._tell(leases.give_up_if_silent)
            await self._rest()

    async def _beat_on(self, conn: Connection) -> None:
        leases = self._leases
        while not self._ending.is_set():
            leases.in_beat = True
            try:
                if leases.released:
                    return
                started, held = time.monotonic(), leases.held
                with deadline(conn, self._pause):
                    alive = await leases.renew(conn, held)
            finally:
                leases.in_beat = False
            self._tell(leases.heard, started, held, alive)
            await self._rest()

    async def _rest(self) -> None:
        until = time.monotonic() + self._pause
        while time.monotonic() < until and not self._ending.is_set():  # noqa: ASYNC110  # of a thread
            await asyncio.sleep(min(0.05, self._pause))

    def _tell(self, what: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(what, *arguments)
        except RuntimeError:
            self._ending.set()  # the loop is closed: nobody is left to tell
