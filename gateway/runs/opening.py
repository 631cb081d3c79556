"""The opening of a response: what is known, the plan, the answers consumed, the rows.

One transaction, in which every refusal happens, before the first byte; what comes of it is
launched by the coordinator, and told by a `Reply`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from gateway.errors import ModelNotFound, NotFound, Unavailable
from gateway.human.run import settings_of
from gateway.runs import conversations
from gateway.runs.accepting import accept
from gateway.runs.beginning import forgotten_unless_begun, new_execution, new_row, write_row
from gateway.runs.cards import LeftOpen, last_card, unfold
from gateway.runs.conversation import conversation, without_echoes
from gateway.runs.coordinator import Coordinator
from gateway.runs.execution import Execution
from gateway.runs.following import FollowedReply, rejoin
from gateway.runs.graph import ServedGraph
from gateway.runs.idempotency import Key, KeyTaken, known_response, remember
from gateway.runs.lookup import find_previous, read_history, refuse_unresolved, resolve_references
from gateway.runs.meter import METER
from gateway.runs.outset import Outset
from gateway.runs.principal import Principal
from gateway.runs.queueing import queue_first
from gateway.runs.refusals import on_record, strangers
from gateway.runs.replies import LiveReply, RepeatedReply, Reply
from gateway.runs.run import Plan, Previous, Repeat, Resume, Start, answer_call_ids, plan
from gateway.runs.saying import card_again, say
from gateway.store.db import Connection, Database
from gateway.store.responses import open_in_conversation
from gateway.wire.history import Item, ItemReference
from gateway.wire.ids import new_id
from gateway.wire.items import Response
from gateway.wire.request import CreateResponse


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
        raise _gone()
    return again


async def _again(
    coordinator: Coordinator, request: CreateResponse, principal: Principal, key: Key
) -> Reply | None:
    async with coordinator.database.connection() as conn:
        response_id = await known_response(conn, principal.tenant, key)
    if response_id is None:
        return None
    reply = await _repeated(coordinator, request, principal, response_id)
    if isinstance(reply, RepeatedReply):
        reply.outcome = partial(_outcome_of_key, coordinator, principal.tenant, response_id)
    return reply


async def _repeated(
    coordinator: Coordinator, request: CreateResponse, principal: Principal, response_id: str
) -> Reply:
    if request.background:
        return await rejoin(coordinator, response_id, principal, None)
    response = Response.of_request(request, response_id, int(time.time()))
    outcome = partial(coordinator.outcome_of, principal.tenant, response_id)
    return RepeatedReply(response_id, response, outcome)


async def _outcome_of_key(coordinator: Coordinator, tenant: str, response_id: str) -> bytes:
    """What the repeat of a key waits for. The response may go meanwhile: it never began after all,
    or its owner deleted it; then the key is free."""
    try:
        return await coordinator.outcome_of(tenant, response_id)
    except NotFound:
        raise _gone() from None


def _gone() -> Unavailable:
    return Unavailable("The first request with this Idempotency-Key is gone; send it again.")


async def _create(
    coordinator: Coordinator, request: CreateResponse, principal: Principal, key: Key | None
) -> Reply:
    served = coordinator.graphs[request.model]
    if any(isinstance(item, ItemReference) for item in request.input):
        request = await _resolved(coordinator.database, request, principal)
    call_ids = answer_call_ids(request)
    if not request.continues and not call_ids:
        told = last_card(request.input) is not None
        again = await card_again(coordinator, request, principal, key) if told else None
        return again or await _begin(coordinator, request, principal, served, (), key)
    named = (request.previous_response_id, request.conversation, *call_ids)
    execution: Execution | None = None
    with forgotten_unless_begun(coordinator, lambda: execution):
        async with (
            on_record(coordinator.database, principal, *filter(None, named)),
            coordinator.database.pipeline() as (conn, _),
        ):
            if request.conversation is not None:
                await conversations.hold(conn, principal, request.conversation)
            previous = await find_previous(conn, principal.tenant, request, call_ids)
            step = _step(request, previous, principal)
            execution = await _open(
                coordinator, conn, request, principal, served, previous, step, key
            )
            if isinstance(step, Start) and execution is None:
                history = await read_history(conn, principal.tenant, step.previous_id)
    _count(step)
    if isinstance(step, LeftOpen):
        return await say(coordinator, request, principal, step.message, key)
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
        execution = await accept(
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


async def _begin(
    coordinator: Coordinator,
    request: CreateResponse,
    principal: Principal,
    served: ServedGraph,
    history: tuple[Item, ...],
    key: Key | None,
) -> Reply:
    request, execution = _first(coordinator, request, principal, served, history)
    row = partial(new_row, request, execution, request.previous_response_id)
    if not request.background and not request.stream and key is None:
        # Who waits for JSON learns the id of its response at the end: one row, written then, does
        # for a run that neither asks nor acts nor takes long.
        await coordinator.database.confirm()
        execution.unopened = row
        return _launched(coordinator, execution)
    execution.keyed = key is not None
    opened = row(execution.writer.resource())
    if not request.background:
        with forgotten_unless_begun(coordinator, lambda: execution):
            await write_row(coordinator, opened, key)
    else:
        async with coordinator.database.pipeline() as (conn, _):
            await queue_first(conn, request, execution, opened)
            if key is not None:
                await remember(conn, opened.tenant, key, opened.id)
    return _launched(coordinator, execution)


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
    row = new_row(request, execution, None, execution.writer.resource())
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
    execution = new_execution(
        coordinator, request, principal, served, new_id("run"), settings, outset
    )
    return request, execution


def _step(
    request: CreateResponse, previous: Previous | None, principal: Principal
) -> Plan | LeftOpen:
    unfolded = unfold(request, previous)
    return unfolded if isinstance(unfolded, LeftOpen) else plan(unfolded, previous, principal)
