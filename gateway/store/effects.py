"""The ledger of effects: claimed, settled, and resolved by operators. The caller owns the
transaction.

Everything that changes a row has its audit row in the same transaction, as its last statement. A
row is a tenant's and a key's, not a run's: it stays when its run goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.errors import LeaseLost
from gateway.store import audit
from gateway.store.db import Connection, Row, execute, fetch, fetch_one
from gateway.wire.encoding import Json, dumps, parse


@dataclass(frozen=True, slots=True)
class Claimer:
    """Who claims: a run, the lease by which this process may move it (`token` None: the process's
    own sign of life), and the process."""

    tenant: str
    run_id: str
    response_id: str
    requester: str
    owner: str
    lease_id: str
    token: int | None


@dataclass(frozen=True, slots=True)
class EffectRow:
    """An effect as it is on record."""

    tenant: str
    key: str
    fingerprint: bytes
    status: str
    claim: int
    attempts: int
    run_id: str
    response_id: str
    owner: str
    alive: bool
    arguments: Json
    result: Json
    failure: Json
    claimed_at: datetime
    settled_at: datetime | None

    @property
    def is_uncertain(self) -> bool:
        """Nobody knows its outcome, and nobody is at it who will."""
        return self.status == "uncertain" or (self.status == "claimed" and not self.alive)


@dataclass(frozen=True, slots=True)
class Listed:
    """An effect in a list: `at` is when it was claimed last, or settled."""

    tenant: str
    key: str
    status: str
    attempts: int
    run_id: str
    at: datetime


async def claim_effect(
    conn: Connection, by: Claimer, *, key: str, arguments: Json, fingerprint: bytes, take: bool
) -> tuple[int, int] | None:
    """The number of the claim, and the how manieth it is; None if it was claimed before.

    `take` claims what is uncertain as well. Raises `LeaseLost` if the claimer may not move its run.
    """
    row = await fetch_one(
        conn,
        "claim_effect",
        tenant=by.tenant,
        key=key,
        fingerprint=fingerprint,
        arguments=dumps(arguments),
        owner=by.owner,
        run_id=by.run_id,
        response_id=by.response_id,
        lease_id=by.lease_id,
        token=by.token,
        take=take,
    )
    assert row is not None  # a SELECT of scalars always has its row
    if not row["fenced"]:
        raise LeaseLost("Another process took this run over.")
    return None if row["claim"] is None else (row["claim"], row["attempts"])


async def find_effect(conn: Connection, tenant: str, key: str) -> EffectRow | None:
    """The effect as it is on record, or None."""
    row = await fetch_one(conn, "effect", tenant=tenant, key=key)
    return None if row is None else _effect_row(tenant, row)


async def settle_effect(
    conn: Connection, tenant: str, key: str, claim: int, status: str, result: Json, failure: Json
) -> bool:
    """Record that it is done, failed or uncertain; False if the claim is somebody else's by now."""
    touched = await execute(
        conn,
        "settle_effect",
        tenant=tenant,
        key=key,
        claim=claim,
        status=status,
        result=dumps(result) if status == "done" else None,
        failure=dumps(failure) if status == "failed" else None,
    )
    return touched == 1


async def release_effect(conn: Connection, tenant: str, key: str, claim: int) -> bool:
    """Free the key: it did not happen. False if the claim is somebody else's by now."""
    return await execute(conn, "release_effect", tenant=tenant, key=key, claim=claim) == 1


async def decisions_of_run(conn: Connection, tenant: str, run_id: str) -> list[Row]:
    """Name, question and answer (both JSON text) of all answered questions of a run."""
    return await fetch(conn, "decisions_of_run", tenant=tenant, run_id=run_id)


# --- for operators ----------------------------------------------------------------------------


async def list_unsettled(conn: Connection, tenant: str | None, limit: int) -> list[Listed]:
    """What was begun and never recorded, oldest first; "claimed" only while its claimer lives."""
    return [
        _listed(row) for row in await fetch(conn, "unsettled_effects", tenant=tenant, limit=limit)
    ]


async def list_settled(conn: Connection, tenant: str | None, limit: int) -> list[Listed]:
    """What is done or failed for good, newest first."""
    rows = await fetch(conn, "latest_effects", tenant=tenant, limit=limit)
    return [_listed(row) for row in rows]


async def tenants_of_effect(conn: Connection, key: str) -> list[str]:
    """Who has an effect of this key."""
    return [row["tenant"] for row in await fetch(conn, "tenants_of_effect", key=key)]


async def resolve_effect(
    conn: Connection, tenant: str, key: str, *, result: Json, actor: str
) -> bool:
    """An operator says that it happened, with this result. False if it is not theirs to say: a
    living process is at it, it is done, or there is none."""
    row = await fetch_one(conn, "resolve_effect", tenant=tenant, key=key, result=dumps(result))
    details = {"result": result}
    return await _told(conn, tenant, key, row, "effect_resolved", actor, details)


async def free_effect(conn: Connection, tenant: str, key: str, *, actor: str) -> bool:
    """An operator says that it did not happen and may be tried again. False as above."""
    row = await fetch_one(conn, "free_effect", tenant=tenant, key=key)
    return await _told(conn, tenant, key, row, "effect_released", actor, {})


async def _told(
    conn: Connection,
    tenant: str,
    key: str,
    row: Row | None,
    event: str,
    actor: str,
    details: Mapping[str, Any],
) -> bool:
    if row is None:
        return False
    await audit.record(
        conn,
        tenant=tenant,
        run_id=row["run_id"],
        event=event,
        response_id=row["response_id"],
        actor=actor,
        details={"key": key, "arguments": parse(row["arguments"]), **details},
    )
    return True


def _effect_row(tenant: str, row: Row) -> EffectRow:
    known = {name: row[name] for name in EffectRow.__slots__ if name in row}
    texts = {name: row[name] for name in ("arguments", "result", "failure")}
    read = {name: None if text is None else parse(text) for name, text in texts.items()}
    return EffectRow(tenant=tenant, **{**known, **read, "fingerprint": bytes(row["fingerprint"])})


def _listed(row: Row) -> Listed:
    dead = row["status"] == "claimed" and not row["alive"]
    status = "uncertain" if dead else row["status"]
    return Listed(
        row["tenant"], row["key"], status, row["attempts"], row["run_id"], row["claimed_at"]
    )
