"""The pipeline: open, stream, finish.

    open    one transaction: what is known, the plan, the lease, the answers consumed, the
    response row.
            Every refusal happens here, before the first byte.
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
from functools import partial
from typing import Any

from gateway.errors import (
    FermataError,
    InterruptClosed,
    LeaseLost,
    ModelNotFound,
    NotFound,
    ResponseInProgress,
    RunFailed,
    Unavailable,
)
from gateway.human.run import CurrentRun, RunSettings, settings_from, settings_of
from gateway.runs import endings
from gateway.runs.cards import LeftOpen, last_card, unfold
from gateway.runs.conversation import conversation
from gateway.runs.endings import Draft, Keep
from gateway.runs.events import (
    Completed,
    Failed,
    MessageDone,
    Paused,
    Piece,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCall,
)
from gateway.runs.execution import Execution, Frameline
from gateway.runs.graph import Outset, ServedGraph
from gateway.runs.lease import Lease, Leases, acquired
from gateway.runs.lookup import find_previous, plausible, read_history, resolve_references
from gateway.runs.principal import Principal
from gateway.runs.replies import LiveReply, RepeatedReply, Reply, SaidReply
from gateway.runs.rounds import every
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
from gateway.store.batch import Batch
from gateway.store.checkpoints import load_checkpoints
from gateway.store.db import Connection, Database, Row, execute, fetch, fetch_one, send
from gateway.store.responses import (
    Ending,
    NewResponse,
    finish_first,
    forget_first,
    open_first,
)
from gateway.wire import encoding
from gateway.wire.dialects import in_dialect
from gateway.wire.history import Item, ItemReference, Message, as_resource
from gateway.wire.ids import new_id
from gateway.wire.items import Response
from gateway.wire.request import CreateResponse
from gateway.wire.writer import Frames, Writer

logger = logging.getLogger("fermata.runs")

FINISH_PATIENCE = 60.0  # seconds that an ending is tried again while the database is away
WATCH_INTERVAL = 0.1  # seconds between two looks at responses that other processes move


MOST_TAKEOVERS = 3
_POISONED = Failed("The processes that ran this response ended, one after the other.")
"""A run that ends its process would end every process that takes it over. Its answer stays on
record: the same request may be sent again."""


class Coordinator:
    """Opens, streams and finishes runs; one per process.

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
        self._running: dict[str, Execution] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watched: dict[str, asyncio.Future[None]] = {}
        self._openings = Batch[NewResponse, None](self._write_openings)
        self._completions = Batch[Ending, bool](self._write_completions)
        self.closing = False
        self.abandoned: set[str] = set()
        """First requests of this process that it could not end; recovery fails them."""

    # --- open ---

    async def create(self, request: CreateResponse, principal: Principal) -> Reply:
        """Do what the request asks for. Raises every refusal; what it returns will be told."""
        served = self.graphs.get(request.model)
        if served is None:
            raise ModelNotFound(request.model)
        if self.closing:
            raise Unavailable("This process is shutting down.")
        call_ids = answer_call_ids(request)
        if request.previous_response_id is None and not call_ids:
            told = last_card(request.input) is not None
            again = await self._card_again(request, principal) if told else None
            return again or await self._begin(request, principal, served, ())
        async with self.database.pipeline() as (conn, _):
            previous = await find_previous(conn, principal.tenant, request, call_ids)
            step = _step(request, previous, principal)
            if isinstance(step, Resume) and previous is not None and previous.run is not None:
                execution = await self._accept(
                    conn, request, principal, served, previous, previous.run, step
                )
            elif isinstance(step, Start):
                history = await read_history(conn, principal.tenant, step.previous_id)
        if isinstance(step, LeftOpen):
            return await self._say(request, principal, step.message)
        if isinstance(step, Repeat):
            return RepeatedReply(
                step.response_id, partial(self.outcome_of, principal.tenant, step.response_id)
            )
        if isinstance(step, Start):
            return await self._begin(request, principal, served, history)
        self._launch(execution)
        return LiveReply(execution)

    async def _card_again(self, request: CreateResponse, principal: Principal) -> Reply | None:
        """The card of the client's history that came back without a decision, told once more; None
        if nothing is open any more."""
        card = last_card(request.input)
        async with self.database.transaction() as conn:
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
        return await self._say(request, principal, (told_as, call.name, call.arguments))

    async def _say(
        self, request: CreateResponse, principal: Principal, said: str | tuple[str, str, str]
    ) -> Reply:
        """A response that needs no graph: a sentence, or a call that is told again."""
        served = self.graphs[request.model]
        execution = self._execution(
            request, principal, served, new_id("run"), settings_of(request), Outset()
        )
        writer = execution.writer
        row = _row(request, execution, request.previous_response_id)
        frames = writer.begin()
        if isinstance(said, str):
            frames += [*writer.text("said", said), *writer.close("said")]
        else:
            frames += writer.function_call(*said)
        frames += writer.complete(completed_at=int(time.time()))
        if request.store:
            await self._openings.add(row)
            body = writer.resource().decode()
            ending = Ending(execution.response_id, "completed", body, self.keep.response)
            await self._completions.add(ending)
        return SaidReply(execution.response_id, frames, writer.resource())

    async def _begin(
        self,
        request: CreateResponse,
        principal: Principal,
        served: ServedGraph,
        history: tuple[Item, ...],
    ) -> Reply:
        settings = settings_of(request)
        if any(isinstance(item, ItemReference) for item in request.input):
            async with self.database.connection() as conn:
                items = await resolve_references(conn, principal.tenant, request.input, history)
            request = replace(request, input=items)
        messages = conversation(history, request.input, settings.instructions)
        outset = Outset(messages=messages, live=request.stream)
        execution = self._execution(request, principal, served, new_id("run"), settings, outset)
        await self._openings.add(_row(request, execution, request.previous_response_id))
        self._launch(execution)
        return LiveReply(execution)

    async def _accept(
        self,
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
        outset = Outset(memory=memory, answers=values, again=step.again, live=request.stream)
        execution = self._execution(
            request, principal, served, run.id, settings_from(run.settings), outset
        )
        execution.current = replace(execution.current, requester=run.requester)
        row = _row(request, execution, _continues(request, previous))
        accepted = await self._record(conn, principal, step, row, previous.response_id)
        if accepted["token"] is None or accepted["consumed"] != len(step.accepts):
            raise ResponseInProgress(f"Response '{previous.response_id}' is being resumed.")
        execution.lease = Lease(run.id, accepted["token"])
        execution.lease_id = run.id
        return execution

    async def _record(
        self, conn: Connection, principal: Principal, step: Resume, row: NewResponse, asking: str
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
            owner=self.leases.owner,
            ttl=self.leases.ttl,
            reviewer=principal.subject,
            call_ids=list(step.accepts),
            answers=[step.answers[call_id] for call_id in step.accepts],
            from_status="answered" if step.again else "pending",
        )
        if len(step.accepts) < len(step.answers):
            await send(conn, "carry_answers", tenant=row.tenant, id=row.id, asking=asking)
        accepted = await cursor.fetchone()
        assert accepted is not None  # a SELECT of scalars always has its row
        return accepted

    def _execution(
        self,
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
            writer=Writer(response),
            line=Frameline(wanted=request.stream),
            stored=request.store,
            only_calls=not request.stream,
            lease_id=self.leases.owner,
            tools=request.tools,
        )

    # --- stream ---

    def _launch(self, execution: Execution) -> None:
        """Committed: the run may move."""
        if execution.lease is not None:
            lost = LeaseLost("Another process took this run over.")
            self.leases.hold(execution.lease, lambda: execution.stop(lost))
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
            await self._end(execution, end)
        except FermataError:
            raise
        except Exception:
            logger.exception("response %s: its ending cannot be stored", execution.response_id)
            failure = Failed("The run's state cannot be stored.", usage=outcome.usage, final=True)
            await self._end(execution, endings.draft(execution, failure, self.keep))

    async def _end(self, execution: Execution, end: Draft) -> None:
        """Commit, then tell."""
        await self._commit(execution, end)
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
        if execution.lease is None and not end.asked:
            await self._store_completion(execution, end)
            return
        with self.leases.paused(execution.lease):
            await endings.store_ending(self.database, execution, end, self.keep)

    async def _store_completion(self, execution: Execution, end: Draft) -> None:
        if execution.stored:
            row = endings.ending_of(execution, end, self.keep)
            written = await self._completions.add(row)
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
                await self._end(execution, endings.draft_cancelled(execution))
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

    async def retrieve(self, response_id: str, principal: Principal) -> bytes:
        """The Response resource as it stands, as JSON. Raises `NotFound`."""
        row = None
        if plausible(response_id):
            async with self.database.connection() as conn:
                row = await fetch_one(conn, "response", tenant=principal.tenant, id=response_id)
        if row is None or not row["stored"]:
            raise NotFound(f"Response with id '{response_id}' not found.", param="response_id")
        return str(row["body"]).encode()

    def running(self, response_id: str) -> Execution | None:
        """The execution of this response, if this process moves it."""
        return self._running.get(response_id)

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

    # --- recovery ---

    async def take_over(self, tenant: str, run_id: str, response_id: str) -> bool:
        """Go on with a response whose holder died after it had accepted an answer.

        The answers are read from the record. False if somebody else has it, or it has ended.
        """
        async with self.database.transaction() as conn:
            row = await fetch_one(conn, "lock_run_of", tenant=tenant, response_id=response_id)
            response = await fetch_one(conn, "response", tenant=tenant, id=response_id)
            if row is None or response is None or row["response_id"] != response_id:
                return False
            served = self.graphs.get(row["model"])
            if served is None or row["status"] != "running" or response["status"] != "in_progress":
                return False
            lease = await acquired(await self.leases.acquire(conn, run_id), run_id)
            if lease is None:
                return False
            answers = await fetch(conn, "accepted_answers", run_id=run_id, response_id=response_id)
            memory = await load_checkpoints(conn, run_id)
            await execute(conn, "count_takeover", id=response_id)
        values = {item["interrupt_id"]: encoding.loads(item["answer"]) for item in answers}
        current = CurrentRun(
            run_id, response_id, tenant, row["requester"], settings_from(row["settings"])
        )
        execution = Execution(
            served=served,
            current=current,
            outset=Outset(memory=memory, answers=values, again=True, live=False),
            writer=Writer(Response.of_resource(encoding.loads(response["body"]))),
            line=Frameline(wanted=False),
            stored=response["stored"],
            only_calls=False,
            lease=lease,
            lease_id=run_id,
        )
        if response["takeovers"] >= MOST_TAKEOVERS:
            await self._end(execution, endings.draft(execution, _POISONED, self.keep))
            return True
        logger.warning("taking over response %s of run %s", response_id, run_id)
        self._launch(execution)
        return True

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
        try:
            await self.leases.release_all()
        except Unavailable:
            logger.warning("the leases could not be released; they end by themselves")


def _step(
    request: CreateResponse, previous: Previous | None, principal: Principal
) -> Plan | LeftOpen:
    unfolded = unfold(request, previous)
    return unfolded if isinstance(unfolded, LeftOpen) else plan(unfolded, previous, principal)


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
}


def _continues(request: CreateResponse, previous: Previous) -> str | None:
    """What the answering response follows. A client that resent its whole history has its context
    in its own input; to link it to the asking response as well would hold everything twice."""
    resent = any(isinstance(item, Message) for item in request.input)
    return None if resent and request.previous_response_id is None else previous.response_id


def _row(request: CreateResponse, execution: Execution, previous_id: str | None) -> NewResponse:
    return NewResponse(
        id=execution.response_id,
        tenant=execution.current.tenant,
        run_id=execution.current.run_id,
        model=execution.served.name,
        previous_id=previous_id,
        stored=request.store,
        input=encoding.dumps([as_resource(item) for item in request.input]),
        body=execution.writer.resource().decode(),
    )
