"""A connection for one command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.settings import Settings
from gateway.store.db import Connection, migrate, open_database

R = TypeVar("R")


async def with_connection(settings: Settings, act: Callable[[Connection], Awaitable[R]]) -> R:
    """What `act` does with the database, whose schema may not be there yet."""
    await migrate(settings.database_direct_url or "")
    database_url = settings.database_url or ""
    async with open_database(database_url, size=1) as database, database.connection() as conn:
        return await act(conn)
