"""The chain of an audit, computed apart from the database: whether rows are what they were.

Each row's hash covers all of the row and the hash of the one before, the first that of its tenant
and run (`sql/migrations/0004_audit.sql` computes the same when a row is written). A row that was
changed, removed or moved breaks it. What it cannot show is a run's last rows missing, nor a chain
that was written anew from the first row to the last: both look like a chain. The one is seen
beside the tables of runs and questions as long as those have the run; either is seen beside an
export that is kept elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DETAILS = ',"details":'


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A row as it is stored; `details` is the JSON text that was hashed."""

    run_id: str
    seq: int
    tenant: str
    event: str
    response_id: str | None
    call_id: str | None
    actor: str | None
    at: datetime
    previous: bytes
    hash: bytes
    details: str

    @property
    def place(self) -> str:
        """Where it stands, to be told."""
        return f"row {self.seq} of {self.run_id}"


def digest(row: AuditRow) -> bytes:
    """The hash that the row should have."""
    microseconds = (row.at - _EPOCH) // timedelta(microseconds=1)
    return _sha256(
        row.previous.hex(), row.tenant, row.run_id, row.seq, row.event, row.response_id,
        row.call_id, row.actor, microseconds, row.details,
    )  # fmt: skip


def seed(row: AuditRow) -> bytes:
    """What stands before the first row of a run."""
    return _sha256(row.tenant, row.run_id)


def _sha256(*fields: object) -> bytes:
    # As PostgreSQL's json_build_array spells it: blanks after the commas, no more escapes than due.
    return hashlib.sha256(json.dumps(fields, ensure_ascii=False).encode()).digest()


def faults(before: AuditRow | None, row: AuditRow) -> Iterator[str]:
    """What is wrong with the row after `before`, which is the one read before it, of any run."""
    if before is not None and before.run_id != row.run_id:
        before = None
    due = 1 if before is None else before.seq + 1
    if row.seq > due:
        gone = f"row {due}" if row.seq == due + 1 else f"rows {due} to {row.seq - 1}"
        yield f"{gone} of {row.run_id}: missing"
    elif row.previous != (seed(row) if before is None else before.hash):
        yield f"{row.place}: does not follow what stands before it"
    if row.hash != digest(row):
        yield f"{row.place}: was changed after it was written"


# --- as a line of JSON ------------------------------------------------------------------------


def to_line(row: AuditRow) -> str:
    """The row as one line of JSON. `details` come last, letter by letter as they were hashed."""
    fields = {
        "run_id": row.run_id,
        "seq": row.seq,
        "tenant": row.tenant,
        "event": row.event,
        "response_id": row.response_id,
        "call_id": row.call_id,
        "actor": row.actor,
        "at": row.at.astimezone(UTC).isoformat(timespec="microseconds"),
        "previous": row.previous.hex(),
        "hash": row.hash.hex(),
    }
    return json.dumps(fields, ensure_ascii=False)[:-1] + f"{_DETAILS}{row.details}}}"


def from_line(line: str) -> AuditRow:
    """The row back from `to_line`. Raises `ValueError` for anything else."""
    # A quotation mark inside of a string is escaped, so the first of these is the key.
    head, found, rest = line.strip().partition(_DETAILS)
    if not found or not rest.endswith("}"):
        raise ValueError("no row of an audit")
    try:
        fields = json.loads(head + "}")
        return AuditRow(
            **{
                **fields,
                "at": datetime.fromisoformat(fields["at"]),
                "previous": bytes.fromhex(fields["previous"]),
                "hash": bytes.fromhex(fields["hash"]),
                "details": rest[:-1],
            }
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"no row of an audit: {error}") from None
