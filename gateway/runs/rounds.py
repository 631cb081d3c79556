"""The process's own loops: what they do may fail, they go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gateway.errors import Unavailable

logger = logging.getLogger("fermata.rounds")


async def every(seconds: float, work: Callable[[], Awaitable[object]], what: str) -> None:
    """Do `work`, wait so many seconds, again, until cancelled.

    A heartbeat that ended with the first odd error would leave a process that serves on without a
    sign of life; so every error is logged, and the next round is another try.
    """
    while True:
        try:
            await work()
        except Unavailable:
            logger.debug("%s waits for the database", what)
        except Exception:
            logger.exception("%s failed; it is tried again", what)
        await asyncio.sleep(seconds)
