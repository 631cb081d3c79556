"""What the routes need, put on the app by `gateway.app`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

from starlette.requests import HTTPConnection

from gateway.errors import Unavailable
from gateway.runs.coordinator import Coordinator
from gateway.runs.principal import Principal
from gateway.settings import Settings


class Authenticator(Protocol):
    """Finds out whose credentials these are."""

    async def principal(self, credentials: str) -> Principal:
        """Whose they are. Raises `Unauthenticated`, or `Unavailable` if that cannot be told now."""


@dataclass(slots=True)
class Gateway:
    """The running process. `started_at` is in whole seconds since the epoch; without an
    `authenticator` everybody may ask."""

    settings: Settings
    coordinator: Coordinator
    started_at: int
    authenticator: Authenticator | None
    migrated: bool = False
    """Whether the schema is known to be there: until then no request can be served."""


def gateway_of(connection: HTTPConnection) -> Gateway:
    """The process that serves this request, or WebSocket."""
    return cast(Gateway, connection.app.state.gateway)


def ready(connection: HTTPConnection) -> Gateway:
    """The process that serves this request. Raises `Unavailable` while there is no schema."""
    gateway = gateway_of(connection)
    if not gateway.migrated:
        raise Unavailable("The database is not ready yet.")
    return gateway
