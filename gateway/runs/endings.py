"""How a run leaves this process: one transaction, then the telling.

Each ending writes status, output, questions and checkpoints together. A first request's
transaction is fenced by its response row, a resumed run's by its lease; no row back means that
somebody else ended it, and nothing of ours is written.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from gateway.errors import FermataError, LeaseLost, RunFailed
from gateway.human.run import settings_text
from gateway.runs import audited
from gateway.runs.audited import Recorded
from gateway.runs.events import Completed, Failed, Outcome, Paused
from gateway.runs.execution import Execution
from gateway.runs.lease import Lease
from gateway.runs.questions import question_of
from gateway.runs.run import RunStatus
from gateway.store import conversations
from gateway.store.checkpoint_rows import checkpoint_columns, save_checkpoints
from gateway.store.db import Connection, Cursor, Database, send
from gateway.store.responses import (
    Asked,
    Ending,
    NewResponse,
    ask,
    asked_columns,
    finish_first,
    late_columns,
    open_late,
)
from gateway.wire import encoding
from gateway.wire.dialects import in_dialect, own_arguments
from gateway.wire.ids import new_id
from gateway.wire.questions import Question
from gateway.wire.writer import Frames, Writer

REPLAY = timedelta(hours=24)
"""How long the outcome of an answer is kept for a repeat when the client said `store: false`."""


@dataclass(frozen=True, slots=True)
class Keep:
    """How long things stay: a wait until it expires, a response and the record of a settled effect
    until they are deleted (None: for ever), the events of a background response after its end."""

    wait: timedelta
    response: timedelta
    effects: timedelta | None = None
    events: timedelta = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Draft:
    """An ending, written but neither stored nor told."""

    status: RunStatus
    response_status: str
    writer: Writer
    frames: Frames
    body: bytes
    asked: tuple[Asked, ...] = ()
    recorded: Recorded | None = None
    """What the audit says of it; of a pause, its questions do."""
    reopens: bool = False
    """The answers that this response carried were none: their questions are open again."""


def draft(execution: Execution, outcome: Outcome, keep: Keep) -> Draft:
    """Write the ending that `outcome` calls for.

    Raises `RunFailed` if what the graph asks cannot be told as JSON; the message names the place.
    """
    writer = execution.writer_of_ending()
    if isinstance(outcome, Paused):
        return _draft_pause(execution, outcome, writer, keep)
    if isinstance(outcome, Failed):
        return _draft_failure(execution, outcome, writer)
    return _draft_completion(outcome, writer)


def draft_cancelled(execution: Execution) -> Draft:
    """Write the ending of a run that its client cancelled, or that went with it."""
    writer = execution.writer_of_ending()
    frames = writer.cancel()
    recorded = Recorded("cancelled", "{}", execution.cancelled_by)
    return Draft(
        RunStatus.CANCELLED, "cancelled", writer, frames, writer.resource(), recorded=recorded
    )


async def store_ending(database: Database, execution: Execution, end: Draft, keep: Keep) -> None:
    """Everything of the ending in one transaction, fenced.

    Raises `LeaseLost` if this process may no longer say how the run ends; nothing is written then.
    """
    if execution.conversation is not None:
        await _store_turn(database, execution, end, keep, execution.conversation)
        return
    if execution.journal is None and _is_one_statement(execution, end):
        async with database.connection() as conn:
            _held(await _send_ending(conn, execution, end, keep))
        return
    async with database.pipeline() as (conn, pipe):
        ended = await _send_ending(conn, execution, end, keep)
        await pipe.sync()
        _held(ended)


async def _store_turn(
    database: Database, execution: Execution, end: Draft, keep: Keep, conversation: str
) -> None:
    """The ending, and what the response adds to its conversation: a response that failed or was
    cancelled adds nothing, so that its request can be sent again.

    The conversation's row comes before the run's, as everywhere; else an answer that comes just now
    and this would wait for each other.
    """
    tenant = execution.current.tenant
    async with database.pipeline() as (conn, pipe):
        held = await conversations.lock(conn, tenant, conversation)
        if held is not None and end.response_status in ("completed", "incomplete"):
            output = encoding.loads(end.body)["output"]
            await conversations.append_turn(
                conn, tenant, conversation, execution.response_id, output
            )
        ended = await _send_ending(conn, execution, end, keep)
        await pipe.sync()
        _held(ended)


async def _send_ending(conn: Connection, execution: Execution, end: Draft, keep: Keep) -> Cursor:
    """All statements of the ending; the cursor says whether it was ours to write."""
    if execution.journal is not None:
        await execution.journal.append_last(conn, end.frames)
    if execution.lease is None and end.asked:
        return await _pause_first(conn, execution, end, keep)
    if execution.lease is None:
        if (late := _late_row(execution, end)) is not None:
            await open_late(conn, late, execution.lease_id)
        return await _complete_first(conn, execution, end, keep)
    ended = await _end_resumed(conn, execution, execution.lease, end, keep)
    current = execution.current
    if end.reopens:
        await send(conn, "reopen", run_id=current.run_id, id=current.response_id)
    if end.asked:
        await ask(conn, current.tenant, current.run_id, current.response_id, end.asked)
    if _stays(end):
        await save_checkpoints(conn, current.run_id, execution.outset.memory)
    return ended


def _is_one_statement(execution: Execution, end: Draft) -> bool:
    """Whether the ending is a single statement, and so its own transaction: one around it costs as
    much again. Holds without a journal and a conversation, which have statements of their own."""
    return bool(end.asked) if execution.lease is None else not _stays(end)


def _late_row(execution: Execution, end: Draft) -> NewResponse | None:
    """The row of a response that may have none so far."""
    if execution.unopened is None or execution.opened:
        return None
    return execution.unopened(end.body)


def _wait(end: Draft, keep: Keep) -> timedelta:
    """How long a run waits: until the first of its questions is over."""
    return min((asked.expires_in for asked in end.asked), default=keep.wait)


def _held(ended: Cursor) -> None:
    if ended.rowcount != 1:
        raise LeaseLost("Another process took this run over.")


def _stays(end: Draft) -> bool:
    """Whether the run needs its checkpoints on: it waits, or may be sent its answers again."""
    return end.status in (RunStatus.WAITING, RunStatus.STALLED)


def ending_of(execution: Execution, end: Draft, keep: Keep) -> Ending:
    """The row of the ended response."""
    period = keep.response if execution.stored else REPLAY
    if end.asked:
        # It is asked about while its run waits, and a while after that: 410, not unknown.
        period = max(period, keep.wait + REPLAY)
    return Ending(execution.response_id, end.response_status, end.body.decode(), period)


def _draft_pause(execution: Execution, outcome: Paused, writer: Writer, keep: Keep) -> Draft:
    default_name = execution.served.declared.interrupt_name
    now = datetime.now(UTC)
    batch = []
    for interrupt in outcome.interrupts:
        question = question_of(interrupt, default_name).asked_at(now)
        batch.append(_asked(interrupt.interrupt_id, question, default_name, keep))
    asked, frames = _tell(execution, writer, batch)
    frames += writer.complete(completed_at=int(time.time()), usage=outcome.usage)
    body = writer.resource(only_calls=execution.only_calls)
    return Draft(RunStatus.WAITING, "completed", writer, frames, body, tuple(asked))


def _asked(
    interrupt_id: str, question: Question, default_name: str, keep: Keep
) -> tuple[Asked, Question]:
    own = keep.wait if question.expires_in is None else timedelta(seconds=question.expires_in)
    asked = Asked(
        call_id=new_id("call"),
        interrupt_id=interrupt_id,
        name=question.name or default_name,
        question=question.stored(),
        audit="",
        expires_in=min(own, keep.wait),
        has_default=question.on_expiry is not None,
    )
    return asked, question


def _tell(
    execution: Execution, writer: Writer, batch: Sequence[tuple[Asked, Question]]
) -> tuple[list[Asked], Frames]:
    """The calls that ask: the client's own card if it has one that fits, else one each."""
    card = None
    if not writer.has_calls:
        card = in_dialect(execution.tools, [(asked.call_id, question) for asked, question in batch])
    if card is not None:
        told_as = new_id("call")
        frames = writer.function_call(told_as, card.name, card.arguments)
        return [_recorded(asked, question, told_as) for asked, question in batch], frames
    frames = []
    for asked, question in batch:
        arguments = own_arguments(execution.tools, asked.name, question)
        frames += writer.function_call(asked.call_id, asked.name, arguments)
    return [_recorded(asked, question) for asked, question in batch], frames


