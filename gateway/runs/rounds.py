"""The process's own loops and second tries: what they do may fail, they go on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from gateway.errors import Unavailable

logger = logging.getLogger("fermata.rounds")

PATIENCE = 60.0  # seconds that work that is done is tried to be stored while the database is away


async def every(seconds: float, work: Callable[[], Awaitable[object]], what: str) -> None:
    """Do `work`, wait so many seconds, again, until cancelled.

    A heartbeat that ended with the first odd error would leave a process that serves on without a
    sign of life; so every error is logged, and the next round is another try. A cancellation that
    `work` made an error of, or took for its own, still ends the rounds.
    """
    while True:
        try:
            await work()
        except Unavailable:
            logger.debug("%s waits for the database", what)
        except Exception:
            logger.exception("%s failed; it is tried again", what)
        heed_cancellation()
        await asyncio.sleep(seconds)


class Lately:
    """Ids, each for so many seconds from when `ids` first gave it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: dict[str, float | None] = {}

    def add(self, id: str) -> None:
        """From now on it is one of them."""
        self._until[id] = None

    def ids(self) -> list[str]:
        """Those whose time is not over."""
        now = time.monotonic()
        untils = {id: until or now + self._seconds for id, until in self._until.items()}
        self._until = {id: until for id, until in untils.items() if until > now}
        return list(self._until)


def heed_cancellation() -> None:
    """Raise `CancelledError` if this task was cancelled, whatever became of that. Outside of tasks
    and in other threads there is nothing to heed."""
    task = this_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def this_task() -> asyncio.Task[object] | None:
    """The task that runs, if one does in this thread."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


async def patiently(work: Callable[[], Awaitable[None]], patience: float = PATIENCE) -> None:
    """Do `work`; while the database is away, try again, for `patience` seconds. `work` must be
    such that a second time after a success whose answer was lost does no harm."""
    deadline = time.monotonic() + patience
    pause = 0.1
    while True:
        try:
            return await work()
        except Unavailable:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(pause)
        pause = min(pause * 2, 2.0)
