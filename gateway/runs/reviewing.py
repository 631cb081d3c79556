"""Questions answered one by one, by people who are not the client.

An answer is stored on its question; the last one of a batch resumes the run, under a new response
that *follows* the one that asked. No client asked for that response, so its output is shown to
whoever retrieves the one that asked: `runs.retrieval` puts them together when they are read.
Nothing that was told is rewritten, and a client's own answer changes nothing about the response
that asked.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.errors import (
    InterruptAlreadyAnswered,
    InterruptClosed,
    InvalidRequest,
    ModelNotFound,
    PreviousResponseNotFound,
    ResponseInProgress,
    Unavailable,
)
from gateway.human.run import CurrentRun, settings_from
from gateway.runs.audited import accepted, answered
from gateway.runs.coordinator import Coordinator
from gateway.runs.execution import Execution, Frameline
from gateway.runs.lease import Lease
from gateway.runs.lookup import find_previous
from gateway.runs.meter import METER
from gateway.runs.open_questions import question_not_found
from gateway.runs.outset import Outset
from gateway.runs.principal import Principal
from gateway.runs.refusals import on_record
from gateway.runs.review import may_answer
from gateway.runs.run import (
    AskedQuestion,
    KnownRun,
    Previous,
    RunStatus,
    about,
    already_answered,
    refuse_closed,
)
from gateway.store.checkpoint_rows import load_checkpoints
from gateway.store.db import Connection, Row, fetch_one, send
from gateway.wire import answers, encoding
from gateway.wire.encoding import Json
from gateway.wire.history import FunctionCallOutput
from gateway.wire.ids import input_item_id, new_id
from gateway.wire.items import Response
from gateway.wire.request import CreateResponse
from gateway.wire.writer import Writer

EXPIRY = "system:expiry"
"""Who answers when nobody did."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one answer does. `values` are all answers of the batch so far, as JSON text by call id;
    `last` says that none is missing, `again` that the run failed after them."""

    values: Mapping[str, str]
    last: bool
    again: bool = False


async def answer_one(
    coordinator: Coordinator, call_id: str, output: str, principal: Principal
) -> None:
    """Take this answer for good; the last one of its batch resumes the run in the background.

    `output` is what the `output` of a `function_call_output` would be. Raises `NotFound`,
    `ReviewerNotAllowed` and the refusals of an answer by `previous_response_id`.
    """
    item = FunctionCallOutput(call_id, output, {})
    execution = None
    async with (
        on_record(coordinator.database, principal, call_id),
        coordinator.database.pipeline() as (conn, _),
    ):
        previous = await _asked(conn, principal.tenant, item)
        if previous is None or previous.run is None:
            raise question_not_found(call_id)
        step = plan_one(previous.questions, previous.run, item, principal)
        if step is None:
            return
        if not step.last:
            await _keep(conn, principal, previous, call_id, step.values[call_id])
        else:
            execution = await _resume(
                coordinator, conn, principal, previous, previous.run, step, call_id
            )
    METER.answers["accepted"] += 1
    if execution is not None:
        coordinator.launch(execution)


async def answer_expired(coordinator: Coordinator, tenant: str, call_id: str) -> bool:
    """Give the answer that silence means for a question whose time is over (`on_expiry`).

    False if somebody was faster.
    """
    item = FunctionCallOutput(call_id, "", {})
    silence = Principal(tenant, EXPIRY)
    async with coordinator.database.pipeline() as (conn, _):
        try:
            previous = await _asked(conn, tenant, item)
        except InterruptClosed:
            return False
        if previous is None or previous.run is None:
            return False
        step = plan_expiry(previous.questions, previous.run, call_id)
        if step is None:
            return False
        if not step.last:
            await _keep(conn, silence, previous, call_id, step.values[call_id])
            return True
        execution = await _resume(coordinator, conn, silence, previous, previous.run, step, call_id)
    coordinator.launch(execution)
    return True


def plan_expiry(questions: Sequence[AskedQuestion], run: KnownRun, call_id: str) -> Step | None:
    """What the end of a question's time does; None if it is not its to end. Pure."""
    asked = next(one for one in questions if one.call_id == call_id)
    answer = answers.expiry_answer(asked.question)
    if answer is None or asked.status != "pending" or run.status is not RunStatus.WAITING:
        return None
    stored = {one.call_id: one.answer for one in questions if one.answer is not None}
    values = {**stored, call_id: encoding.dumps(answer.resume_value(asked.question, EXPIRY))}
    return Step(values, last=len(values) == len(questions))


def plan_one(
    questions: Sequence[AskedQuestion],
    run: KnownRun,
    item: FunctionCallOutput,
    principal: Principal,
) -> Step | None:
    """What this answer does; None if it was accepted before. Pure."""
    asked = next((one for one in questions if one.call_id == item.call_id), None)
    if asked is None:  # the call of a client's card, whose questions are answered each on its own
        raise question_not_found(item.call_id)
    with about(asked):
        return _plan_one(asked, questions, run, item, principal)


def _plan_one(
    asked: AskedQuestion,
    questions: Sequence[AskedQuestion],
    run: KnownRun,
    item: FunctionCallOutput,
    principal: Principal,
) -> Step | None:
    may_answer(
        roles=asked.question.roles,
        four_eyes=asked.question.four_eyes,
        requester=run.requester,
        principal=principal,
    )
    _refuse_closed(asked, run)
    answer = answers.read(asked.question, item, param="output")
    text = encoding.dumps(answer.resume_value(asked.question, principal.subject))
    stored = {one.call_id: one.answer for one in questions if one.answer is not None}
    values = {**stored, item.call_id: text}
    last = len(values) == len(questions)
    if asked.status == "pending":
        return Step(values, last)
    if asked.answer != text or asked.reviewer != principal.subject:
        refusal = already_answered(asked, run, "; that answer stands")
        raise InterruptAlreadyAnswered(refusal.message, param="output")
    return Step(values, last, again=True) if run.status is RunStatus.STALLED else None


