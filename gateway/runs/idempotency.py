"""Idempotency-Key: who sends the same request again gets the first response.

A key is remembered in the transaction of the response's row, and is unique within its tenant. So
of two requests that come at the same instant, on any two replicas, one waits for the other's
commit and then finds its response.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from gateway.errors import IdempotencyKeyReused
from gateway.store.db import Connection, fetch_one, send

KEEP = timedelta(hours=24)
"""How long a key is remembered; no longer than its response."""


class KeyTaken(Exception):
    """Somebody else's request with this key was faster, and is committed."""


@dataclass(frozen=True, slots=True)
class Key:
    """What the client named its request, and what the request was (`request_fingerprint`)."""

    name: str
    fingerprint: bytes


async def known_response(conn: Connection, tenant: str, key: Key) -> str | None:
    """The id of the response that the key stands for, if any.

    Raises `IdempotencyKeyReused` if that was another request.
    """
    row = await fetch_one(conn, "known_key", tenant=tenant, key=key.name)
    if row is None:
        return None
    if row["fingerprint"] != key.fingerprint:
        raise IdempotencyKeyReused(
            "This Idempotency-Key was used for another request; a new request needs a new one."
        )
    return str(row["response_id"])


async def remember(conn: Connection, tenant: str, key: Key, response_id: str) -> None:
    """In the transaction that opens the response. Raises `KeyTaken`."""
    await send(conn, "free_key", tenant=tenant, key=key.name)
    kept = await send(
        conn,
        "remember_key",
        tenant=tenant,
        key=key.name,
        fingerprint=key.fingerprint,
        response_id=response_id,
        keep=KEEP,
    )
    if await kept.fetchone() is None:
        raise KeyTaken
