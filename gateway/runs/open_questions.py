"""The questions that wait for somebody, as their reviewers see them: listed, and one by one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.errors import InvalidRequest, NotFound
from gateway.runs.lookup import plausible
from gateway.runs.principal import Principal
from gateway.runs.refusals import on_record
from gateway.runs.review import is_allowed
from gateway.store.db import Connection, Database, Row, fetch, fetch_one
from gateway.wire import answers

ROWS_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question as its reviewers see it. `expires_at` is its own, or its run's
    while that waits for it."""

    call_id: str
    response_id: str
    model: str
    name: str
    requester: str
    status: str
    question: answers.Question
    answerable: bool
    answered_by: str | None
    created_at: datetime
    answered_at: datetime | None
    expires_at: datetime | None


async def open_questions(
    database: Database, principal: Principal, limit: int, after: str | None
) -> tuple[list[OpenQuestion], bool]:
    """The oldest `limit` questions that `principal` may answer, and whether there are more.

    Raises `InvalidRequest` if `after` is not the call id of a question.
    """
    found: list[OpenQuestion] = []
    named = () if after is None else (after,)
    async with on_record(database, principal, *named), database.connection() as conn:
        cursor = await _cursor(conn, principal, after)
        while len(found) <= limit:
            rows = await fetch(
                conn, "open_interrupts", tenant=principal.tenant, batch=ROWS_AT_ONCE, **cursor
            )
            seen = (_open_question(row, principal) for row in rows)
            found += [question for question in seen if question.answerable]
            if len(rows) < ROWS_AT_ONCE:
                break
            cursor = _behind(rows[-1])
    return found[:limit], len(found) > limit


async def _cursor(conn: Connection, principal: Principal, after: str | None) -> dict[str, Any]:
    if after is None:
        return {"created_at": "-infinity", "response_id": "", "position": 0}
    row = await _row(conn, principal, after)
    if row is None:
        raise InvalidRequest(f"There is no question '{after}' to go on after.", param="after")
    return _behind(row)


def _behind(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in ("created_at", "response_id", "position")}


async def one_question(database: Database, principal: Principal, call_id: str) -> OpenQuestion:
    """The question, whatever became of it. Raises `NotFound`."""
    async with on_record(database, principal, call_id), database.connection() as conn:
        row = await _row(conn, principal, call_id)
        if row is None:
            raise question_not_found(call_id)
    return _open_question(row, principal)


async def _row(conn: Connection, principal: Principal, call_id: str) -> Row | None:
    if not plausible(call_id):
        return None
    return await fetch_one(conn, "interrupt", tenant=principal.tenant, call_id=call_id)


def question_not_found(call_id: str) -> NotFound:
    """The refusal of a question that is not there, or is another tenant's."""
    return NotFound(f"Interrupt with call_id '{call_id}' not found.", param="call_id")


def _open_question(row: Row, principal: Principal) -> OpenQuestion:
    question = answers.Question.of_stored(row["question"])
    allowed = is_allowed(
        roles=question.roles,
        four_eyes=question.four_eyes,
        requester=row["requester"],
        principal=principal,
    )
    waits = row["status"] in ("pending", "expired")
    return OpenQuestion(
        call_id=row["call_id"],
        response_id=row["response_id"],
        model=row["model"],
        name=row["name"],
        requester=row["requester"],
        status=row["status"],
        question=question,
        answerable=allowed and row["status"] == "pending",
        answered_by=row["answered_by"],
        created_at=row["created_at"],
        answered_at=row["answered_at"],
        expires_at=question.expires_at or (row["expires_at"] if waits else None),
    )
