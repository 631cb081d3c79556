"""What somebody on this process waits for and other processes may do: one query a round for all.

Polling, not LISTEN: it works through a transaction-mode pooler, costs two index look-ups a round
however many wait, and nothing while nobody does; NOTIFY would take a lock that all commits of the
database queue for. What this process does itself it tells at once (`wake`).
"""

from __future__ import annotations

import asyncio

from gateway.errors import Unavailable
from gateway.runs.rounds import every
from gateway.store.db import Database, fetch

INTERVAL = 0.1  # seconds between two looks


class Watch:
    """Waits for responses to end, and for news in their event logs."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._settling: dict[str, asyncio.Future[None]] = {}
        self._following: dict[str, list[tuple[int, asyncio.Future[None]]]] = {}
        self.closed = False

    async def settled(self, response_id: str) -> None:
        """Wait until the response is no longer in progress, wherever it runs. Raises `Unavailable`
        when this process ends first."""
        async with self._database.connection() as conn:
            if await fetch(conn, "settled", ids=[response_id]):
                return
        if self.closed:
            raise _closing()
        future = self._settling.get(response_id)
        if future is None:
            future = asyncio.get_running_loop().create_future()
            self._settling[response_id] = future
        await asyncio.shield(future)

    async def news(self, response_id: str, seen: int) -> None:
        """Wait for an event after number `seen`, or the end of the response, or of this
        process."""
        if self.closed:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (seen, future)
        self._following.setdefault(response_id, []).append(entry)
        try:
            await future
        finally:
            if entry in self._following.get(response_id, ()):
                self._following[response_id].remove(entry)
                if not self._following[response_id]:
                    del self._following[response_id]

    def wake(self, response_id: str) -> None:
        """There is news of this response: this process wrote it."""
        for _, future in self._following.pop(response_id, ()):
            if not future.done():
                future.set_result(None)

    async def look_for_ever(self) -> None:
        """Look again and again, until cancelled."""
        await every(INTERVAL, self.look, "the watch")

    async def look(self) -> None:
        """Look once."""
        if self._settling:
            async with self._database.connection() as conn:
                rows = await fetch(conn, "settled", ids=list(self._settling))
            for row in rows:
                if (future := self._settling.pop(row["id"], None)) is not None:
                    future.set_result(None)
        if self._following:
            await self._look_for_news()

    def close(self) -> None:
        """Nobody is to wait any more: the process ends."""
        self.closed = True
        for response_id in list(self._following):
            self.wake(response_id)
        while self._settling:
            _, future = self._settling.popitem()
            future.set_exception(_closing())
            future.exception()  # nobody may be listening

    async def _look_for_news(self) -> None:
        seen = {id: min(number for number, _ in all) for id, all in self._following.items()}
        async with self._database.connection() as conn:
            rows = await fetch(conn, "have_news", ids=list(seen), seen=list(seen.values()))
        for row in rows:
            self.wake(row["id"])


def _closing() -> Unavailable:
    return Unavailable("This process is shutting down.")
