"""What a response begins with: its execution and its row."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from gateway.human.run import CurrentRun, RunSettings
from gateway.runs.coordinator import Coordinator
from gateway.runs.execution import Execution, Frameline
from gateway.runs.graph import ServedGraph
from gateway.runs.idempotency import Key, remember
from gateway.runs.outset import Outset
from gateway.runs.principal import Principal
from gateway.store.responses import NewResponse, open_first
from gateway.wire import encoding
from gateway.wire.ids import new_id
from gateway.wire.input_items import stored_items
from gateway.wire.items import Response
from gateway.wire.request import CreateResponse
from gateway.wire.writer import Writer


def new_execution(
    coordinator: Coordinator,
    request: CreateResponse,
    principal: Principal,
    served: ServedGraph,
    run_id: str,
    settings: RunSettings,
    outset: Outset,
) -> Execution:
    """The execution of a new response of this run, which nothing holds or has written yet."""
    response = Response.of_request(request, new_id("resp"), int(time.time()))
    current = CurrentRun(
        run_id=run_id,
        response_id=response.id,
        tenant=principal.tenant,
        requester=principal.subject,
        settings=settings,
    )
    followed = request.stream or request.background
    writer = Writer(response, extensions=request.extensions, followed=followed)
    return Execution(
        served=served,
        current=current,
        outset=outset,
        writer=writer,
        line=Frameline(writer, wanted=request.stream),
        stored=request.store,
        only_calls=not request.stream,
        lease_id=coordinator.leases.owner,
        tools=request.tools,
    )


def new_row(
    request: CreateResponse, execution: Execution, previous_id: str | None, body: bytes
) -> NewResponse:
    """The row of the response, with `body`, its resource, as it is now."""
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


@contextmanager
def forgotten_unless_begun(
    coordinator: Coordinator, opened: Callable[[], Execution | None]
) -> Iterator[None]:
    """What the block opens may be committed although nobody hears of it: the database goes between
    the two, or the request is cancelled. This process would keep such a row alive, and move it
    never: whoever repeats the key would wait, the conversation be locked, for as long as it lives.
    Nothing was run, nobody knows its id: the row goes, and a repeat begins anew. A run that goes
    on needs none of this: its lease runs out."""
    try:
        yield
    except BaseException:
        execution = opened()
        if execution is not None and execution.lease is None:
            coordinator.unbegun.add(execution.response_id)
        raise


async def write_row(coordinator: Coordinator, row: NewResponse, key: Key | None) -> None:
    """Store it on its own with its key; without one, together with others' (`store.batch`)."""
    if key is None:
        await coordinator.rows.openings.add(row)
        return
    async with coordinator.database.pipeline() as (conn, _):
        await open_first(conn, [row], coordinator.leases.owner)
        await remember(conn, row.tenant, key, row.id)
