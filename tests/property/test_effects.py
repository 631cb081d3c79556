"""Random histories of one ledger: whatever fails, crashes and is replayed, nothing happens twice
unless its author said that it may. The ledger in memory and the one on PostgreSQL agree."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway import (
    EffectError,
    Happened,
    RunSettings,
    async_effect,
    effects_in_memory,
)
from gateway.human.run import CurrentRun, enter_run
from gateway.runs.lease import Leases
from gateway.runs.ledger import Effects
from gateway.store.db import open_database

KEYS, ARGUMENTS = ["a", "b"], [1, 2]
_tenants = itertools.count(1)


@dataclass(frozen=True)
class Step:
    """One attempt at an effect, or (`crash`) the death of a process just before its record."""

    key: str
    argument: int
    raises: str | None = None  # "before" or "after" it has happened
    on_failure: Any = "uncertain"
    on_uncertain: str = "stop"  # or retry, verify
    crash: bool = False


STEPS = st.builds(
    Step,
    key=st.sampled_from(KEYS),
    argument=st.sampled_from(ARGUMENTS),
    raises=st.sampled_from([None, None, "before", "after"]),
    on_failure=st.sampled_from(["uncertain", "release", "record"]),
    on_uncertain=st.sampled_from(["stop", "retry", "verify"]),
    crash=st.booleans(),
)


@dataclass
class World:
    """The system downstream: what happened, and how often, by key."""

    happened: dict[str, list[int]] = field(default_factory=dict)
    told: list[tuple[str, Any]] = field(default_factory=list)

    async def attempt(self, step: Step, crash: Callable[[str], Awaitable[None]]) -> None:
        def call(argument: int) -> dict[str, int]:
            if step.raises == "before":
                raise ValueError("before")
            self.happened.setdefault(step.key, []).append(argument)
            if step.raises == "after":
                raise ValueError("after")
            return {"n": len(self.happened[step.key]), "argument": argument}

        def verify(argument: int) -> Happened | None:
            done = self.happened.get(step.key)
            return Happened({"n": len(done), "argument": argument}) if done else None

        try:
            told = await async_effect(
                step.key,
                call,
                arguments={"argument": step.argument},
                on_failure=step.on_failure,
                on_uncertain=verify if step.on_uncertain == "verify" else step.on_uncertain,  # type: ignore[arg-type]
                patience=timedelta(0),
            )
        except (EffectError, ValueError) as error:
            self.told.append((step.key, getattr(error, "error_code", str(error))))
            return
        self.told.append((step.key, told))
        if step.crash:
            await crash(step.key)


async def in_memory(steps: list[Step]) -> World:
    world = World()
    with effects_in_memory() as ledger:

        async def crash(key: str) -> None:
            ledger.leave_uncertain(key)

        for step in steps:
            await world.attempt(step, crash)
    return world


async def on_postgresql(steps: list[Step], url: str) -> World:
    world, tenant = World(), f"tenant-{next(_tenants)}"
    async with open_database(url, size=1) as database:
        leases = Leases(database, timedelta(minutes=1))
        await leases.beat()
        current = CurrentRun(f"run-{tenant}", "resp", tenant, "anna", RunSettings())
        ledger = Effects(database, leases.owner).of_run(current, None)
        run = replace(current, ledger=ledger)

        async def crash(key: str) -> None:
            async with database.connection() as conn:
                await conn.execute(
                    "UPDATE fermata.effects SET status = 'claimed', owner = 'proc_dead',"
                    " result = NULL, settled_at = NULL WHERE tenant = %s AND key = %s",
                    (tenant, key),
                )

        async def script() -> None:
            enter_run(run)
            for step in steps:
                await world.attempt(step, crash)

        await asyncio.create_task(script())
    return world


@given(st.lists(STEPS, max_size=12))
def test_nothing_happens_twice_unless_its_author_said_so(steps: list[Step]) -> None:
    world = asyncio.run(in_memory(steps))
    for key in KEYS:
        mine = [step for step in steps if step.key == key]
        happened = world.happened.get(key, [])
        # Only these two words let a call happen again that may have happened: both are its
        # author's, and neither is the default.
        again = [
            one
            for one in mine
            if one.on_uncertain == "retry" or (one.on_failure == "release" and one.raises)
        ]
        assert len(happened) <= 1 + len(again)
        if not again:
            assert len(happened) <= 1
        results = [told for where, told in world.told if where == key and isinstance(told, dict)]
        if not again:
            assert all(one == results[0] for one in results)


@given(st.lists(STEPS, max_size=12))
def test_one_key_stands_for_one_operation(steps: list[Step]) -> None:
    """Until a release frees the key, only one set of arguments ever happens under it."""
    world = asyncio.run(in_memory([step for step in steps if step.on_failure != "release"]))
    assert all(len(set(arguments)) == 1 for arguments in world.happened.values())


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, min_size=3, max_size=12))
def test_the_ledger_in_memory_does_what_the_real_one_does(
    steps: list[Step], database_url: str
) -> None:
    rehearsed = asyncio.run(in_memory(steps))
    real = asyncio.run(on_postgresql(steps, database_url))
    assert (rehearsed.told, rehearsed.happened) == (real.told, real.happened)
