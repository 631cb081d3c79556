"""Following a background response: replay from its event log, then live, from any replica."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from gateway.errors import InvalidRequest, NotFound
from gateway.runs.coordinator import Coordinator
from gateway.runs.lookup import plausible
from gateway.runs.principal import Principal
from gateway.runs.replies import RepeatedReply
from gateway.store.db import fetch, fetch_one
from gateway.wire import encoding
from gateway.wire.items import Response
from gateway.wire.told import frames_in, is_ending
from gateway.wire.writer import DONE, Frames

CHUNKS_AT_ONCE = 100  # as the statement says


@dataclass(slots=True)
class FollowedReply:
    """A background response, from the event after number `after` on."""

    coordinator: Coordinator
    tenant: str
    response_id: str
    after: int = -1
    accepted: bytes | None = None
    """The resource as it was accepted, if this request was the one that did."""

    @property
    def goes_with_client(self) -> bool:
        return False

    async def result(self) -> bytes:
        return await self.coordinator.outcome_of(self.tenant, self.response_id)

    async def frames(self) -> AsyncIterator[Frames]:
        """What is on record, then what comes, until the response ends. If this process ends
        before, the stream just ends: its client follows on from what it has, anywhere else."""
        seen = self.after
        while not self.coordinator.watch.closed:
            ended = await self._has_ended()
            async for number, frames in self._recorded(seen):
                seen = number
                yield frames
                if is_ending(frames[-1]):  # nothing is written after it
                    yield [DONE]
                    return
            if ended:
                yield [DONE]
                return
            await self.coordinator.watch.news(self.response_id, seen)

    def leave(self) -> None:
        """The run goes on; so it does for everybody else who follows it."""

    async def _has_ended(self) -> bool:
        """Looked at before the log is read: what is there then is all there is."""
        async with self.coordinator.database.connection() as conn:
            return bool(await fetch(conn, "settled", ids=[self.response_id]))

    async def _recorded(self, seen: int) -> AsyncIterator[tuple[int, Frames]]:
        """The frames after number `seen`, a stored chunk at a time, each with the number of its
        last frame."""
        while True:
            async with self.coordinator.database.connection() as conn:
                rows = await fetch(
                    conn, "events_after", tenant=self.tenant, id=self.response_id, after=seen
                )
            for row in rows:
                new = list(frames_in(row["frames"]))[max(0, seen + 1 - row["first"]) :]
                if new:
                    seen = max(seen + 1, row["first"]) + len(new) - 1
                    yield seen, new
            if len(rows) < CHUNKS_AT_ONCE:
                return


async def rejoin(
    coordinator: Coordinator, response_id: str, principal: Principal, after: int | None
) -> FollowedReply | RepeatedReply:
    """The stream of a stored response, from the event after number `after` on. Without a log, of a
    foreground response or an old one, it is told from its resource once it has ended.

    Raises `NotFound`; `InvalidRequest` if the events before the wanted ones cannot be told apart.
    """
    tenant = principal.tenant
    row = None
    if plausible(response_id):
        async with coordinator.database.connection() as conn:
            row = await fetch_one(conn, "request_of", tenant=tenant, id=response_id)
    if row is None or not row["stored"]:
        raise NotFound(f"Response with id '{response_id}' not found.", param="response_id")
    if row["logged"]:
        number = -1 if after is None else after
        return FollowedReply(coordinator, tenant, response_id, number)
    if after is not None:
        raise InvalidRequest(
            "The events of this response are not kept; stream it without 'starting_after'.",
            param="starting_after",
        )
    response = Response.of_resource(encoding.loads(row["body"]))
    outcome = partial(coordinator.outcome_of, tenant, response_id)
    return RepeatedReply(response_id, response, outcome)
