"""Effects: what a graph does in the world, once per business key.

    paid = await async_effect(f"refund:{order}", pay, arguments={"order": order, "amount": amount})

Theory of operation. A node may run more than once: it is replayed after a question, taken over
from a dead process, sent again after a failure. So an effect is claimed in a ledger under a key
that names the business operation, then called, then recorded; whoever comes later with the same key
is told the recorded result and calls nothing. No connection is held while the call runs.

Between claim and record lies the one moment that no ledger can see into: the process may die there.
Such a claim is *uncertain*, and its author says what an uncertain outcome means: `verify` asks the
system downstream, `retry` calls again (it passes the key on, so the other side counts), `stop`
leaves it to an operator. A claim is uncertain when the process that made it is dead by its sign of
life, or said that it does not know; never because time has passed. An effect in the gateway's own
database has no such moment: `effect_in_transaction` commits it together with its record.

An effect that has begun is seen through, also when its run is cancelled meanwhile.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from langgraph.errors import GraphBubbleUp

from gateway.errors import (
    EffectConflict,
    EffectFailed,
    EffectInProgress,
    EffectNotApproved,
    EffectUncertain,
    RunFailed,
)
from gateway.human.ledger import (
    ANYTHING,
    Claim,
    Done,
    Effect,
    Failed,
    Ledger,
    Outcome,
    Runner,
    Standing,
    Uncertain,
)
from gateway.human.run import current_ledger
from gateway.human.wanted import Approval, OnFailure, OnUncertain, Wanted
from gateway.wire.encoding import Json, canonical, dumps, parse, to_jsonable

PATIENCE = timedelta(seconds=60)
"""How long a claim of a living process is waited for: longer than a dead one's lease lasts."""
_FIRST_LOOK, _SLOWEST_LOOK = 0.02, 1.0  # seconds between two looks at another's claim


@dataclass(frozen=True, slots=True)
class Happened:
    """What `verify` returns when the effect did happen; `result` is recorded as the call's."""

    result: Any = None


def effect(
    key: str,
    call: Callable[..., Any],
    *,
    arguments: Mapping[str, Any] | None = None,
    on_uncertain: OnUncertain = "stop",
    on_failure: OnFailure = "uncertain",
    approval: str | Approval | None = None,
    patience: timedelta = PATIENCE,
) -> Json:
    """`async_effect` for code that may block: sync nodes and tools, which run in worker threads.

    `call`, and `on_uncertain` if it is a function, are plain functions, and run on the calling
    thread. Raises `RuntimeError` on the event loop's thread, which it would block.
    """
    _require_worker_thread()
    if inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(on_uncertain):
        raise TypeError(f"effect({key!r}): an async function needs `await async_effect(…)`.")
    wanted = Wanted.of(key, call, arguments, on_uncertain, on_failure, approval, patience)
    ledger = current_ledger()
    return ledger.wait(partial(_carry_out, ledger, wanted))


async def async_effect(
    key: str,
    call: Callable[..., Any],
    *,
    arguments: Mapping[str, Any] | None = None,
    on_uncertain: OnUncertain = "stop",
    on_failure: OnFailure = "uncertain",
    approval: str | Approval | None = None,
    patience: timedelta = PATIENCE,
) -> Json:
    """Call `call(**arguments)` once for this key, in this tenant, ever; its result.

    `key` names the business operation, not the attempt: 1 to 1024 bytes, printable. `arguments` are
    what the operation is about: the same key with others is an error, and an approval may be
    required to cover exactly them. They and the result are stored, and told, as JSON: the first
    call gives what a replay will give. A plain `call` runs in a worker thread.

    `on_uncertain` is what to do with a claim whose outcome nobody knows: "stop", "retry", or a
    function of the arguments that asks the system downstream, and returns `Happened(result)`, or
    None if the effect certainly did not happen.
    `on_failure` is what an exception of the call means: "uncertain" (it may have happened all the
    same: a timeout), "release" (it did not, and may be tried again), "record" (it did not and
    shall not: a replay is told the same failure), or a function of the exception that says which.
    `approval` names the question whose answer must have approved this, by the record of this run.
    `patience` is how long to wait for a living process that is at the same effect.

    Raises `EffectConflict`, `EffectFailed`, `EffectUncertain`, `EffectInProgress`,
    `EffectNotApproved`; the call's own exception, unless it is recorded; `ValueError` for a key
    that cannot be; `LookupError` outside of a run.
    """
    wanted = Wanted.of(key, call, arguments, on_uncertain, on_failure, approval, patience)
    return await _carry_out(current_ledger(), wanted, asyncio.to_thread)


