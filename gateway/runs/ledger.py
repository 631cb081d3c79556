"""The ledger of effects as a run of this process sees it: `human.ledger` on PostgreSQL.

Every claim of this process is settled by it as long as it lives, whatever becomes of the run: that
is what makes its sign of life the judge of its claims. So a record that cannot be written because
the database is away is written when it is back, and an effect that has begun is not cancelled with
its run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from gateway.errors import LeaseLost, Unavailable
from gateway.human.handoff import wait_for
from gateway.human.ledger import (
    BoundClaims,
    Claim,
    Decided,
    Done,
    Effect,
    Failed,
    Outcome,
    Released,
    Runner,
    Standing,
    Uncertain,
)
from gateway.human.run import CurrentRun
from gateway.runs.approvals import decided
from gateway.runs.lease import Lease
from gateway.store import audit
from gateway.store.db import Connection, Database
from gateway.store.effects import (
    Claimer,
    EffectRow,
    claim_effect,
    decisions_of_run,
    find_effect,
    release_effect,
    settle_effect,
)
from gateway.wire.encoding import Json, parse
from gateway.wire.questions import Question

logger = logging.getLogger("fermata.effects")

T = TypeVar("T")

RECORD_PATIENCE = 60.0  # seconds that graph code waits for a record while the database is away
CLOSE_GRACE = 5.0  # seconds that effects under way may take at the end of the process


class Effects:
    """The effects of this process. `owner` is its sign of life."""

    def __init__(self, database: Database, owner: str) -> None:
        self.database = database
        self.owner = owner
        self._under_way: set[asyncio.Task[Any]] = set()

    def of_run(
        self,
        current: CurrentRun,
        lease: Lease | None,
        known: Callable[[], Awaitable[None]] | None = None,
    ) -> RunLedger:
        """The ledger of a run that this process moves, by `lease` or by its sign of life. `known`
        has the row of its response written before its first effect, if it may not be there."""
        claimer = Claimer(
            tenant=current.tenant,
            run_id=current.run_id,
            response_id=current.response_id,
            requester=current.requester,
            owner=self.owner,
            lease_id=self.owner if lease is None else lease.id,
            token=None if lease is None else lease.token,
        )
        return RunLedger(self, claimer, asyncio.get_running_loop(), known)

    def keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that outlives its caller."""
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._through)
        return task

    def _through(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may be gone; what matters is on record

    async def close(self) -> None:
        """Let what is under way end, then cancel it: its claims are uncertain."""
        for cancel in (False, True):
            if not self._under_way:
                return
            for task in self._under_way if cancel else ():
                task.cancel()
            await asyncio.wait(set(self._under_way), timeout=CLOSE_GRACE)


@dataclass(eq=False, slots=True)
class RunLedger:
    """`human.ledger.Ledger` of one run."""

    effects: Effects
    claimer: Claimer
    loop: asyncio.AbstractEventLoop
    known: Callable[[], Awaitable[None]] | None = None
    used: bool = False
    """Whether the run may have done something, so that its end belongs into the audit."""

    async def claim(self, effect: Effect, *, take: bool) -> Claim | Standing:
        """As `Claims.claim`."""
        self.used = True
        if self.known is not None:
            await self.known()
        async with self.effects.database.transaction() as conn:
            return await _claim(conn, self.claimer, effect, take=take, told=True)

    async def settle(self, effect: Effect, claim: Claim, outcome: Outcome) -> None:
        """As `Claims.settle`. Raises `Unavailable` if the database stays away; it is recorded when
        that is back."""
        task = self.effects.keep(self._settle_at_last(effect, claim, outcome))
        done, _ = await asyncio.wait({task}, timeout=RECORD_PATIENCE)
        if not done:
            raise Unavailable("The database cannot be reached; the effect is recorded later.")
        task.result()

    async def _settle_at_last(self, effect: Effect, claim: Claim, outcome: Outcome) -> None:
        pause = 0.1
        while True:
            try:
                async with self.effects.database.transaction() as conn:
                    told = {"key": effect.key}
                    await _settle(conn, self.claimer, effect, claim, outcome, told)
                return
            except Unavailable:
                logger.warning("effect %r waits for the database to be recorded", effect.key)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)

    async def decided(self) -> Sequence[Decided]:
        """As `Ledger.decided`."""
        async with self.effects.database.connection() as conn:
            rows = await decisions_of_run(conn, self.claimer.tenant, self.claimer.run_id)
        return [
            one
            for row in rows
            for one in decided(
                row["name"], Question.of_stored(row["question"]), parse(row["answer"])
            )
        ]

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[BoundClaims]:
        """As `Ledger.transaction`."""
        self.used = True
        if self.known is not None:
            await self.known()
        async with self.effects.database.transaction() as conn:
            yield _Bound(conn, self.claimer)

    async def see_through(self, work: Coroutine[Any, Any, T]) -> T:
        """As `Ledger.see_through`."""
        return await asyncio.shield(self.effects.keep(work))

    def wait(self, flow: Callable[[Runner], Coroutine[Any, Any, T]]) -> T:
        """As `Ledger.wait`."""
        return wait_for(flow, self.loop)


