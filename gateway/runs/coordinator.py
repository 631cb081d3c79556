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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial

from gateway.errors import FermataError, LeaseLost, NotFound, RunFailed, Unavailable
from gateway.human.database import enter_database
from gateway.runs import endings
from gateway.runs.confined import threads_ended
from gateway.runs.drive import drive
from gateway.runs.endings import Draft, Keep
from gateway.runs.events import Completed, Failed, Outcome, Paused
from gateway.runs.execution import Execution
from gateway.runs.graph import ServedGraph
from gateway.runs.lease import Leases
from gateway.runs.ledger import Effects
from gateway.runs.meter import METER
from gateway.runs.retold import Retold
from gateway.runs.rounds import Lately, every
from gateway.runs.rows import Rows
from gateway.runs.telling import all_written, written
from gateway.runs.watch import Watch
from gateway.store.checkpoints import StepMemory
from gateway.store.db import Database, fetch, fetch_one
from gateway.wire.items import Usage

logger = logging.getLogger("fermata.runs")

LONGEST_BACKOFF = 60.0  # seconds
CANCEL_LOOK = 0.5  # seconds between two looks at what others want to end
STRAGGLERS = 120.0  # seconds; longer than a commit may take whose database answers
POSTPONED = 60.0  # seconds until what failed is tried again
OPEN_AFTER = 1.0  # seconds until a run that only its client knows of gets its row


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
        self.rows = Rows(database, leases, keep)
        self.effects = Effects(database, leases.owner)
        self._running: dict[str, Execution] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.watch = Watch(database)
        self.queued = asyncio.Event()
        """Set when there may be something to start, and room for it."""
        self.closing = False
        self.abandoned = Lately(STRAGGLERS)
        """First requests of this process that it could not end; recovery fails them."""
        self.unbegun = Lately(STRAGGLERS)
        """First requests that never began here; their rows may be there although nobody heard of
        the commit. Recovery deletes them."""
        self.postponed = Lately(POSTPONED)
        """What failed a moment ago and lets others come first: queued responses, orphans, questions
        whose time is over."""

    # --- stream ---

    @property
    def in_background(self) -> int:
        """How many background responses this process moves."""
        return sum(1 for execution in self._running.values() if execution.journal is not None)

    def launch(self, execution: Execution) -> None:
        """Committed: the run may move."""
        if execution.lease is not None:
            self.leases.hold(execution.lease, lambda: execution.stop(_taken_over()))
        known = partial(self.open, execution.response_id)
        ledger = self.effects.of_run(execution.current, execution.lease, known)
        execution.ledger = ledger
        execution.current = replace(execution.current, ledger=ledger)
        self._record_steps(execution)
        self._running[execution.response_id] = execution
        task = asyncio.create_task(self._move(execution), name=execution.response_id)
        execution.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if execution.unopened is not None:
            slow = asyncio.get_running_loop().call_later(OPEN_AFTER, self._open_slow, execution)
            task.add_done_callback(lambda _: slow.cancel())

    async def open(self, response_id: str) -> None:
        """Have the row of a response that this process moves written, if it waits for that.

        Raises `Unavailable`."""
        execution = self._running.get(response_id)
        if execution is None or execution.unopened is None or execution.ending:
            return
        if execution.opening is None:
            row = execution.unopened(execution.writer.resource())
            execution.opening = asyncio.create_task(self.rows.openings.add(row))
        try:
            await asyncio.shield(execution.opening)
        except Unavailable:
            execution.opening, execution.unheard = None, True
            raise

    def _open_slow(self, execution: Execution) -> None:
        """It takes long: it shall be seen, and be known to have failed if this process dies."""

        async def opened() -> None:
            with suppress(Unavailable):
                await self.open(execution.response_id)

        if not execution.ending:
            task = asyncio.create_task(opened())
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
            await execution.line.end()
            if execution.stop_reason is not None and not isinstance(
                execution.stop_reason, LeaseLost
            ):
                await threads_ended(execution.current.run_id)
            self._running.pop(execution.response_id, None)
            if execution.unheard:
                self.abandoned.add(execution.response_id)
            if execution.lease is not None:
                self.leases.drop(execution.lease)
            if execution.journal is not None:
                self.queued.set()

    async def _stream(self, execution: Execution) -> None:
        line = execution.line
        if not execution.told:
            await line.put(execution.writer.begin())
        enter_database(self.database)
        outcome = await self._attempt(execution)
        if execution.retold is not None:
            outcome = await self._attempt_again(execution, execution.retold, outcome)
            await line.put(all_written(execution.writer, execution.retold.settle()))
        await self._finish(execution, outcome)

    async def _attempt(self, execution: Execution) -> Outcome:
        writer, line, retold = execution.writer, execution.line, execution.retold
        outcome: Outcome | None = None
        # To its very end: a generator that is left before is closed by a task of its own.
        async for event in drive(execution.served, execution.outset, execution.current):
            if isinstance(event, Paused | Completed | Failed):
                outcome = event
            elif retold is None:
                await line.put(written(writer, event))
            else:
                await line.put(all_written(writer, retold.pieces(event)))
        if outcome is None:
            raise RunFailed("The graph gave no outcome.", code="server_error")
        return outcome

    async def _attempt_again(
        self, execution: Execution, retold: Retold, outcome: Outcome
    ) -> Outcome:
        """Try what raised again, from its last finished step, as often as its author allows."""
        declared = execution.served.declared
        pause = declared.backoff.total_seconds()
        usage = outcome.usage
        for attempt in range(declared.retries):
            if not isinstance(outcome, Failed) or outcome.final or outcome.refused_answer:
                break
            logger.warning(
                "response %s: attempt %d failed, the next in %.1f s",
                execution.response_id,
                attempt + 1,
                pause,
            )
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_BACKOFF)
            retold.rewind()
            execution.outset = execution.outset.again_from_its_last_step()
            outcome = await self._attempt(execution)
            usage = _sum(usage, outcome.usage)
        return replace(outcome, usage=usage)

    def _record_steps(self, execution: Execution) -> None:
        """Runs whose steps may be gone over again know where each step ends."""
        retold = execution.retold
        if execution.served.declared.retries and retold is None:
            retold = execution.retold = Retold()
        if retold is None:
            return
        memory = execution.outset.memory
        if not isinstance(memory, StepMemory):
            memory = StepMemory(memory, prunes=execution.served.prunes)
            execution.outset.memory = memory
        journal = execution.journal

        async def on_step(root: bool) -> None:
            closing = all_written(execution.writer, retold.settle()) if root else []
            if journal is not None:
                await journal.step(closing, root)
            else:
                await execution.line.put(closing)

        memory.on_step = on_step
        if journal is not None:
            memory.on_writes = journal.soon

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
        if execution.journal is not None:
            await execution.journal.close()
        await self.rows.commit(execution, end)
        METER.responses["paused" if end.asked else end.response_status] += 1
        execution.writer = end.writer
        execution.succeed(end.body)
        await execution.line.last(end.frames)

    async def _stopped(self, execution: Execution) -> None:
        """The task was cancelled: the lease is lost, the client left, or the process ends."""
        reason = execution.stop_reason or Unavailable("This process is shutting down.")
        if reason.error_code == "cancelled":
            execution.ending = True
            await threads_ended(execution.current.run_id)
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
        await execution.line.lose(execution.writer.fail(error))

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
        await self.watch.settled(response_id)
        async with self.database.connection() as conn:
            row = await fetch_one(conn, "response", tenant=tenant, id=response_id)
        if row is None:
            raise NotFound(f"Response with id '{response_id}' not found.")
        return str(row["body"]).encode()

    async def watch_for_ever(self) -> None:
        """Look after all that other processes do and this one has to know, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.watch.look_for_ever())
            group.create_task(every(CANCEL_LOOK, self._end_cancelled, "the look for cancellations"))

    async def _end_cancelled(self) -> None:
        mine = [id for id, one in self._running.items() if one.journal is not None]
        if not mine:
            return
        async with self.database.connection() as conn:
            rows = await fetch(conn, "to_be_cancelled", ids=mine)
        for row in rows:
            if (execution := self.running(row["id"])) is not None:
                execution.cancel("The response was cancelled.")

    # --- the end of the process ---

    async def close(self, grace: timedelta) -> None:
        """Take nothing new, let what runs finish for so long, stop the rest, release everything."""
        self.closing = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace.total_seconds())
        self.watch.close()
        for execution in list(self._running.values()):
            execution.stop(Unavailable("This process is shutting down."))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)
        for execution in list(self._running.values()):
            await threads_ended(execution.current.run_id)
        await self.effects.close()
        try:
            await self.leases.release_all()
        except Unavailable:
            logger.warning("the leases could not be released; they end by themselves")


def _taken_over() -> LeaseLost:
    return LeaseLost("Another process took this run over.")


def _sum(one: Usage | None, other: Usage | None) -> Usage | None:
    return one + other if one is not None and other is not None else one or other
