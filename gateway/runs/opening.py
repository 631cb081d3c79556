"""The opening of a response: what is known, the plan, the answers consumed, the rows.

One transaction, in which every refusal happens, before the first byte; what comes of it is
launched by the coordinator, and told by a `Reply`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial

from gateway.errors import InterruptClosed, ModelNotFound, ResponseInProgress, Unavailable
from gateway.human.run import (
    CurrentRun,
    RunSettings,
    settings_from,
    settings_of,
)
from gateway.runs import conversations
from gateway.runs.audited import accepted
from gateway.runs.cards import LeftOpen, last_card, unfold
from gateway.runs.conversation import conversation, without_echoes
from gateway.runs.coordinator import Coordinator
from gateway.runs.drive import Outset
from gateway.runs.execution import Execution, Frameline
from gateway.runs.following import FollowedReply, rejoin
from gateway.runs.graph import ServedGraph
from gateway.runs.idempotency import Key, KeyTaken, known_response, remember
from gateway.runs.lease import Lease
from gateway.runs.lookup import (
    find_previous,
    read_history,
    refuse_unresolved,
    resolve_references,
)
from gateway.runs.meter import METER
from gateway.runs.principal import Principal
from gateway.runs.queueing import queue_first, queue_resumed
from gateway.runs.refusals import on_record, strangers
from gateway.runs.replies import LiveReply, RepeatedReply, Reply, SaidReply
from gateway.runs.run import (
    KnownRun,
    Plan,
    Previous,
    Repeat,
    Resume,
    Start,
    answer_call_ids,
    plan,
)
from gateway.store.checkpoints import load_checkpoints
from gateway.store.db import Connection, Database, Row, execute, send
from gateway.store.responses import Ending, NewResponse, open_first, open_in_conversation
from gateway.wire import encoding
from gateway.wire.dialects import in_dialect
from gateway.wire.history import FunctionCall, Item, ItemReference, Message
from gateway.wire.ids import new_id
from gateway.wire.input_items import stored_items
from gateway.wire.items import Response
from gateway.wire.request import CreateResponse
from gateway.wire.writer import Writer


async def create(
    coordinator: Coordinator,
    request: CreateResponse,
    principal: Principal,
    key: Key | None = None,
) -> Reply:
    """Do what the request asks for. Raises every refusal; what it returns will be told.

    With a `key` that was used for the same request before, it is that one's response again.
    """
    if request.model not in coordinator.graphs:
        raise ModelNotFound(request.model)
    if coordinator.closing:
        raise Unavailable("This process is shutting down.")
    if key is None:
        return await _create(coordinator, request, principal, None)
    try:
        again = await _again(coordinator, request, principal, key)
        return again or await _create(coordinator, request, principal, key)
    except KeyTaken:
        again = await _again(coordinator, request, principal, key)
    if again is None:
        raise ResponseInProgress("The response of this Idempotency-Key was deleted just now.")
    return again


async def _again(
    coordinator: Coordinator, request: CreateResponse, principal: Principal, key: Key
) -> Reply | None:
    async with coordinator.database.connection() as conn:
        response_id = await known_response(conn, principal.tenant, key)
    if response_id is None:
        return None
    return await _repeated(coordinator, request, principal, response_id)


async def _repeated(
    coordinator: Coordinator, request: CreateResponse, principal: Principal, response_id: str
) -> Reply:
    if request.background:
        return await rejoin(coordinator, response_id, principal, None)
    return RepeatedReply(
        response_id, partial(coordinator.outcome_of, principal.tenant, response_id)
    )


async def _create(
    coordinator: Coordinator, request: CreateResponse, principal: Principal, key: Key | None
) -> Reply:
    served = coordinator.graphs[request.model]
    if any(isinstance(item, ItemReference) for item in request.input):
        request = await _resolved(coordinator.database, request, principal)
    call_ids = answer_call_ids(request)
    if not request.continues and not call_ids:
        told = last_card(request.input) is not None
        again = await _card_again(coordinator, request, principal, key) if told else None
        return again or await _begin(coordinator, request, principal, served, (), key)
    named = (request.previous_response_id, request.conversation, *call_ids)
    async with (
        on_record(coordinator.database, principal, *filter(None, named)),
        coordinator.database.pipeline() as (conn, _),
    ):
        if request.conversation is not None:
            await conversations.hold(conn, principal, request.conversation)
        previous = await find_previous(conn, principal.tenant, request, call_ids)
        step = _step(request, previous, principal)
        execution = await _open(coordinator, conn, request, principal, served, previous, step, key)
        if isinstance(step, Start) and execution is None:
            history = await read_history(conn, principal.tenant, step.previous_id)
    _count(step)
    if isinstance(step, LeftOpen):
        return await _say(coordinator, request, principal, step.message, key)
    if isinstance(step, Repeat):
        return await _repeated(coordinator, request, principal, step.response_id)
    if execution is None:
        return await _begin(coordinator, request, principal, served, history, key)
    return _launched(coordinator, execution)


def _launched(coordinator: Coordinator, execution: Execution) -> Reply:
    """Committed: what was opened moves, here, or wherever there is room for it."""
    if not execution.writer.response.background:
        coordinator.launch(execution)
        return LiveReply(execution)
    coordinator.queued.set()
    return FollowedReply(
        coordinator,
        execution.current.tenant,
        execution.response_id,
        accepted=execution.writer.resource(),
    )


def _count(step: Plan | LeftOpen) -> None:
    """Committed: the answers are taken."""
    if isinstance(step, Resume):
        METER.answers["accepted"] += len(step.accepts)
    elif isinstance(step, Repeat):
        METER.answers["repeated"] += 1


async def _resolved(
    database: Database, request: CreateResponse, principal: Principal
) -> CreateResponse:
    async with database.connection() as conn:
        items = await resolve_references(conn, principal.tenant, request.input)
        unknown = [item.id for item in items if isinstance(item, ItemReference)]
        await strangers(conn, principal, unknown)
    return replace(request, input=items)


async def _open(
    coordinator: Coordinator,
    conn: Connection,
    request: CreateResponse,
    principal: Principal,
    served: ServedGraph,
    previous: Previous | None,
    step: Plan | LeftOpen,
    key: Key | None,
) -> Execution | None:
    """What is opened in the transaction that read what is known: a run that goes on, a turn of a
    conversation."""
    if previous is None:  # calls that are not known here are the client's own, or another tenant's
        await strangers(conn, principal, answer_call_ids(request))
    execution = None
    if isinstance(step, Resume) and previous is not None and previous.run is not None:
        execution = await _accept(
            coordinator, conn, request, principal, served, previous, previous.run, step
        )
    elif isinstance(step, Start) and request.conversation is not None:
        execution = await _open_turn(
            coordinator, conn, request, principal, served, request.conversation
        )
    if execution is not None and key is not None:
        execution.keyed = True
        await remember(conn, principal.tenant, key, execution.response_id)
    return execution


async def _card_again(
    coordinator: Coordinator, request: CreateResponse, principal: Principal, key: Key | None
) -> Reply | None:
    """The card of the client's history that came back without a decision, told once more; None
    if nothing is open any more."""
    card = last_card(request.input)
    async with coordinator.database.transaction() as conn:
        named = (card,) if card is not None else ()
        try:
            previous = await find_previous(conn, principal.tenant, request, named)
        except InterruptClosed:
            return None
        if previous is None or previous.run is None:
            return None
        open_ones = [one for one in previous.questions if one.status == "pending"]
        call = in_dialect(request.tools, [(one.call_id, one.question) for one in open_ones])
        if call is None or previous.run.expired:
            return None
        told_as = new_id("call")
        await execute(
            conn,
            "tell_card_again",
            tenant=principal.tenant,
            response_id=previous.response_id,
            card=told_as,
        )
    return await _say(coordinator, request, principal, (told_as, call.name, call.arguments), key)


async def _say(
    coordinator: Coordinator,
    request: CreateResponse,
    principal: Principal,
    said: str | tuple[str, str, str],
    key: Key | None,
) -> Reply:
    """A response that needs no graph: a sentence, or a call that is told again."""
    served = coordinator.graphs[request.model]
    execution = _execution(
        coordinator, request, principal, served, new_id("run"), settings_of(request), Outset()
    )
    writer = execution.writer
    frames = writer.begin()
    if isinstance(said, str):
        frames += [*writer.text("said", said), *writer.close("said")]
    else:
        frames += writer.function_call(*said)
    frames += writer.complete(completed_at=int(time.time()))
    if request.store:
        body = writer.resource()
        row = _row(request, execution, request.previous_response_id, body)
        ending = Ending(row.id, "completed", row.body, coordinator.keep.response)
        if key is None:
            await coordinator.arrivals.add((row, ending))
        else:
            await _write_row(coordinator, row, key)
            await coordinator.completions.add(ending)
    return SaidReply(execution.response_id, frames, writer.resource())


async def _begin(
    coordinator: Coordinator,
    request: CreateResponse,
    principal: Principal,
    served: ServedGraph,
    history: tuple[Item, ...],
    key: Key | None,
) -> Reply:
    request, execution = _first(coordinator, request, principal, served, history)
    row = partial(_row, request, execution, request.previous_response_id)
    if not request.background and not request.stream and key is None:
        # Who waits for JSON learns the id of its response at the end: one row, written then, does
        # for a run that neither asks nor acts nor takes long.
        await coordinator.database.confirm()
        execution.unopened = row
        return _launched(coordinator, execution)
    execution.keyed = key is not None
    opened = row(execution.writer.resource())
    if not request.background:
        await _write_row(coordinator, opened, key)
    else:
        async with coordinator.database.pipeline() as (conn, _):
            await queue_first(conn, request, execution, opened)
            if key is not None:
                await remember(conn, opened.tenant, key, opened.id)
    return _launched(coordinator, execution)


async def _write_row(coordinator: Coordinator, row: NewResponse, key: Key | None) -> None:
    """Without a key together with others' (`store.batch`)."""
    if key is None:
        await coordinator.openings.add(row)
        return
    async with coordinator.database.pipeline() as (conn, _):
        await open_first(conn, [row], coordinator.leases.owner)
        await remember(conn, row.tenant, key, row.id)