@dataclass(frozen=True, slots=True)
class _Bound:
    """Claims in a transaction of the caller's."""

    connection: Connection
    claimer: Claimer

    async def claim(self, effect: Effect, *, take: bool) -> Claim | Standing:
        """As `Claims.claim`; not told, as nobody ever sees it unsettled."""
        return await _claim(self.connection, self.claimer, effect, take=take, told=False)

    async def settle(self, effect: Effect, claim: Claim, outcome: Outcome) -> None:
        """As `Claims.settle`; the one row that tells of it names the arguments as well."""
        told = {"key": effect.key, "arguments": effect.arguments}
        await _settle(self.connection, self.claimer, effect, claim, outcome, told)


async def _claim(
    conn: Connection, by: Claimer, effect: Effect, *, take: bool, told: bool
) -> Claim | Standing:
    claimed = await claim_effect(
        conn,
        by,
        key=effect.key,
        arguments=effect.arguments,
        fingerprint=effect.fingerprint,
        take=take,
    )
    if claimed is None:
        row = await find_effect(conn, by.tenant, effect.key)
        assert row is not None  # the claim that failed on it has locked it
        return _standing(row)
    number, attempts = claimed
    if told:
        details = {"key": effect.key, "arguments": effect.arguments, "attempt": attempts}
        await _tell(conn, by, "effect_claimed", details)
    return Claim(number, uncertain=attempts > 1)


def _standing(row: EffectRow) -> Standing:
    status: Any = row.status  # the schema's CHECK names those of `Status`
    return Standing(status, row.fingerprint, row.alive, row.claimed_at, row.result, row.failure)


async def _settle(
    conn: Connection,
    by: Claimer,
    effect: Effect,
    claim: Claim,
    outcome: Outcome,
    told: Mapping[str, Json],
) -> None:
    settled = await _write(conn, by.tenant, effect.key, claim.number, outcome)
    if settled:
        await _tell(conn, by, _EVENTS[type(outcome)], {**told, **_details(outcome)})
        return
    row = await find_effect(conn, by.tenant, effect.key)
    if not _is_ours(row, claim, outcome):
        raise LeaseLost(f"The claim of effect '{effect.key}' was taken over.")


async def _write(conn: Connection, tenant: str, key: str, claim: int, outcome: Outcome) -> bool:
    if isinstance(outcome, Released):
        return await release_effect(conn, tenant, key, claim)
    result = outcome.result if isinstance(outcome, Done) else None
    failure = _details(outcome) if isinstance(outcome, Failed) else None
    return await settle_effect(conn, tenant, key, claim, _STATUS[type(outcome)], result, failure)


def _is_ours(row: EffectRow | None, claim: Claim, outcome: Outcome) -> bool:
    """Whether a commit whose answer was lost happened after all."""
    if row is None:
        return isinstance(outcome, Released)
    return row.claim == claim.number and row.status == _STATUS.get(type(outcome))


_STATUS: Mapping[type, str] = {Done: "done", Failed: "failed", Uncertain: "uncertain"}
_EVENTS: Mapping[type, str] = {
    Done: "effect_done",
    Failed: "effect_failed",
    Uncertain: "effect_uncertain",
    Released: "effect_released",
}


def _details(outcome: Outcome) -> dict[str, Json]:
    if isinstance(outcome, Done):
        return {"result": outcome.result}
    if isinstance(outcome, Failed):
        return {"kind": outcome.kind, "reason": outcome.reason}
    return {}


async def _tell(conn: Connection, by: Claimer, event: str, details: Mapping[str, Json]) -> None:
    await audit.record(
        conn,
        tenant=by.tenant,
        run_id=by.run_id,
        event=event,
        response_id=by.response_id,
        details=details,
        requester=by.requester,
    )
