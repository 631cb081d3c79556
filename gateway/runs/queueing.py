"""A background response is accepted: on record, with its first events, before its client is
answered. The caller owns the transaction; `runs.pickup` is the other end of the queue."""

from __future__ import annotations

from gateway.human.run import settings_text
from gateway.runs.execution import Execution
from gateway.store import audit
from gateway.store.db import Connection, send
from gateway.store.responses import NewResponse
from gateway.wire.request import CreateResponse


async def queue_first(
    conn: Connection, request: CreateResponse, execution: Execution, row: NewResponse
) -> None:
    """Accepted for good: whoever is free starts it, and knows it from here alone."""
    current = execution.current
    frames = execution.writer.queue()
    await send(
        conn,
        "queue_first",
        id=row.id,
        tenant=row.tenant,
        run_id=row.run_id,
        requester=current.requester,
        model=row.model,
        settings=settings_text(current.settings),
        previous_id=row.previous_id,
        conversation_id=execution.conversation,
        streamed=request.stream,
        input=row.input,
        body=row.body,
        last=len(frames) - 1,
        frames=b"".join(frames),
    )
    await audit.record(
        conn,
        tenant=row.tenant,
        run_id=row.run_id,
        event="queued",
        response_id=row.id,
        actor=current.requester,
        details={},
    )


async def queue_resumed(conn: Connection, request: CreateResponse, execution: Execution) -> None:
    """The answers are taken; whoever is free resumes the run."""
    assert execution.lease is not None
    frames = execution.writer.queue()
    await send(
        conn,
        "queue_resumed",
        tenant=execution.current.tenant,
        id=execution.response_id,
        run_id=execution.lease.id,
        token=execution.lease.token,
        streamed=request.stream,
        last=len(frames) - 1,
        frames=b"".join(frames),
    )
