"""What a request gets back: a run of its own, a repeat of somebody's, or something said at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.errors import FermataError
from gateway.runs.execution import Execution, frames_of
from gateway.wire import encoding
from gateway.wire.items import Response
from gateway.wire.replay import lost, replay
from gateway.wire.writer import DONE, Frames


class Reply(Protocol):
    """What a request gets: the whole resource, or the frames of the stream."""

    @property
    def response_id(self) -> str:
        """The id of the response that is told."""

    async def result(self) -> bytes:
        """The Response resource as JSON, once the response has ended."""

    def frames(self) -> AsyncIterator[Frames]:
        """Ready-made SSE frames, as many at once as there are, `[DONE]` included."""

    def leave(self) -> None:
        """The client is gone."""

    @property
    def goes_with_client(self) -> bool:
        """Whether leaving stops the run."""


@dataclass(slots=True)
class LiveReply:
    """A run that this request started; its reader is this client."""

    execution: Execution

    @property
    def response_id(self) -> str:
        return self.execution.response_id

    async def result(self) -> bytes:
        return await asyncio.shield(self.execution.ended)

    def frames(self) -> AsyncIterator[Frames]:
        return frames_of(self.execution)

    @property
    def goes_with_client(self) -> bool:
        return self.execution.cancellable

    def leave(self) -> None:
        self.execution.line.abandon()
        if self.execution.cancellable:
            self.execution.cancel("The client left.")


@dataclass(slots=True)
class RepeatedReply:
    """An answer that was accepted before: waits for what comes of it, and tells it again."""

    response_id: str
    response: Response
    """As it began."""
    outcome: Callable[[], Awaitable[bytes]]
    """The resource, once the response has ended, whichever process moves it."""

    async def result(self) -> bytes:
        return await self.outcome()

    async def frames(self) -> AsyncIterator[Frames]:
        try:
            frames = replay(encoding.loads(await self.result()))
        except FermataError as error:
            frames = lost(self.response, error)
        yield list(frames)

    @property
    def goes_with_client(self) -> bool:
        return False

    def leave(self) -> None:
        """Nothing of this client's own is under way."""


@dataclass(slots=True)
class SaidReply:
    """A response that is there already."""

    response_id: str
    written: Frames
    body: bytes

    @property
    def goes_with_client(self) -> bool:
        return False

    async def result(self) -> bytes:
        return self.body

    async def frames(self) -> AsyncIterator[Frames]:
        yield [*self.written, DONE]

    def leave(self) -> None:
        """Nothing is under way."""
