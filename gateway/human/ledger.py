"""What `effect` needs of a ledger: the protocol between graph code and whatever keeps the record.

The gateway hands its ledger in with the run (`current_run().ledger`), as this package may not know
the store; `human.rehearsal` has one that lives in memory, for tests without a server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

from gateway.wire.encoding import Json

T = TypeVar("T")

Runner: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a plain function where it may block."""

Status: TypeAlias = Literal["claimed", "uncertain", "done", "failed"]


class _Anything:
    def __repr__(self) -> str:
        return "ANYTHING"


ANYTHING: Final = _Anything()


@dataclass(frozen=True, slots=True)
class Effect:
    """What is to happen once: the business key, and the arguments as plain JSON."""

    key: str
    arguments: Json
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to carry the effect out and to say what became of it.

    `uncertain`: somebody claimed it before and died, or could not say what became of it.
    """

    number: int
    uncertain: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """What the ledger knows of an effect that was claimed before.

    `alive`: the process that claimed it is, so it will say what becomes of it.
    """

    status: Status
    fingerprint: bytes
    alive: bool
    claimed_at: datetime
    result: Json = None
    failure: Json = None


@dataclass(frozen=True, slots=True)
class Done:
    """It happened."""

    result: Json


@dataclass(frozen=True, slots=True)
class Failed:
    """It did not happen, and is not to be tried again: the exception's kind and text."""

    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Released:
    """It did not happen, and may be tried again."""


@dataclass(frozen=True, slots=True)
class Uncertain:
    """Nobody knows whether it happened."""


Outcome: TypeAlias = Done | Failed | Released | Uncertain


@dataclass(frozen=True, slots=True)
class Decided:
    """What a person decided about one action in this run.

    `names` are the question's and its action's; `about` is what was approved: the payload, after an
    edit the edited value. `clear` is False where the gateway cannot tell yes from no.
    """

    names: frozenset[str]
    about: Json
    approved: bool
    clear: bool = True


class Claims(Protocol):
    """Claiming and settling."""

    async def claim(self, effect: Effect, *, take: bool) -> Claim | Standing:
        """Claim the effect, or say how it stands. `take` claims what is uncertain as well.

        Raises `LeaseLost` if this process may not move the run any more.
        """

    async def settle(self, effect: Effect, claim: Claim, outcome: Outcome) -> None:
        """Record what became of a claim, whatever becomes of the caller.

        Raises `LeaseLost` if somebody else has the claim by now.
        """


class BoundClaims(Claims, Protocol):
    """Claims within one transaction, and its connection."""

    @property
    def connection(self) -> Any: ...


class Ledger(Claims, Protocol):
    """The ledger as one run sees it."""

    async def decided(self) -> Sequence[Decided]:
        """What people decided in this run, from the record."""

    def transaction(self) -> AbstractAsyncContextManager[BoundClaims]:
        """One transaction: committed when the block ends, rolled back when it raises."""

    async def see_through(self, work: Coroutine[Any, Any, T]) -> T:
        """The work's result. Once begun it is finished, also when the caller is cancelled."""

    def wait(self, flow: Callable[[Runner], Coroutine[Any, Any, T]]) -> T:
        """Run the flow for a worker thread, which blocks until it is through.

        What the flow gives to its runner runs on the calling thread.
        """
