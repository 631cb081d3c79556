"""The pipeline: open, stream, finish.

    open    one transaction (`runs.opening`): what is known, the plan, the lease, the answers
            consumed, the response row. Every refusal happens here, before the first byte.
    stream  the graph runs in a task of its own; its events become frames. No connection is held.
    finish  one fenced transaction (`runs.endings`); then, and only then, the ending is told.

JSON and streaming are two renderings of one path: JSON is what the last event carries.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from gateway.errors import (
    FermataError,
    LeaseLost,
    NotFound,
    RunFailed,
    Unavailable,
)
from gateway.human.database import enter_database
from gateway.runs import endings
from gateway.runs.endings import Draft, Keep
from gateway.runs.events import (
    Completed,
    Failed,
    MessageDone,
    Paused,
    Piece,
    Progress,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCall,
)
from gateway.runs.execution import Execution
from gateway.runs.graph import ServedGraph
from gateway.runs.lease import Leases
from gateway.runs.ledger import Effects
from gateway.runs.meter import METER
from gateway.runs.rounds import every
from gateway.store.batch import Batch
from gateway.store.db import Database, fetch, fetch_one
from gateway.store.responses import (
    Ending,
    NewResponse,
    finish_first,
    forget_first,
    open_first,
)
from gateway.wire.writer import Frames, Writer

logger = logging.getLogger("fermata.runs")

FINISH_PATIENCE = 60.0  # seconds that an ending is tried again while the database is away
WATCH_INTERVAL = 0.1  # seconds between two looks at responses that other processes move


class Coordinator:
    """Streams and finishes runs; one per process.

    `graphs` maps model names to what is served. Use `async with`: leaving it stops what still runs.
    """

    def __init__(
        self,
        database: Database,
        leases: Leases,
        graphs: Mapping[str, ServedGraph],
        keep: Keep,
    ) -> None:
        self.database = database
        self.leases = leases
        self.graphs = graphs
        self.keep = keep
        self.effects = Effects(database, leases.owner)
        self._running: dict[str, Execution] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watched: dict[str, asyncio.Future[None]] = {}
        self.openings = Batch[NewResponse, None](self._write_openings)
        self.completions = Batch[Ending, bool](self._write_completions)
        self.closing = False
        self.abandoned: set[str] = set()
        """First requests of this process that it could not end; recovery fails them."""

    # --- stream ---

    def launch(self, execution: Execution) -> None:
        """Committed: the run may move."""
        if execution.lease is not None:
            lost = LeaseLost("Another process took this run over.")
            self.leases.hold(execution.lease, lambda: execution.stop(lost))
        ledger = self.effects.of_run(execution.current, execution.lease)
        execution.ledger = ledger
        execution.current = replace(execution.current, ledger=ledger)
        self._running[execution.response_id] = execution
        task = asyncio.create_task(self._move(execution), name=execution.response_id)
        execution.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _move(self, execution: Execution) -> None:
        try:
            await self._stream(execution)
        except asyncio.CancelledError:
            await self._stopped(execution)
        except FermataError as error:
            await self._tell_lost(execution, error)
        except Exception:
            logger.exception("response %s: the pipeline failed", execution.response_id)
            await self._tell_lost(execution, RunFailed("The gateway failed.", code="server_error"))
        finally:
            self._running.pop(execution.response_id, None)
            if execution.lease is not None:
                self.leases.drop(execution.lease)
            await execution.line.end()

    async def _stream(self, execution: Execution) -> None:
        writer, line = execution.writer, execution.line
        await line.put(writer.begin())
        enter_database(self.database)
        async for event in execution.served.run(execution.outset, execution.current):
            if isinstance(event, Paused | Completed | Failed):
                await self._finish(execution, event)
                return
            await line.put(_written(writer, event))

    # --- finish ---

    async def _finish(self, execution: Execution, outcome: Paused | Completed | Failed) -> None:
        execution.ending = True
        try:
            end = endings.draft(execution, outcome, self.keep)
        except RunFailed as error:
            failure = Failed(error.message, error.error_code, outcome.usage, final=True)
            end = endings.draft(execution, failure, self.keep)
        try:
            await self.end(execution, end)
        except FermataError:
            raise
        except Exception:
            logger.exception("response %s: its ending cannot be stored", execution.response_id)
            failure = Failed("The run's state cannot be stored.", usage=outcome.usage, final=True)
            await self.end(execution, endings.draft(execution, failure, self.keep))

    async def end(self, execution: Execution, end: Draft) -> None:
        """Commit, then tell."""
        await self._commit(execution, end)
        METER.responses["paused" if end.asked else end.response_status] += 1
        execution.writer = end.writer
        execution.succeed(end.body)
        await execution.line.put(end.frames)

    async def _commit(self, execution: Execution, end: Draft) -> None:
        """Store the ending; while the database is away, try again: the work is done and must not
        be lost.

        A commit whose answer was lost may have happened: then the fence says that the lease is
        lost, and the row that it is ours.
        """
        deadline = time.monotonic() + FINISH_PATIENCE
        pause = 0.1
        while True:
            try:
                await self._store(execution, end)
                return
            except LeaseLost:
                if pause > 0.1 and await self._is_stored(execution, end):
                    return
                raise
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)

    async def _store(self, execution: Execution, end: Draft) -> None:
        """One try. The lease is not renewed meanwhile: the fence consumes it, which must not look
        lost."""
        alone = execution.lease is None and execution.conversation is None
        if alone and not end.asked and not execution.acted:
            await self._store_completion(execution, end)
            return
        with self.leases.paused(execution.lease):
            await endings.store_ending(self.database, execution, end, self.keep)

    async def _store_completion(self, execution: Execution, end: Draft) -> None:
        if execution.stored:
            row = endings.ending_of(execution, end, self.keep)
            written = await self.completions.add(row)
        else:
            async with self.database.connection() as conn:
                written = await forget_first(conn, execution.response_id, execution.lease_id)
        if not written:
            raise LeaseLost("This response was ended by another process.")

    async def _is_stored(self, execution: Execution, end: Draft) -> bool:
        async with self.database.connection() as conn:
            row = await fetch_one(
                conn, "response", tenant=execution.current.tenant, id=execution.response_id
            )
        return row is not None and row["body"] == end.body.decode()

    async def _write_openings(self, rows: Sequence[NewResponse]) -> Sequence[None]:
        async with self.database.connection() as conn:
            await open_first(conn, rows, self.leases.owner)
        return [None] * len(rows)

    async def _write_completions(self, rows: Sequence[Ending]) -> Sequence[bool]:
        async with self.database.connection() as conn:
            cursor = await finish_first(conn, rows, self.leases.owner)
            written = {row["id"] for row in await cursor.fetchall()}
        return [row.id in written for row in rows]

    async def _stopped(self, execution: Execution) -> None:
        """The task was cancelled: the lease is lost, the client left, or the process ends."""
        reason = execution.stop_reason or Unavailable("This process is shutting down.")
        if reason.error_code == "cancelled":
            try:
                await self.end(execution, endings.draft_cancelled(execution))
                return
            except FermataError as error:
                reason = error
        await self._tell_lost(execution, reason)

    async def _tell_lost(self, execution: Execution, error: FermataError) -> None:
        """This process cannot end the response; the database says, or will say, what became of it.

        A resumed run's lease runs out and recovery takes it over. A first request lives by the
        sign of life of this process, which goes on: recovery has to be told.
        """
        execution.give_up(error)
        if execution.lease is None:
            self.abandoned.add(execution.response_id)
        await execution.line.put(execution.writer.fail(error))

    # --- what others move, and what has ended ---

    def running(self, response_id: str) -> Execution | None:
        """The execution of this response, if this process moves it."""
        return self._running.get(response_id)

    @property
    def running_now(self) -> int:
        """How many executions this process moves."""
        return len(self._running)

    async def outcome_of(self, tenant: str, response_id: str) -> bytes:
        """The resource of a response once it has ended, whichever process moves it."""
        running = self._running.get(response_id)
        if running is not None:
            return await asyncio.shield(running.ended)
        await self._settled(response_id)
        async with self.database.connection() as conn:
            row = await fetch_one(conn, "response", tenant=tenant, id=response_id)
        if row is None:
            raise NotFound(f"Response with id '{response_id}' not found.")
        return str(row["body"]).encode()

    async def _settled(self, response_id: str) -> None:
        """Wait until the response is no longer in progress, wherever it runs."""
        async with self.database.connection() as conn:
            if await fetch(conn, "settled", ids=[response_id]):
                return
        future = self._watched.get(response_id)
        if future is None:
            future = asyncio.get_running_loop().create_future()
            self._watched[response_id] = future
        await asyncio.shield(future)

    async def watch(self) -> None:
        """Look after all that somebody on this process waits for, with one query a round."""
        await every(WATCH_INTERVAL, self._look, "the watch")

    async def _look(self) -> None:
        if not self._watched:
            return
        async with self.database.connection() as conn:
            rows = await fetch(conn, "settled", ids=list(self._watched))
        for row in rows:
            self._watched.pop(row["id"]).set_result(None)

    # --- the end of the process ---

    async def close(self, grace: timedelta) -> None:
        """Take nothing new, let what runs finish for so long, stop the rest, release everything."""
        self.closing = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace.total_seconds())
        for execution in list(self._running.values()):
            execution.stop(Unavailable("This process is shutting down."))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)
        await self.effects.close()
        try:
            await self.leases.release_all()
        except Unavailable:
            logger.warning("the leases could not be released; they end by themselves")


def _written(writer: Writer, piece: Piece) -> Frames:
    if isinstance(piece, TextDelta):
        return writer.text(piece.message_id, piece.text)
    return _WRITERS[type(piece)](writer, piece)


_WRITERS: Mapping[type, Callable[[Writer, Any], Frames]] = {
    MessageDone: lambda writer, piece: writer.close(piece.message_id),
    RefusalDelta: lambda writer, piece: writer.refusal(piece.message_id, piece.text),
    ReasoningDelta: lambda writer, piece: writer.reasoning(piece.message_id, piece.text),
    ToolCall: lambda writer, piece: writer.function_call(
        piece.call_id, piece.name, piece.arguments
    ),
    Progress: lambda writer, piece: writer.extension(piece.name, piece.payload),
}
