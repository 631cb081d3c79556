"""A run that this process takes from the record: queued for anybody, or left by a holder that died.

What it needs is all there: the request or the accepted answers, the checkpoint of the last
finished step, and what was told so far.
"""

from __future__ import annotations

import asyncio
import logging

from gateway.errors import InvalidRequest, LeaseLost, Unavailable
from gateway.human.run import CurrentRun, settings_from
from gateway.runs import conversations, endings
from gateway.runs.conversation import conversation
from gateway.runs.coordinator import Coordinator
from gateway.runs.events import Failed
from gateway.runs.execution import Execution, Frameline
from gateway.runs.journal import Journal
from gateway.runs.lease import Lease, acquired
from gateway.runs.lookup import read_history
from gateway.runs.meter import METER
from gateway.runs.outset import Outset
from gateway.runs.principal import Principal
from gateway.runs.retold import Retold
from gateway.runs.rounds import heed_cancellation
from gateway.store.checkpoint_rows import load_checkpoints
from gateway.store.checkpoints import StepMemory
from gateway.store.db import Connection, DatabaseError, Row, execute, fetch, fetch_one, send
from gateway.wire import encoding
from gateway.wire.history import parse_item
from gateway.wire.items import Response
from gateway.wire.request import parse_tools
from gateway.wire.told import told_by
from gateway.wire.writer import Writer

logger = logging.getLogger("fermata.pickup")

QUEUE_LOOK = 0.5  # seconds between two looks at the queue; what is queued here is started at once
MOST_TAKEOVERS = 3
_POISONED = Failed("The processes that ran this response ended, one after the other.")
"""A run that ends its process would end every process that takes it over. Its answer stays on
record: the same request may be sent again."""
_UNREADABLE = Failed("The state of this run cannot be read back.", final=True)
"""Tried as often as a poisoned run: another process may have the code for it."""


# --- the queue -------------------------------------------------------------------------------


async def start_for_ever(coordinator: Coordinator, most: int) -> None:
    """Start what is queued, at most so many at a time, until cancelled."""
    while True:
        try:
            while coordinator.in_background < most and await start_queued(coordinator):
                pass
        except Unavailable:
            logger.debug("the queue waits for the database")
        except _Unstartable as error:
            coordinator.postponed.add(error.response_id)
            coordinator.queued.set()
            logger.exception("response %s cannot be started; it is tried later", error.response_id)
        except Exception:
            logger.exception("a queued response could not be started; it is tried again")
        heed_cancellation()
        try:
            async with asyncio.timeout(QUEUE_LOOK):
                await coordinator.queued.wait()
        except TimeoutError:
            pass
        coordinator.queued.clear()


class _Unstartable(Exception):
    """A response that cannot be read back."""

    def __init__(self, response_id: str) -> None:
        super().__init__(response_id)
        self.response_id = response_id


async def start_queued(coordinator: Coordinator) -> bool:
    """Start the oldest queued response of a model that is served here; False if there is none."""
    if coordinator.closing or not coordinator.graphs:
        return False
    leases = coordinator.leases
    async with coordinator.database.transaction() as conn:
        claimed = await fetch_one(
            conn,
            "claim_queued",
            models=list(coordinator.graphs),
            skipped=coordinator.postponed.ids(),
            owner=leases.owner,
            ttl=leases.ttl,
        )
        if claimed is None:
            return False
        lease = Lease(claimed["run_id"], claimed["token"])
        try:
            execution, broken = await _loaded(
                coordinator, conn, claimed["tenant"], claimed["id"], lease
            )
        except (DatabaseError, Unavailable):
            raise
        except Exception as error:
            raise _Unstartable(claimed["id"]) from error
        if broken is _UNREADABLE:
            raise _Unstartable(claimed["id"])
        frames = execution.writer.begin()
        await send(
            conn,
            "show_started",
            tenant=claimed["tenant"],
            id=claimed["id"],
            body=execution.writer.resource().decode(),
        )
    execution.told = True
    await execution.line.put(frames)
    await _go(coordinator, execution, broken)
    return True


# --- taking over -----------------------------------------------------------------------------