def _refuse_closed(asked: AskedQuestion, run: KnownRun) -> None:
    try:
        refuse_closed([asked], run)
    except InvalidRequest as refusal:
        refusal.param = "call_id"  # this request has no `input`
        raise


async def _asked(conn: Connection, tenant: str, item: FunctionCallOutput) -> Previous | None:
    """The batch that the question belongs to; its run is locked. As a client would name it that
    sends nothing but this output."""
    request = CreateResponse(model="", raw={}, input=(item,))
    try:
        return await find_previous(conn, tenant, request, (item.call_id,))
    except PreviousResponseNotFound:
        return None
    except InterruptClosed as refusal:
        refusal.param = "call_id"  # this request has no `input`
        raise


async def _keep(
    conn: Connection, principal: Principal, previous: Previous, call_id: str, answer: str
) -> None:
    asked = next(one for one in previous.questions if one.call_id == call_id)
    kept = await send(
        conn,
        "keep_answer",
        tenant=principal.tenant,
        call_id=call_id,
        answer=answer,
        reviewer=principal.subject,
        details=answered(asked.question, answer, principal.roles),
    )
    if await kept.fetchone() is None:
        raise ResponseInProgress(f"The question {call_id} is being answered.")


async def _resume(
    coordinator: Coordinator,
    conn: Connection,
    principal: Principal,
    previous: Previous,
    run: KnownRun,
    step: Step,
    call_id: str,
) -> Execution:
    """The last answer, in the caller's transaction: stored before the graph is resumed."""
    asking = await fetch_one(conn, "response", tenant=principal.tenant, id=previous.response_id)
    execution = await _execution(coordinator, conn, principal, previous, run, step, asking)
    cursor = await send(
        conn,
        "accept_answers",
        id=execution.response_id,
        tenant=principal.tenant,
        run_id=run.id,
        model=previous.model,
        previous_id=previous.response_id,
        stored=execution.stored,
        input=encoding.dumps(_told(previous.questions, step.values, execution.response_id)),
        body=execution.writer.resource().decode(),
        owner=coordinator.leases.owner,
        ttl=coordinator.leases.ttl,
        reviewer=principal.subject,
        **accepted(previous.questions, step.values, [call_id], principal, again=step.again),
    )
    both = {"tenant": principal.tenant, "id": execution.response_id}
    await send(conn, "carry_answers", asking=previous.response_id, **both)
    await send(conn, "follow", asking=previous.response_id, **both)
    row = await cursor.fetchone()
    if row is None or row["token"] is None or row["consumed"] != 1:
        raise ResponseInProgress(f"Response '{previous.response_id}' is being resumed.")
    execution.lease = Lease(run.id, row["token"])
    execution.conversation = row["conversation_id"]
    return execution


async def _execution(
    coordinator: Coordinator,
    conn: Connection,
    principal: Principal,
    previous: Previous,
    run: KnownRun,
    step: Step,
    asking: Row | None,
) -> Execution:
    served = coordinator.graphs.get(previous.model)
    if served is None or asking is None:
        raise ModelNotFound(previous.model)
    if coordinator.closing:
        raise Unavailable("This process is shutting down.")
    interrupts = {one.call_id: one.interrupt_id for one in previous.questions}
    values = {interrupts[call]: encoding.loads(text) for call, text in step.values.items()}
    memory = await load_checkpoints(conn, run.id)
    response = _following(encoding.loads(asking["body"]))
    current = CurrentRun(
        run_id=run.id,
        response_id=response.id,
        tenant=principal.tenant,
        requester=run.requester,
        settings=settings_from(run.settings),
    )
    writer = Writer(response, followed=False)
    return Execution(
        served=served,
        current=current,
        outset=Outset(memory=memory, answers=values, again=step.again),
        writer=writer,
        line=Frameline(writer, wanted=False),
        stored=asking["stored"],
        only_calls=False,
        lease_id=run.id,
    )


def _following(asking: Mapping[str, Json]) -> Response:
    """A new response that echoes the request of the one that asked."""
    response = Response.of_resource({**asking, "previous_response_id": asking["id"]})
    return replace(
        response, id=new_id("resp"), created_at=int(time.time()), background=False, ids=()
    )


def _told(
    questions: Sequence[AskedQuestion], values: Mapping[str, str], response_id: str
) -> list[dict[str, Json]]:
    """The accepted answers as items: of the history, and of what the asking response shows. One a
    call, so the answers to a card's questions are one list."""
    by_call: dict[str, list[str]] = {}
    for one in questions:
        by_call.setdefault(one.told_as, []).append(_answer_text(one, values[one.call_id]))
    return [
        {
            "id": input_item_id("fco", response_id, number),
            "type": "function_call_output",
            "status": "completed",
            "call_id": call_id,
            "output": texts[0] if len(texts) == 1 else encoding.dumps(texts),
        }
        for number, (call_id, texts) in enumerate(by_call.items())
    ]


def _answer_text(asked: AskedQuestion, text: str) -> str:
    """Who gave an answer is for the graph and the record."""
    value = encoding.loads(text)
    if asked.question.form == "fermata":
        text = encoding.dumps({key: value[key] for key in value if key != "reviewer"})
    return value if isinstance(value, str) else text
