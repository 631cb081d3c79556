"""What the database knows of the response that a request continues or answers."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.errors import InvalidRequest, PreviousResponseNotFound
from gateway.runs.run import AskedQuestion, KnownRun, Previous, RunStatus
from gateway.store.db import Connection, Row, fetch, fetch_one
from gateway.wire import encoding
from gateway.wire.answers import Question
from gateway.wire.history import Item, parse_item
from gateway.wire.request import CreateResponse


async def find_previous(
    conn: Connection, tenant: str, request: CreateResponse, call_ids: Sequence[str]
) -> Previous | None:
    """The response that the request names, or whose questions it answers; its run is locked.

    None if the request names nothing that is known: then its input is the client's own history.
    Raises `PreviousResponseNotFound`; `InvalidRequest` for answers to questions of several responses.
    """
    asked = await fetch(conn, "asked_by", tenant=tenant, call_ids=list(call_ids)) if call_ids else []
    response_id = request.previous_response_id or _asking_response(asked, call_ids)
    if response_id is None:
        return None
    row = await fetch_one(conn, "response", tenant=tenant, id=response_id)
    answers_it = any(call["response_id"] == response_id for call in asked)
    if row is None or not (row["stored"] or answers_it):
        raise PreviousResponseNotFound(response_id)
    run = await _lock_run(conn, tenant, row["run_id"])
    questions = await fetch(conn, "questions", response_id=response_id) if run is not None else []
    return Previous(
        response_id=row["id"],
        model=row["model"],
        status=row["status"],
        run=run,
        questions=tuple(_question(question) for question in questions),
    )


async def read_history(
    conn: Connection, tenant: str, response_id: str | None
) -> tuple[Item, ...]:
    """The items of the conversation that ends in this response: inputs and outputs, oldest first."""
    if response_id is None:
        return ()
    items: list[Item] = []
    for row in await fetch(conn, "history", tenant=tenant, id=response_id):
        stored = [*encoding.loads(row["input"]), *encoding.loads(row["body"])["output"]]
        items += [parse_item(item, "input") for item in stored]
    return tuple(items)


def _asking_response(asked: Sequence[Row], call_ids: Sequence[str]) -> str | None:
    """The response that asked what the last known output answers; the outputs before it may be answered
    pairs of the history, but never open questions of another response."""
    by_call = {row["call_id"]: row for row in asked}
    known = [by_call[call_id] for call_id in call_ids if call_id in by_call]
    if not known:
        return None
    target = str(known[-1]["response_id"])
    for row in known:
        if row["response_id"] != target and row["status"] == "pending":
            raise InvalidRequest(
                "The outputs answer questions of more than one response; answer them one by one.",
                param="input",
            )
    return target


async def _lock_run(conn: Connection, tenant: str, run_id: str) -> KnownRun | None:
    row = await fetch_one(conn, "lock_run", tenant=tenant, id=run_id)
    if row is None:
        return None
    return KnownRun(
        id=row["id"],
        requester=row["requester"],
        status=RunStatus(row["status"]),
        response_id=row["response_id"],
        settings=row["settings"],
        expires_at=row["expires_at"],
        expired=bool(row["expired"]),
    )


def _question(row: Row) -> AskedQuestion:
    return AskedQuestion(
        call_id=row["call_id"],
        interrupt_id=row["interrupt_id"],
        question=Question.of_arguments(row["question"]),
        status=row["status"],
        answer=row["answer"],
        answered_by=row["answered_by"],
        reviewer=row["reviewer"],
        answered_at=row["answered_at"],
    )