async def take_over(coordinator: Coordinator, tenant: str, run_id: str, response_id: str) -> bool:
    """Go on with a response whose holder died: an accepted answer stands behind it, or it is in
    the background. False if somebody else has it, or it has ended.
    """
    async with coordinator.database.transaction() as conn:
        run = await fetch_one(conn, "lock_orphan", tenant=tenant, run_id=run_id)
        row = await fetch_one(conn, "request_of", tenant=tenant, id=response_id)
        if run is None or row is None or run["response_id"] != response_id:
            return False
        if run["status"] != "running" or row["status"] != "in_progress":
            return False
        if run["model"] not in coordinator.graphs:
            return False
        lease = await acquired(await coordinator.leases.acquire(conn, run_id), run_id)
        if lease is None:
            return False
        execution, broken = await _loaded(coordinator, conn, tenant, response_id, lease)
        await execute(conn, "count_takeover", id=response_id, died=lease.inherited)
    if row["cancelling"]:
        await coordinator.end(execution, endings.draft_cancelled(execution))
    elif row["takeovers"] >= MOST_TAKEOVERS:
        end = endings.draft(execution, broken or _POISONED, coordinator.keep)
        await coordinator.end(execution, end)
    elif broken is _UNREADABLE:
        raise _Unstartable(response_id)  # counted; its lease runs out
    else:
        METER.takeovers += 1
        logger.warning("taking over response %s of run %s", response_id, run_id)
        await _go(coordinator, execution, broken)
    return True


async def _go(coordinator: Coordinator, execution: Execution, broken: Failed | None) -> None:
    if broken is None:
        coordinator.launch(execution)
    else:
        await coordinator.end(execution, endings.draft(execution, broken, coordinator.keep))


# --- from the record -------------------------------------------------------------------------


async def _loaded(
    coordinator: Coordinator, conn: Connection, tenant: str, response_id: str, lease: Lease
) -> tuple[Execution, Failed | None]:
    """The execution that goes on with the response, in the transaction that took its lease; and
    why it cannot, if so."""
    run = await fetch_one(conn, "run_of", tenant=tenant, run_id=lease.id)
    row = await fetch_one(conn, "request_of", tenant=tenant, id=response_id)
    assert run is not None  # the claim found both, and holds what could delete them
    assert row is not None
    broken = None
    try:
        outset = await _outset(conn, tenant, lease.id, row, run)
    except InvalidRequest as error:
        # What it continues was deleted in part meanwhile: it would fail everywhere.
        outset, broken = Outset(), Failed(error.message, error.error_code, final=True)
    except (DatabaseError, Unavailable):
        raise
    except Exception:
        logger.exception("the state of run %s cannot be read", lease.id)
        outset, broken = Outset(), _UNREADABLE
    served = coordinator.graphs[run["model"]]
    body = encoding.loads(row["body"])
    writer = Writer(Response.of_resource(body))
    execution = Execution(
        served=served,
        current=CurrentRun(
            lease.id, response_id, tenant, run["requester"], settings_from(run["settings"])
        ),
        outset=outset,
        writer=writer,
        line=Frameline(writer, wanted=False),
        stored=row["stored"],
        conversation=row["conversation_id"],
        only_calls=row["logged"] and not row["streamed"],
        tools=parse_tools(body["tools"]),
        lease=lease,
        lease_id=lease.id,
    )
    if row["logged"]:
        await _with_journal(coordinator, conn, execution, row)
    return execution, broken


async def _outset(conn: Connection, tenant: str, run_id: str, row: Row, run: Row) -> Outset:
    """From its last finished step; else with the answers that it carries; else from the start."""
    memory = await load_checkpoints(conn, run_id)
    answers = await fetch(conn, "accepted_answers", run_id=run_id, response_id=row["id"])
    if answers:
        values = {item["interrupt_id"]: encoding.loads(item["answer"]) for item in answers}
        return Outset(memory=memory, answers=values, again=True, live=row["streamed"])
    if memory.has_checkpoints:
        return Outset(memory=memory, further=True, live=row["streamed"])
    if row["conversation_id"] is None:
        history = await read_history(conn, tenant, row["previous_id"])
    else:
        requester = Principal(tenant, run["requester"])
        history = await conversations.read(conn, requester, row["conversation_id"])
    items = [parse_item(item, "input") for item in encoding.loads(row["input"])]
    instructions = settings_from(run["settings"]).instructions
    return Outset(messages=conversation(history, items, instructions), live=row["streamed"])


async def _with_journal(
    coordinator: Coordinator, conn: Connection, execution: Execution, row: Row
) -> None:
    tenant, response_id = execution.current.tenant, execution.response_id
    assert execution.lease is not None
    chunks = await fetch(conn, "all_events", tenant=tenant, id=response_id)
    told = told_by(chunk["frames"] for chunk in chunks)
    execution.writer.go_on(told)
    execution.told = told.begun
    execution.retold = Retold(told, row["settled"])
    memory = StepMemory(execution.outset.memory, prunes=execution.served.prunes)
    execution.outset.memory = memory
    execution.line = execution.journal = Journal(
        coordinator.database,
        execution.lease,
        tenant,
        response_id,
        memory,
        next=told.next,
        on_news=lambda: coordinator.watch.wake(response_id),
        on_loss=lambda: execution.stop(LeaseLost("Another process took this run over.")),
    )
