"""Effects without a server: a ledger in memory, for the tests of a graph.

    with effects_in_memory(approved={"reset_password"}) as ledger:
        graph.invoke(…)
    assert ledger.results == {"reset:INC-42:user-123": {"reset": True}}

It does what the gateway's does, for one process that never dies. To see what your graph makes of an
uncertain outcome, `ledger.leave_uncertain(key)` before the run.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from gateway.human.database import Database, database_for_tests
from gateway.human.handoff import wait_for
from gateway.human.ledger import (
    ANYTHING,
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
)
from gateway.human.run import ledger_for_tests
from gateway.wire.encoding import Json

T = TypeVar("T")


@contextmanager
def effects_in_memory(
    approved: Sequence[str] | Mapping[str, Any] | set[str] = (),
    database: Database | None = None,
) -> Iterator[MemoryLedger]:
    """While the block runs, effects of the calling code go to a new ledger in memory.

    `approved` names the questions that count as approved; a mapping says about what. `database` is
    what `database()` gives and `effect_in_transaction` writes to; without it these raise
    `LookupError`.
    """
    about = approved if isinstance(approved, Mapping) else dict.fromkeys(approved, ANYTHING)
    decided = tuple(Decided(frozenset({name}), value, True) for name, value in about.items())
    ledger = MemoryLedger(decided, database)
    with ExitStack() as stack:
        stack.enter_context(ledger_for_tests(ledger))
        if database is not None:
            stack.enter_context(database_for_tests(database))
        yield ledger


@dataclass
class _Entry:
    number: int
    standing: Standing


@dataclass
class MemoryLedger:
    """What happened, by key. Safe among threads."""

    answers: tuple[Decided, ...] = ()
    database: Database | None = None
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def results(self) -> dict[str, Json]:
        """The results of what is done, by key, in the order in which they were claimed."""
        found = self._entries.items()
        return {key: one.standing.result for key, one in found if one.standing.status == "done"}

    @property
    def statuses(self) -> dict[str, str]:
        """How each key stands."""
        return {key: one.standing.status for key, one in self._entries.items()}

    def leave_uncertain(self, key: str) -> None:
        """From now on the outcome of this effect is unknown, as after a crash in the middle of it;
        one that is not there yet counts as begun with whatever arguments it is called with."""
        entry = self._entries.get(key)
        mark = b"" if entry is None else entry.standing.fingerprint
        standing = Standing("uncertain", mark, alive=False, claimed_at=datetime.now(UTC))
        self._entries[key] = _Entry(next(self._numbers), standing)

    async def claim(self, effect: Effect, *, take: bool) -> Claim | Standing:
        """As `Claims.claim`."""
        with self._lock:
            entry = self._entries.get(effect.key)
            if entry is None:
                return self._claimed(effect, uncertain=False)
            standing = entry.standing
            if not standing.fingerprint:
                standing = replace(standing, fingerprint=effect.fingerprint)
            same = standing.fingerprint == effect.fingerprint
            if take and same and standing.status == "uncertain":
                return self._claimed(effect, uncertain=True)
            return standing

    def _claimed(self, effect: Effect, *, uncertain: bool) -> Claim:
        number = next(self._numbers)
        now = datetime.now(UTC)
        standing = Standing("claimed", effect.fingerprint, alive=True, claimed_at=now)
        self._entries[effect.key] = _Entry(number, standing)
        return Claim(number, uncertain)

    async def settle(self, effect: Effect, claim: Claim, outcome: Outcome) -> None:
        """As `Claims.settle`."""
        with self._lock:
            entry = self._entries[effect.key]
            assert entry.number == claim.number, "a claim in memory is taken by nobody else"
            if isinstance(outcome, Released):
                del self._entries[effect.key]
            elif isinstance(outcome, Done):
                entry.standing = replace(entry.standing, status="done", result=outcome.result)
            elif isinstance(outcome, Failed):
                failure = {"kind": outcome.kind, "reason": outcome.reason}
                entry.standing = replace(entry.standing, status="failed", failure=failure)
            else:
                entry.standing = replace(entry.standing, status="uncertain", alive=False)

    async def decided(self) -> Sequence[Decided]:
        """As `Ledger.decided`: what the test says."""
        return self.answers

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[BoundClaims]:
        """As `Ledger.transaction`; the ledger itself follows the connection's transaction."""
        if self.database is None:
            raise LookupError("effects_in_memory(database=…) says where to write.")
        async with self.database.transaction() as connection:
            before = dict(self._entries)
            try:
                yield _Bound(self, connection)
            except BaseException:
                with self._lock:
                    self._entries = before
                raise

    async def see_through(self, work: Coroutine[Any, Any, T]) -> T:
        """As `Ledger.see_through`."""
        return await asyncio.shield(asyncio.ensure_future(work))

    def wait(self, flow: Callable[[Runner], Coroutine[Any, Any, T]]) -> T:
        """As `Ledger.wait`, on a loop made for it."""
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            thread = threading.Thread(target=loop.run_forever, daemon=True)
            thread.start()
            try:
                return wait_for(flow, loop)
            finally:
                loop.call_soon_threadsafe(loop.stop)
                thread.join()


@dataclass(frozen=True, slots=True)
class _Bound:
    ledger: MemoryLedger
    connection: Any

    async def claim(self, effect: Effect, *, take: bool) -> Claim | Standing:
        return await self.ledger.claim(effect, take=take)

    async def settle(self, effect: Effect, claim: Claim, outcome: Outcome) -> None:
        await self.ledger.settle(effect, claim, outcome)
