"""What the database knows of the response that a request continues or answers."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.errors import InterruptClosed, InvalidRequest, PreviousResponseNotFound
from gateway.runs.run import AskedQuestion, KnownRun, Previous, RunStatus
from gateway.store.db import Connection, Row, fetch, fetch_one, send
from gateway.wire import encoding
from gateway.wire.answers import Question
from gateway.wire.encoding import Json
from gateway.wire.history import Item, ItemReference, parse_item
from gateway.wire.ids import response_of_item
from gateway.wire.request import CreateResponse


async def find_previous(
    conn: Connection, tenant: str, request: CreateResponse, call_ids: Sequence[str]
) -> Previous | None:
    """The response that the request names, or whose questions it answers; its run is locked.

    None if the request names nothing that is known: then its input is the client's own history.
    Raises `PreviousResponseNotFound`, or `InterruptClosed` if its questions are still known;
    `InvalidRequest` for answers to questions of several responses.
    """
    named = request.previous_response_id
    if named is not None and not plausible(named):
        raise PreviousResponseNotFound(named)
    asked = await _asked_by(conn, tenant, call_ids) if named is None else []
    response_id = named or _asking_response(asked, call_ids)
    if request.conversation is not None:
        response_id = await _asking_in(conn, tenant, request.conversation, response_id, call_ids)
    if response_id is None:
        return None
    found = await send(conn, "response", tenant=tenant, id=response_id)
    locked = await send(conn, "lock_run_of", tenant=tenant, response_id=response_id)
    batch = await send(conn, "questions", response_id=response_id)
    row = await found.fetchone()
    if row is None:
        raise await _gone(conn, tenant, response_id, call_ids)
    run = await locked.fetchone()
    questions = [_question(question) for question in await batch.fetchall()]
    asking = {id for question in questions for id in (question.told_as, question.call_id)}
    if named is not None:
        await _refuse_others(conn, tenant, [one for one in call_ids if one not in asking])
    hidden = not row["stored"] and request.conversation is None
    if hidden and not asking & set(call_ids):
        raise PreviousResponseNotFound(response_id)
    return Previous(
        response_id=row["id"],
        model=row["model"],
        status=row["status"],
        run=None if run is None else _run(run),
        questions=tuple(questions),
    )


async def _asking_in(
    conn: Connection,
    tenant: str,
    conversation: str,
    response_id: str | None,
    call_ids: Sequence[str],
) -> str | None:
    """The response of this conversation that asks: the one whose calls are answered, or the one
    that waits. Raises `InvalidRequest` if those calls are another conversation's."""
    if response_id is None:
        row = await fetch_one(conn, "open_question_of", tenant=tenant, id=conversation)
        return None if row is None else str(row["response_id"])
    row = await fetch_one(conn, "conversation_of_response", tenant=tenant, id=response_id)
    if row is not None and row["conversation_id"] == conversation:
        return response_id
    raise InvalidRequest(
        f"No tool call found for function call output with call_id {call_ids[-1]}.", param="input"
    )


async def _gone(
    conn: Connection, tenant: str, response_id: str, call_ids: Sequence[str]
) -> InvalidRequest:
    """A deleted response is unknown, but whoever answers it late is told what became of it."""
    for row in await _asked_by(conn, tenant, call_ids):
        if row["response_id"] == response_id:
            closed = InterruptClosed(
                f"The response that asked {row['call_id']} was deleted.", param="input"
            )
            closed.call_id = row["call_id"]
            return closed
    return PreviousResponseNotFound(response_id)


async def resolve_references(
    conn: Connection, tenant: str, items: Sequence[Item]
) -> tuple[Item, ...]:
    """The items with every `item_reference` replaced by the stored item that it stands for: one of
    a response's input or output, or of a conversation. References to what is not stored are left
    as they are."""
    wanted = {item.id for item in items if isinstance(item, ItemReference)}
    if not wanted:
        return tuple(items)
    ids = {response_of_item(id) for id in wanted}
    found: dict[str, Item] = {}
    rows = await fetch(conn, "responses_of_items", tenant=tenant, ids=[id for id in ids if id])
    for row in rows:
        for item in _items_of(row):
            if item["id"] in wanted:
                found[item["id"]] = parse_item(item, "input")
    rest = [id for id in wanted - found.keys() if plausible(id)]
    for row in await fetch(conn, "items_by_id", tenant=tenant, ids=rest) if rest else []:
        found[row["id"]] = parse_item(encoding.read_back(row["item"]), "input")
    return tuple(
        found.get(item.id, item) if isinstance(item, ItemReference) else item for item in items
    )


def refuse_unresolved(items: Sequence[Item], path: str = "input") -> None:
    """Raises `InvalidRequest` naming the first reference that nothing is stored for."""
    for index, item in enumerate(items):
        if isinstance(item, ItemReference):
            param = f"{path}[{index}].id"
            message = f"Item with id '{item.id}' not found."
            raise InvalidRequest(message, param=param, code="not_found")


def _items_of(row: Row) -> list[dict[str, Json]]:
    return [*encoding.read_back(row["input"]), *encoding.read_back(row["body"])["output"]]


async def _refuse_others(conn: Connection, tenant: str, call_ids: Sequence[str]) -> None:
    for row in await _asked_by(conn, tenant, call_ids):
        if row["status"] == "pending":
            raise _answers_two()


def _answers_two() -> InvalidRequest:
    return InvalidRequest(
        "The outputs answer questions of more than one response; answer them one by one.",
        param="input",
    )


async def _asked_by(conn: Connection, tenant: str, call_ids: Sequence[str]) -> list[Row]:
    possible = [call_id for call_id in call_ids if plausible(call_id)]
    return await fetch(conn, "asked_by", tenant=tenant, call_ids=possible) if possible else []


def plausible(id: str) -> bool:
    """Whether PostgreSQL can be asked for it at all: NUL and lone surrogates are no text there."""
    return id.isascii() and id.isprintable()


async def read_history(conn: Connection, tenant: str, response_id: str | None) -> tuple[Item, ...]:
    """The items of the conversation that ends in this response: inputs and outputs, oldest
    first."""
    if response_id is None:
        return ()
    items: list[Item] = []
    for row in await fetch(conn, "history", tenant=tenant, id=response_id):
        items += [parse_item(item, "input") for item in _items_of(row)]
    return tuple(items)


def _asking_response(asked: Sequence[Row], call_ids: Sequence[str]) -> str | None:
    """The response that asked what the last known output answers; the outputs before it may be
    answered pairs of the history, but never open questions of another response."""
    by_call = {row["call_id"]: row for row in asked}
    known = [by_call[call_id] for call_id in call_ids if call_id in by_call]
    if not known:
        return None
    target = str(known[-1]["response_id"])
    for row in known:
        if row["response_id"] != target and row["status"] == "pending":
            raise _answers_two()
    return target


def _run(row: Row) -> KnownRun:
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
        question=Question.of_stored(row["question"]),
        status=row["status"],
        answer=row["answer"],
        answered_by=row["answered_by"],
        reviewer=row["reviewer"],
        answered_at=row["answered_at"],
        card=row["card"],
    )
