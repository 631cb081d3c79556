"""What a background run leaves on record as it goes: what it tells, and its finished steps.

Nobody may be reading, or somebody on another replica; so a background response is told by its
event log alone. Frames are collected for a moment and written together, then told: commit, then
tell. A finished step writes its checkpoint and everything that was said until then in one fenced
transaction, before the next step starts. So whoever takes the run over knows which steps are
finished, and of what was told which part belongs to them (`settled`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta

from gateway.errors import LeaseLost, Unavailable
from gateway.runs.lease import Lease
from gateway.runs.rounds import patiently
from gateway.store.checkpoint_rows import save_steps
from gateway.store.checkpoints import News, StepMemory
from gateway.store.db import Connection, Cursor, Database, send
from gateway.wire.writer import Frames

logger = logging.getLogger("fermata.journal")

FLUSH_AFTER = timedelta(milliseconds=25)
FLUSH_EVENTS = 64


class Journal:
    """The line between a background run and whoever follows it.

    `next` is the sequence number of the next frame. `on_news` is called when more is on record,
    `on_loss` when the lease turned out to be lost.
    """

    def __init__(
        self,
        database: Database,
        lease: Lease,
        tenant: str,
        response_id: str,
        memory: StepMemory,
        *,
        next: int,
        on_news: Callable[[], object],
        on_loss: Callable[[], object],
    ) -> None:
        self._database = database
        self._lease = lease
        self._tenant = tenant
        self._response_id = response_id
        self._memory = memory
        self._next = next
        self._on_news = on_news
        self._on_loss = on_loss
        self._pending: list[bytes] = []
        self._writing = asyncio.Lock()
        self._timer: asyncio.Task[None] | None = None
        self._closed = False

    async def put(self, frames: Frames) -> None:
        """Say this soon; waits while too much is unwritten."""
        self._pending += frames
        if len(self._pending) >= FLUSH_EVENTS:
            await patiently(self.write)
        elif self._pending:
            self.soon()

    def soon(self) -> None:
        """Write in a moment."""
        if self._timer is None and not self._closed:
            self._timer = asyncio.create_task(self._later())

    async def step(self, frames: Frames, root: bool) -> None:
        """A step is finished: it is on record when this returns, and `frames` are the last that
        belong to it. What a subgraph's step told belongs to a step of the root that goes on."""
        self._pending += frames
        await patiently(lambda: self.write(settled=root))

    async def write(self, *, settled: bool = False) -> None:
        """Write what there is. Raises `LeaseLost`, and `Unavailable` if it is to be tried
        again."""
        async with self._writing:
            if self._closed:
                return
            frames, news = list(self._pending), self._memory.take_news()
            if not (frames or news or settled):
                return
            try:
                if news or settled:
                    await self._write_step(frames, news, settled)
                else:
                    await self._write_frames(frames)
            except BaseException:
                self._memory.give_back(news)
                raise
            self._wrote(len(frames))

    async def close(self) -> None:
        """No more writes but the last, which is part of the ending."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)
        async with self._writing:
            pass

    async def append_last(self, conn: Connection, frames: Frames) -> None:
        """The end of the log, in the transaction that ends the response; fenced like that."""
        await self._append(conn, [*self._pending, *frames])

    async def last(self, frames: Frames) -> None:
        """The ending is on record."""
        self._wrote(len(self._pending) + len(frames))

    def catch_up(self) -> None:
        """Nothing is held back here."""

    def abandon(self) -> None:
        """Nobody reads here: followers come and go."""

    async def lose(self, frames: Frames) -> None:
        """This process may not say how it ends; what it would have said is not told."""
        await self.close()

    async def end(self) -> None:
        """The run has left this process."""
        await self.close()

    async def _later(self) -> None:
        try:
            await asyncio.sleep(FLUSH_AFTER.total_seconds())
            self._timer = None
            await patiently(self.write)
        except LeaseLost:
            self._on_loss()
        except Unavailable:
            logger.warning("response %s: its events cannot be written", self._response_id)

    async def _write_frames(self, frames: Frames) -> None:
        async with self._database.connection() as conn:
            cursor = await self._append(conn, frames)
        if cursor.rowcount != 1:
            raise _lost()

    async def _write_step(self, frames: Frames, news: list[News], settled: bool) -> None:
        async with self._database.pipeline() as (conn, pipe):
            fence = await send(conn, "hold", run_id=self._lease.id, token=self._lease.token)
            if frames:
                await self._append(conn, frames)
            if news:
                await save_steps(conn, self._lease.id, self._memory, news)
            if self._memory.keeps_newest:
                await send(conn, "prune_checkpoints", run_id=self._lease.id)
            if settled:
                await send(
                    conn,
                    "settle",
                    tenant=self._tenant,
                    id=self._response_id,
                    settled=self._next + len(frames),
                )
            await pipe.sync()
            if fence.rowcount != 1:
                raise _lost()

    async def _append(self, conn: Connection, frames: Frames) -> Cursor:
        return await send(
            conn,
            "append_events",
            id=self._response_id,
            first=self._next,
            last=self._next + len(frames) - 1,
            frames=b"".join(frames),
            run_id=self._lease.id,
            token=self._lease.token,
        )

    def _wrote(self, count: int) -> None:
        del self._pending[:count]
        self._next += count
        self._on_news()


def _lost() -> LeaseLost:
    return LeaseLost("Another process took this run over.")