async def _open_turn(
    coordinator: Coordinator,
    conn: Connection,
    request: CreateResponse,
    principal: Principal,
    served: ServedGraph,
    conversation_id: str,
) -> Execution:
    """Start with what a conversation holds, in the caller's transaction, which holds its row."""
    await conversations.refuse_busy(conn, principal, conversation_id)
    history = await conversations.read(conn, principal, conversation_id)
    request, execution = _first(coordinator, request, principal, served, history)
    execution.conversation = conversation_id
    row = _row(request, execution, None, execution.writer.resource())
    if request.background:
        await queue_first(conn, request, execution, row)
    else:
        await open_in_conversation(conn, row, execution.lease_id, conversation_id)
    return execution


def _first(
    coordinator: Coordinator,
    request: CreateResponse,
    principal: Principal,
    served: ServedGraph,
    history: tuple[Item, ...],
) -> tuple[CreateResponse, Execution]:
    """A new run on this history; the request has what it adds to that and nothing else."""
    settings = settings_of(request)
    if served.settings is not None:
        served.settings.parse(request.metadata)
    if history:
        request = replace(request, input=without_echoes(history, request.input))
    refuse_unresolved(request.input)
    messages = conversation(history, request.input, settings.instructions)
    outset = Outset(messages=messages, live=request.stream, progress=request.extensions)
    execution = _execution(coordinator, request, principal, served, new_id("run"), settings, outset)
    return request, execution