async def effect_in_transaction(
    key: str,
    call: Callable[..., Any],
    *,
    arguments: Mapping[str, Any] | None = None,
    on_failure: OnFailure = "release",
    approval: str | Approval | None = None,
    patience: timedelta = PATIENCE,
) -> Json:
    """`async_effect` for what happens in the gateway's own database: exactly once.

    `call(connection, **arguments)` is async and gets psycopg's `AsyncConnection` (rows as dicts) in
    the transaction that also records its result: both are committed, or neither. So its outcome is
    never uncertain; an exception rolls all back. It holds a connection of the pool while it runs:
    it is for statements, not for calls elsewhere or other effects.
    """
    wanted = Wanted.of(key, call, arguments, "stop", on_failure, approval, patience)
    ledger = current_ledger()
    await _require_approval(ledger, wanted)
    try:
        return await _claimed(partial(_commit_together, ledger, wanted), wanted)
    except _ToBeRecorded as failed:
        claim = await ledger.claim(wanted.effect, take=True)
        if isinstance(claim, Claim):
            await ledger.settle(wanted.effect, claim, failed.outcome)
        raise _failed(wanted.effect, failed.outcome) from failed.__cause__


def _require_worker_thread() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("effect(…) would block the event loop; write `await async_effect(…)` here.")


# --- claiming ---------------------------------------------------------------------------------


async def _carry_out(ledger: Ledger, wanted: Wanted, run: Runner) -> Json:
    await _require_approval(ledger, wanted)
    take = wanted.on_uncertain != "stop"

    async def attempt() -> Claim | Standing | Done:
        return await ledger.claim(wanted.effect, take=take)

    found = await _claimed(attempt, wanted)
    if isinstance(found, Claim):
        return await ledger.see_through(_perform(ledger, wanted, found, run))
    return found


async def _claimed(attempt: Callable[[], Any], wanted: Wanted) -> Any:
    """What the attempt gives, as soon as nobody else who is alive is at it; the result, if it
    happened before."""
    deadline, pause = time.monotonic() + wanted.patience, _FIRST_LOOK
    while True:
        found = await attempt()
        if isinstance(found, Done):
            return found.result
        if not isinstance(found, Standing):
            return found
        if _is_settled(wanted.effect, found):
            return found.result
        if time.monotonic() >= deadline:
            raise EffectInProgress(
                f"The effect '{wanted.effect.key}' is being carried out by another process"
                f" since {_moment(found)}.",
                key=wanted.effect.key,
            )
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _SLOWEST_LOOK)


def _is_settled(effect: Effect, found: Standing) -> bool:
    """True if it is done, False if a living process is at it; raises for all else."""
    key = effect.key
    if found.fingerprint != effect.fingerprint:
        raise EffectConflict(
            f"The effect '{key}' was claimed at {_moment(found)} with other arguments.", key=key
        )
    if found.status == "failed":
        raise _failed(effect, Failed(found.failure["kind"], found.failure["reason"]))
    if found.status == "uncertain" or (found.status == "claimed" and not found.alive):
        raise EffectUncertain(
            f"The effect '{key}' was begun at {_moment(found)} and its outcome was never recorded."
            " An operator has to decide: see `fermata effects`.",
            key=key,
        )
    return found.status == "done"


def _moment(found: Standing) -> str:
    return found.claimed_at.isoformat(timespec="seconds")


def _failed(effect: Effect, failure: Failed) -> EffectFailed:
    return EffectFailed(
        f"The effect '{effect.key}' failed with {failure.kind}.",
        key=effect.key,
        kind=failure.kind,
        reason=failure.reason,
    )


# --- calling ----------------------------------------------------------------------------------


