"""A response that no graph gives: a sentence, or a call that is told again, said at once."""

from __future__ import annotations

import time
from dataclasses import replace

from gateway.errors import InterruptClosed
from gateway.human.run import settings_of
from gateway.runs.beginning import forgotten_unless_begun, new_execution, new_row, write_row
from gateway.runs.cards import last_card
from gateway.runs.coordinator import Coordinator
from gateway.runs.idempotency import Key
from gateway.runs.lookup import find_previous
from gateway.runs.outset import Outset
from gateway.runs.principal import Principal
from gateway.runs.replies import Reply, SaidReply
from gateway.store.db import execute
from gateway.store.responses import Ending
from gateway.wire.dialects import in_dialect
from gateway.wire.ids import new_id
from gateway.wire.items import Response
from gateway.wire.request import CreateResponse
from gateway.wire.writer import Writer


def said(request: CreateResponse, text: str) -> SaidReply:
    """`text` as the whole answer to `request`: no run, no row, and so never stored."""
    kept = replace(request, store=False, background=False)
    response = Response.of_request(kept, new_id("resp"), int(time.time()))
    writer = Writer(response)
    frames = writer.begin()
    frames += [*writer.text("said", text), *writer.close("said")]
    frames += writer.complete(completed_at=int(time.time()))
    return SaidReply(response.id, frames, writer.resource())


async def card_again(
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
    return await say(coordinator, request, principal, (told_as, call.name, call.arguments), key)


async def say(
    coordinator: Coordinator,
    request: CreateResponse,
    principal: Principal,
    what: str | tuple[str, str, str],
    key: Key | None,
) -> Reply:
    """A response that needs no graph, stored as the request wants it: a sentence, or a call (id,
    name, arguments) that is told again."""
    served = coordinator.graphs[request.model]
    execution = new_execution(
        coordinator, request, principal, served, new_id("run"), settings_of(request), Outset()
    )
    writer = execution.writer
    frames = writer.begin()
    if isinstance(what, str):
        frames += [*writer.text("said", what), *writer.close("said")]
    else:
        frames += writer.function_call(*what)
    frames += writer.complete(completed_at=int(time.time()))
    if request.store:
        body = writer.resource()
        row = new_row(request, execution, request.previous_response_id, body)
        ending = Ending(row.id, "completed", row.body, coordinator.keep.response)
        if key is None:
            await coordinator.rows.arrivals.add((row, ending))
        else:
            with forgotten_unless_begun(coordinator, lambda: execution):
                await write_row(coordinator, row, key)
                await coordinator.rows.completions.add(ending)
    return SaidReply(execution.response_id, frames, writer.resource())