async def _accept(
    coordinator: Coordinator,
    conn: Connection,
    request: CreateResponse,
    principal: Principal,
    served: ServedGraph,
    previous: Previous,
    run: KnownRun,
    step: Resume,
) -> Execution:
    """Take the answers for good, in the caller's transaction: stored before the graph is
    resumed."""
    memory = await load_checkpoints(conn, run.id)
    by_call = {question.call_id: question.interrupt_id for question in previous.questions}
    values = {by_call[call]: encoding.loads(text) for call, text in step.answers.items()}
    outset = Outset(
        memory=memory,
        answers=values,
        again=step.again,
        live=request.stream,
        progress=request.extensions,
    )
    execution = _execution(
        coordinator, request, principal, served, run.id, settings_from(run.settings), outset
    )
    execution.current = replace(execution.current, requester=run.requester)
    continues = _continues(request, previous)
    if continues is not None:
        request = replace(request, input=_without_calls(request.input, previous))
    row = _row(request, execution, continues, execution.writer.resource())
    taken = await _record(coordinator, conn, principal, step, row, previous)
    if taken["token"] is None or taken["consumed"] != len(step.accepts):
        raise ResponseInProgress(f"Response '{previous.response_id}' is being resumed.")
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


def _execution(
    coordinator: Coordinator,
    request: CreateResponse,
    principal: Principal,
    served: ServedGraph,
    run_id: str,
    settings: RunSettings,
    outset: Outset,
) -> Execution:
    response = Response.of_request(request, new_id("resp"), int(time.time()))
    current = CurrentRun(
        run_id=run_id,
        response_id=response.id,
        tenant=principal.tenant,
        requester=principal.subject,
        settings=settings,
    )
    return Execution(
        served=served,
        current=current,
        outset=outset,
        writer=Writer(response, extensions=request.extensions),
        line=Frameline(wanted=request.stream),
        stored=request.store,
        only_calls=not request.stream,
        lease_id=coordinator.leases.owner,
        tools=request.tools,
    )


def _step(
    request: CreateResponse, previous: Previous | None, principal: Principal
) -> Plan | LeftOpen:
    unfolded = unfold(request, previous)
    return unfolded if isinstance(unfolded, LeftOpen) else plan(unfolded, previous, principal)


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


def _row(
    request: CreateResponse, execution: Execution, previous_id: str | None, body: bytes
) -> NewResponse:
    return NewResponse(
        id=execution.response_id,
        tenant=execution.current.tenant,
        run_id=execution.current.run_id,
        model=execution.served.name,
        previous_id=previous_id,
        stored=request.store,
        input=encoding.dumps(stored_items(request.input, execution.response_id)),
        body=body.decode(),
        age=timedelta(seconds=time.monotonic() - execution.begun),
    )