def _recorded(asked: Asked, question: Question, card: str | None = None) -> Asked:
    return replace(asked, card=card, audit=audited.asked(question, asked.name, card))


_COMPLETED = Recorded("completed", "{}")


def _draft_completion(outcome: Completed, writer: Writer) -> Draft:
    if outcome.incomplete is not None:
        frames = writer.incomplete(outcome.incomplete, usage=outcome.usage)
        cut = Recorded("completed", audited.incomplete(outcome.incomplete))
        return Draft(
            RunStatus.COMPLETED, "incomplete", writer, frames, writer.resource(), recorded=cut
        )
    frames = writer.complete(completed_at=int(time.time()), usage=outcome.usage)
    return Draft(
        RunStatus.COMPLETED, "completed", writer, frames, writer.resource(), recorded=_COMPLETED
    )


def _draft_failure(execution: Execution, outcome: Failed, writer: Writer) -> Draft:
    error: FermataError = RunFailed(outcome.message, code=outcome.code)
    frames = writer.fail(error, usage=outcome.usage)
    status, event = RunStatus.FAILED, "failed"
    reopens = execution.accepted and outcome.refused_answer
    if reopens:
        status, event = RunStatus.WAITING, "reopened"
    elif execution.accepted and not outcome.final:
        status, event = RunStatus.STALLED, "stalled"
    recorded = Recorded(event, audited.failure(error.error_code, error.message))
    body = writer.resource()
    return Draft(status, "failed", writer, frames, body, recorded=recorded, reopens=reopens)