async def _perform(ledger: Ledger, wanted: Wanted, claim: Claim, run: Runner) -> Json:
    """Verify what is uncertain, call, and record what became of it."""
    try:
        result = await _verified_or_called(wanted, claim, run)
    except BaseException as error:
        outcome = await _settle_failure(ledger, wanted, claim, error)
        if isinstance(outcome, Failed):
            raise _failed(wanted.effect, outcome) from error
        if isinstance(error, GraphBubbleUp):
            raise RuntimeError(  # noqa: TRY004  # it is about what the call did
                f"The call of effect '{wanted.effect.key}' asked a question; ask before it."
            ) from error
        raise
    done = _recordable(wanted.effect, result)
    await ledger.settle(wanted.effect, claim, done)
    if isinstance(done, Failed):
        raise _failed(wanted.effect, done)
    return done.result


async def _verified_or_called(wanted: Wanted, claim: Claim, run: Runner) -> Any:
    if claim.uncertain and callable(wanted.on_uncertain):
        try:
            found = await _run(wanted.on_uncertain, wanted.arguments, run)
        except Exception as error:
            raise _Unverified(wanted.effect.key) from error
        if isinstance(found, Happened):
            return found.result
        if found is not None:
            raise _Unverified(wanted.effect.key) from TypeError(
                f"verify returned {type(found).__name__}, neither Happened nor None"
            )
    return await _run(wanted.call, wanted.arguments, run)


class _Unverified(EffectUncertain):
    """`verify` could not tell."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"The outcome of the effect '{key}' is not known, and could not be verified.", key=key
        )


async def _run(function: Callable[..., Any], arguments: Mapping[str, Any], run: Runner) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    result = await run(partial(function, **arguments))
    return await result if inspect.isawaitable(result) else result


async def _settle_failure(
    ledger: Ledger, wanted: Wanted, claim: Claim, error: BaseException
) -> Outcome:
    outcome: Outcome = Uncertain()
    try:
        if not isinstance(error, _Unverified):
            outcome = wanted.outcome_of(error)
    finally:  # `on_failure` itself may raise
        await ledger.settle(wanted.effect, claim, outcome)
    return outcome


def _recordable(effect: Effect, result: Any) -> Done | Failed:
    """The result as it is stored and told. What has no JSON form happened all the same, so that is
    recorded: it must not happen again."""
    try:
        return Done(parse(dumps(to_jsonable(result, "result"))))
    except (RunFailed, ValueError) as error:
        return Failed(type(error).__name__, f"It happened, but its result is lost: {error}")


async def _commit_together(ledger: Ledger, wanted: Wanted) -> Done | Standing:
    async with ledger.transaction() as bound:
        claim = await bound.claim(wanted.effect, take=False)
        if isinstance(claim, Standing):
            return claim
        try:
            result = await wanted.call(bound.connection, **wanted.arguments)
        except Exception as error:
            outcome = wanted.outcome_of(error)
            if isinstance(outcome, Failed):
                raise _ToBeRecorded(outcome) from error
            raise
        done = Done(parse(dumps(to_jsonable(result, "result"))))
        await bound.settle(wanted.effect, claim, done)
    return done


class _ToBeRecorded(Exception):
    """The call's exception, on its way out of the transaction that it rolls back."""

    def __init__(self, outcome: Failed) -> None:
        super().__init__(outcome.kind)
        self.outcome = outcome


# --- approvals --------------------------------------------------------------------------------


async def _require_approval(ledger: Ledger, wanted: Wanted) -> None:
    """From the record: what a graph's state says about its answers is not asked."""
    needed = wanted.approval
    if needed is None:
        return
    named = [one for one in await ledger.decided() if needed.question in one.names]
    about = named
    if needed.of is not ANYTHING:
        exactly = canonical(to_jsonable(needed.of, "approval.of"))
        about = [one for one in named if one.about is ANYTHING or canonical(one.about) == exactly]
    if about and all(one.approved for one in about):
        return
    raise EffectNotApproved(
        f"The effect '{wanted.effect.key}' needs an approved answer to '{needed.question}';"
        f" {_why_not(len(named), len(about), all(one.clear for one in about))}.",
        key=wanted.effect.key,
    )


def _why_not(named: int, about: int, clear: bool) -> str:
    if not named:
        return "this run has no answer to it"
    if not about:
        return "what was approved is something else"
    return "it was not approved" if clear else "its answer is free text: ask with ask_approval"
