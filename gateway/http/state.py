"""What the routes need, put on the app by `gateway.app`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from starlette.requests import Request

from gateway.runs.coordinator import Coordinator
from gateway.settings import Settings


@dataclass(slots=True)
class Gateway:
    """The running process. `started_at` is in whole seconds since the epoch."""

    settings: Settings
    coordinator: Coordinator
    started_at: int
    migrated: bool = False
    """Whether the schema is known to be there: until then no request can be served."""


def gateway_of(request: Request) -> Gateway:
    """The process that serves this request."""
    return cast(Gateway, request.app.state.gateway)
