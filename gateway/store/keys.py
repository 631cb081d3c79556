"""API keys: made, found, listed, revoked. The caller owns the transaction.

A key is `fk_<id>_<secret>`. The id may be shown; the secret is 256 random bits and is told once.
What is stored is its SHA-256: a slow hash protects passwords that people choose, and would cost
109 ms a request here for nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from gateway.store.db import Connection, execute, fetch, fetch_one

PREFIX = "fk_"
_KEY = re.compile(r"fk_([0-9a-f]{16})_([0-9a-f]{64})")
_NO_DIGEST = bytes(32)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Whose key it is. The tenant and the subject are never empty."""

    id: str
    tenant: str
    subject: str
    roles: frozenset[str]
    digest: bytes = field(default=_NO_DIGEST, repr=False)
    created_at: datetime | None = None
    revoked_at: datetime | None = None


def parse_key(text: str) -> tuple[str, bytes] | None:
    """The id and the secret's digest; None if this was never a key of ours."""
    match = _KEY.fullmatch(text)
    return None if match is None else (match[1], _digest(match[2]))


def is_key(key: ApiKey | None, digest: bytes) -> bool:
    """Whether the digest is this key's; takes as long for a key that does not exist."""
    known = _NO_DIGEST if key is None else key.digest
    return hmac.compare_digest(known, digest) and key is not None


async def create_key(
    conn: Connection, tenant: str, subject: str, roles: Iterable[str]
) -> tuple[str, str]:
    """A new key's id, and the key itself, which is kept nowhere."""
    id, secret = secrets.token_hex(8), secrets.token_hex(32)
    await execute(
        conn,
        "create_key",
        id=id,
        digest=_digest(secret),
        tenant=tenant,
        subject=subject,
        roles=sorted(set(roles)),
    )
    return id, f"{PREFIX}{id}_{secret}"


async def find_key(conn: Connection, id: str) -> ApiKey | None:
    """The key of this id, unless it is revoked."""
    row = await fetch_one(conn, "find_key", id=id)
    if row is None:
        return None
    roles = frozenset(row["roles"])
    return ApiKey(id, row["tenant"], row["subject"], roles, bytes(row["digest"]))


async def list_keys(conn: Connection) -> list[ApiKey]:
    """All keys, revoked ones too, oldest first; without digests."""
    return [
        ApiKey(
            id=row["id"],
            tenant=row["tenant"],
            subject=row["subject"],
            roles=frozenset(row["roles"]),
            created_at=row["created_at"],
            revoked_at=row["revoked_at"],
        )
        for row in await fetch(conn, "list_keys")
    ]


async def revoke_key(conn: Connection, id: str) -> bool:
    """Revoke it, for good; False if there is no such key."""
    return await execute(conn, "revoke_key", id=id) == 1


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