async def _complete_first(conn: Connection, execution: Execution, end: Draft, keep: Keep) -> Cursor:
    """A first request that needs no run: it ended without a question. If it did effects, its end is
    on record as they are."""
    row = ending_of(execution, end, keep)
    fence: dict[str, str | None] = {"id": row.id, "lease_id": execution.lease_id}
    if not execution.acted:
        if execution.kept:
            return await finish_first(conn, [row], execution.lease_id)
        return await send(conn, "forget_first", **fence)
    fence |= _audit(end)
    if not execution.kept:
        return await send(conn, "forget_acted", **fence)
    ended = {"status": row.status, "body": row.body, "keep": row.keep}
    return await send(conn, "finish_acted", **ended, **fence)


async def _pause_first(conn: Connection, execution: Execution, end: Draft, keep: Keep) -> Cursor:
    """The first pause: the run becomes a row, and its checkpoints. Fenced by the response's own
    row."""
    current = execution.current
    row = ending_of(execution, end, keep)
    return await send(
        conn,
        "pause_first",
        response_id=row.id,
        body=row.body,
        keep=row.keep,
        lease_id=execution.lease_id,
        run_id=current.run_id,
        tenant=current.tenant,
        requester=current.requester,
        model=execution.served.name,
        settings=settings_text(current.settings),
        ttl=_wait(end, keep),
        **late_columns(_late_row(execution, end)),
        **asked_columns(end.asked),
        **checkpoint_columns(current.run_id, execution.outset.memory),
    )


def _audit(end: Draft) -> dict[str, str | None]:
    """What the statement that stores an ending writes into the audit; a pause is told by its
    questions."""
    if end.recorded is None:
        return {"event": None, "details": None, "actor": None}
    told = end.recorded
    return {"event": told.event, "details": told.details, "actor": told.actor}


async def _end_resumed(
    conn: Connection, execution: Execution, lease: Lease, end: Draft, keep: Keep
) -> Cursor:
    """The end of what an answer moved. Fenced by the lease, which is consumed."""
    row = ending_of(execution, end, keep)
    return await send(
        conn,
        "end_resume",
        run_id=lease.id,
        token=lease.token,
        run_status=end.status.value,
        keep_run=_wait(end, keep) if _stays(end) else keep.response,
        id=row.id,
        status=row.status,
        body=row.body,
        keep=row.keep,
        **_audit(end),
    )
