"""Leases: who may move a run, and the one heartbeat of a process.

A lease is a row with an owner, a fencing token and an expiry on the database's clock. `Leases`
holds all leases of this process: one statement a beat renews them all and says by its rows
exactly which were lost. A lost lease cancels what it protects. When no beat got through for a
whole TTL, by this process's own clock, all count as lost: somebody else may have them by then.

The process itself has one more row, its sign of life: first requests, which conflict with nobody,
live by it instead of leases of their own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from gateway.errors import Unavailable
from gateway.runs.meter import METER
from gateway.runs.rounds import every
from gateway.store.db import Connection, Cursor, Database, execute, fetch, send
from gateway.wire.ids import new_id

logger = logging.getLogger("fermata.lease")

BEATS_PER_TTL = 5


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to move the run `id`, as long as `token` is the newest."""

    id: str
    token: int


async def acquired(cursor: Cursor, run_id: str) -> Lease | None:
    """The lease that `Leases.acquire` got; None if a living process has it."""
    row = await cursor.fetchone()
    return None if row is None else Lease(run_id, row["token"])


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

    async def beat_for_ever(self) -> None:
        """The heartbeat of the process, until cancelled."""
        await every(self.ttl.total_seconds() / BEATS_PER_TTL, self.beat, "the heartbeat")

    @property
    def is_alive(self) -> bool:
        """Whether the last beat is younger than the TTL, by this process's own clock."""
        return time.monotonic() - self._last_beat < self.ttl.total_seconds()

    async def beat(self) -> None:
        """Renew everything once; what is lost is told."""
        if self._released:
            return
        started = time.monotonic()
        held = [lease for lease, _ in self._held.values()]
        try:
            async with self._database.transaction() as conn:
                await conn.execute("SET LOCAL synchronous_commit = off")
                await execute(conn, "sign_of_life", owner=self.owner, ttl=self.ttl)
                alive = await self._renew(conn, held)
        except Exception:
            self._give_up_if_silent()
            raise
        self._last_beat = started
        for lease in held:
            if lease.id not in alive:
                self._lose(lease)

    async def release_all(self) -> None:
        """Take down the sign of life and all leases, at an orderly end."""
        self._released = True
        async with self._database.connection() as conn:
            await execute(conn, "release_owner", owner=self.owner)

    async def _renew(self, conn: Connection, held: list[Lease]) -> set[str]:
        if not held:
            return set()
        ids, tokens = [lease.id for lease in held], [lease.token for lease in held]
        rows = await fetch(conn, "beat", ids=ids, tokens=tokens, ttl=self.ttl)
        return {row["id"] for row in rows}

    def _give_up_if_silent(self) -> None:
        if self.is_alive:
            return
        for lease, _ in list(self._held.values()):
            self._lose(lease)

    def _lose(self, lease: Lease) -> None:
        current = self._held.get(lease.id)
        if current is None or current[0] != lease:
            return  # released while the beat was on its way
        del self._held[lease.id]
        METER.leases_lost += 1
        logger.warning("lease of run %s was lost", lease.id)
        current[1]()
