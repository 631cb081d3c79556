"""Answers taken for good, in the transaction of the request that brings them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.errors import ResponseInProgress
from gateway.human.run import settings_from
from gateway.runs.audited import accepted
from gateway.runs.beginning import new_execution, new_row
from gateway.runs.coordinator import Coordinator
from gateway.runs.execution import Execution
from gateway.runs.graph import ServedGraph
from gateway.runs.lease import Lease
from gateway.runs.outset import Outset
from gateway.runs.principal import Principal
from gateway.runs.queueing import queue_resumed
from gateway.runs.run import KnownRun, Previous, Resume
from gateway.store.checkpoint_rows import loaded, send_load
from gateway.store.db import Connection, Row, send
from gateway.store.responses import NewResponse
from gateway.wire import encoding
from gateway.wire.history import FunctionCall, Item, Message
from gateway.wire.request import CreateResponse


async def accept(
    coordinator: Coordinator,
    conn: Connection,
    request: CreateResponse,
    principal: Principal,
    served: ServedGraph,
    previous: Previous,
    run: KnownRun,
    step: Resume,
) -> Execution:
    """Take the answers for good, in the caller's transaction: stored before the graph is resumed.

    Raises `ResponseInProgress` if somebody else's answers were faster.
    """
    checkpoints = await send_load(conn, run.id)  # read below: one round trip with what follows
    by_call = {question.call_id: question.interrupt_id for question in previous.questions}
    values = {by_call[call]: encoding.loads(text) for call, text in step.answers.items()}
    outset = Outset(
        answers=values,
        again=step.again,
        live=request.stream,
        progress=request.extensions,
    )
    execution = new_execution(
        coordinator, request, principal, served, run.id, settings_from(run.settings), outset
    )
    execution.current = replace(execution.current, requester=run.requester)
    continues = _continues(request, previous)
    if continues is not None:
        request = replace(request, input=_without_calls(request.input, previous))
    row = new_row(request, execution, continues, execution.writer.resource())
    taken = await _record(coordinator, conn, principal, step, row, previous)
    if taken["token"] is None or taken["consumed"] != len(step.accepts):
        raise ResponseInProgress(f"Response '{previous.response_id}' is being resumed.")
    outset.memory = await loaded(checkpoints, run.id)
    execution.lease = Lease(run.id, taken["token"])
    execution.lease_id = run.id
    execution.conversation = taken["conversation_id"]
    if request.background:
        await queue_resumed(conn, request, execution)
    return execution


async def _record(
    coordinator: Coordinator,
    conn: Connection,
    principal: Principal,
    step: Resume,
    row: NewResponse,
    previous: Previous,
) -> Row:
    cursor = await send(
        conn,
        "accept_answers",
        id=row.id,
        tenant=row.tenant,
        run_id=row.run_id,
        model=row.model,
        previous_id=row.previous_id,
        stored=row.stored,
        input=row.input,
        body=row.body,
        owner=coordinator.leases.owner,
        ttl=coordinator.leases.ttl,
        reviewer=principal.subject,
        **accepted(previous.questions, step.answers, step.accepts, principal, again=step.again),
    )
    if len(step.accepts) < len(step.answers):
        asking = previous.response_id
        await send(conn, "carry_answers", tenant=row.tenant, id=row.id, asking=asking)
    taken = await cursor.fetchone()
    assert taken is not None  # a SELECT of scalars always has its row
    return taken


def _continues(request: CreateResponse, previous: Previous) -> str | None:
    """What the answering response follows. A client that resent its whole history has its context
    in its own input; to link it to the asking response as well would hold everything twice."""
    resent = any(isinstance(item, Message) for item in request.input)
    return None if resent and not request.continues else previous.response_id


def _without_calls(items: Sequence[Item], previous: Previous) -> tuple[Item, ...]:
    """An echoed question stands in the output of the response that asked it already."""
    asked = {one.told_as for one in previous.questions}
    return tuple(
        item for item in items if not (isinstance(item, FunctionCall) and item.call_id in asked)
    )
