"""One runner at a time, and nothing stays behind: leases, recovery and sweeps on one database.

A worker here is a coordinator of its own. One that stopped is one that does not beat; its leases
are made to be over in SQL, because the database owns time and nobody sleeps.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import MessagesState
from langgraph.types import interrupt
from psycopg import AsyncConnection
from psycopg.rows import dict_row

from gateway import Graph
from gateway.errors import FermataError, InterruptExpired, LeaseLost, Unavailable
from gateway.runs import opening
from gateway.runs.catalog import serve_graphs
from gateway.runs.coordinator import Coordinator
from gateway.runs.endings import Keep
from gateway.runs.lease import Lease, Leases, acquired
from gateway.runs.principal import ANYBODY
from gateway.runs.recovery import recover
from gateway.runs.replies import Reply
from gateway.runs.retrieval import retrieve
from gateway.store.db import Database, open_database
from gateway.store.retention import Swept, sweep
from gateway.wire.request import parse_create
from tests.integration.api import calls, output, texts
from tests.integration.small_graphs import chain
from tests.openresponses import Json, check_stream, read_frames

TTL = timedelta(seconds=30)
WEEK = timedelta(days=7)
MONTH = timedelta(days=30)


@dataclass
class Node:
    """A node that blocks until it may go on, and then ends, asks again or raises."""

    name: str
    then: str = "ends"
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    may_go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def work(self, state: MessagesState) -> dict[str, Any]:
        self.entered.set()
        await self.may_go_on.wait()
        if self.then == "asks":
            interrupt("Once more?")
        if self.then == "raises":
            raise ValueError(self.name)
        return {"messages": [AIMessage(f"done by {self.name}")]}


async def ask(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"answer: {interrupt('Go on?')}")]}


def free(name: str) -> Node:
    """A node that does not block."""
    node = Node(name)
    node.may_go_on.set()
    return node


@asynccontextmanager
async def worker(
    url: str, node: Node, *, models: bool = True, graphs: Mapping[str, Graph] | None = None
) -> AsyncIterator[Coordinator]:
    """A coordinator of its own; without `models` it serves none of what the others do."""
    served = {
        "ask": Graph(chain(ask, node.work)),
        "work": Graph(chain(node.work)),
        **(graphs or {}),
    }
    async with open_database(url, size=3) as database:
        graphs = await serve_graphs(served if models else {"other": served["work"]})
        leases = Leases(database, TTL)
        coordinator = Coordinator(database, leases, graphs, Keep(wait=WEEK, response=MONTH))
        await leases.beat()
        watching = asyncio.create_task(coordinator.watch_for_ever())
        yield coordinator
        node.may_go_on.set()
        await coordinator.close(timedelta(seconds=10))
        watching.cancel()


async def sql(url: str, statement: str, *params: Any) -> list[dict[str, Any]]:
    async with await AsyncConnection.connect(url, autocommit=True, row_factory=dict_row) as conn:
        cursor = await conn.execute(statement, params)  # type: ignore[call-overload]
        return list(await cursor.fetchall()) if cursor.description else []


async def everything(url: str) -> dict[str, list[dict[str, Any]]]:
    """All rows that a holder could write."""
    orders = {
        "fermata.runs": "id",
        "fermata.responses": "id",
        "fermata.interrupts": "call_id",
        "checkpoints": "checkpoint_id",
        "checkpoint_blobs": "channel, version",
        "checkpoint_writes": "checkpoint_id, task_id, idx",
    }
    return {
        table: await sql(url, f"SELECT t::text FROM {table} t ORDER BY {order}")
        for table, order in orders.items()
    }


async def checkpoint_rows(url: str) -> int:
    return sum(len(rows) for name, rows in (await everything(url)).items() if "check" in name)


async def start(coordinator: Coordinator, model: str, said: Any, **fields: Any) -> Reply:
    body = {"model": model, "input": said, **fields}
    return await opening.create(coordinator, parse_create(body), ANYBODY)


async def told(coordinator: Coordinator, model: str, said: Any, **fields: Any) -> Json:
    reply = await start(coordinator, model, said, **fields)
    return dict(json.loads(await reply.result()))


async def refusal(coordinator: Coordinator, said: Any, **fields: Any) -> FermataError:
    with pytest.raises(FermataError) as caught:
        await start(coordinator, "ask", said, **fields)
    return caught.value


async def freeze(url: str, stopped: Coordinator) -> None:
    """As if `stopped` had not beaten for longer than its leases last."""
    await sql(
        url,
        "UPDATE fermata.leases SET expires_at = now() - interval '1 second' WHERE owner = %s",
        stopped.leases.owner,
    )


async def outcome(coordinator: Coordinator, reply: Reply) -> Json:
    body = await coordinator.outcome_of(ANYBODY.tenant, reply.response_id)
    return dict(json.loads(body))


# --- leases ----------------------------------------------------------------------------------


async def take(leases: Leases, database: Database, run_id: str) -> Lease | None:
    async with database.transaction() as conn:
        return await acquired(await leases.acquire(conn, run_id), run_id)


async def test_a_lease_is_had_by_one_until_it_is_over(database_url: str) -> None:
    async with open_database(database_url, size=2) as database:
        first, second = Leases(database, TTL), Leases(database, TTL)
        mine = await take(first, database, "run_1")
        assert mine is not None
        assert await take(second, database, "run_1") is None
        assert await take(first, database, "run_1") is None
        assert await take(second, database, "run_2") is not None
        await sql(database_url, "UPDATE fermata.leases SET expires_at = now() WHERE id = 'run_1'")
        theirs = await take(second, database, "run_1")
        assert theirs is not None
        assert theirs.token > mine.token


async def test_a_beat_renews_what_is_held_and_tells_exactly_what_was_lost(
    database_url: str,
) -> None:
    lost: list[str] = []
    async with open_database(database_url, size=2) as database:
        first, second = Leases(database, TTL), Leases(database, TTL)
        for run_id in ("run_1", "run_2", "run_3"):
            mine = await take(first, database, run_id)
            assert mine is not None
            first.hold(mine, lambda run_id=run_id: lost.append(run_id))
        await sql(database_url, "UPDATE fermata.leases SET expires_at = now()")
        assert await take(second, database, "run_2") is not None
        await first.beat()
        assert lost == ["run_2"]
        await first.beat()
        assert lost == ["run_2"]
        assert await take(second, database, "run_1") is None, "the beat renewed it"


async def test_what_was_dropped_is_neither_renewed_nor_lost(database_url: str) -> None:
    lost: list[str] = []
    async with open_database(database_url, size=2) as database:
        first, second = Leases(database, TTL), Leases(database, TTL)
        mine = await take(first, database, "run_1")
        assert mine is not None
        first.hold(mine, lambda: lost.append("run_1"))
        first.drop(mine)
        await sql(database_url, "UPDATE fermata.leases SET expires_at = now()")
        await first.beat()
        assert await take(second, database, "run_1") is not None
        await first.beat()
        assert lost == []


async def test_an_orderly_end_takes_down_its_own_leases_only(database_url: str) -> None:
    async with open_database(database_url, size=2) as database:
        first, second = Leases(database, TTL), Leases(database, TTL)
        for leases, run_id in ((first, "run_1"), (second, "run_2")):
            assert await take(leases, database, run_id) is not None
            await leases.beat()
        await first.release_all()
    rows = await sql(database_url, "SELECT id FROM fermata.leases ORDER BY id")
    assert {row["id"] for row in rows} == {"run_2", second.owner}


# --- P4: a worker that was stopped -----------------------------------------------------------


@pytest.mark.parametrize("then", ["ends", "asks", "raises"])
async def test_P4_a_stopped_worker_that_wakes_writes_nothing(database_url: str, then: str) -> None:
    slow = Node("the stopped one", then)
    async with (
        worker(database_url, slow) as stopped,
        worker(database_url, free("the other")) as other,
    ):
        paused = await told(stopped, "ask", "hi")
        reply = await start(stopped, "ask", [output(calls(paused)[0])])
        await slow.entered.wait()
        assert await recover(other) == 0, "its lease is good"
        await freeze(database_url, stopped)
        assert await recover(other) == 1
        finished = await outcome(other, reply)
        assert texts(finished)[-1] == "done by the other"
        before = await everything(database_url)
        slow.may_go_on.set()
        with pytest.raises(LeaseLost):
            await reply.result()
        assert await everything(database_url) == before
        assert await checkpoint_rows(database_url) == 0
        stored = await retrieve(stopped.database, reply.response_id, ANYBODY)
        assert json.loads(stored) == finished


async def test_P4_a_beat_stops_what_was_lost_in_the_middle_of_its_node(database_url: str) -> None:
    slow = Node("the stopped one")
    async with (
        worker(database_url, slow) as stopped,
        worker(database_url, free("the other")) as other,
    ):
        paused = await told(stopped, "ask", "hi")
        reply = await start(stopped, "ask", [output(calls(paused)[0])])
        await slow.entered.wait()
        await freeze(database_url, stopped)
        assert await recover(other) == 1
        await stopped.leases.beat()
        with pytest.raises(LeaseLost):
            await reply.result()
        assert not slow.may_go_on.is_set()
        assert texts(await outcome(other, reply))[-1] == "done by the other"


async def test_P4_the_stream_of_a_lost_run_ends_with_a_failure(database_url: str) -> None:
    slow = Node("the stopped one")
    async with (
        worker(database_url, slow) as stopped,
        worker(database_url, free("the other")) as other,
    ):
        paused = await told(stopped, "ask", "hi")
        reply = await start(stopped, "ask", [output(calls(paused)[0])], stream=True)
        await slow.entered.wait()
        await freeze(database_url, stopped)
        assert await recover(other) == 1
        await stopped.leases.beat()
        frames = [frame async for frames in reply.frames() for frame in frames]
        last = check_stream(read_frames(frames))
        assert (last["status"], last["error"]["code"]) == ("failed", "lease_lost")
        assert frames[-1] == b"data: [DONE]\n\n"


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("then", ["ends", "asks", "raises"])
async def test_P4_a_first_request_that_was_given_up_writes_nothing(
    database_url: str, then: str, store: bool
) -> None:
    slow = Node("the stopped one", then)
    async with (
        worker(database_url, slow) as stopped,
        worker(database_url, free("the other")) as other,
    ):
        reply = await start(stopped, "work", "hi", store=store)
        await slow.entered.wait()
        await stopped.open(reply.response_id)
        assert await recover(other) == 0, "its process lives"
        await freeze(database_url, stopped)
        assert await recover(other) == 1
        before = await everything(database_url)
        slow.may_go_on.set()
        with pytest.raises(LeaseLost):
            await reply.result()
        assert await everything(database_url) == before
        assert before["fermata.runs"] == []
        failed = await outcome(other, reply)
        assert failed["status"] == "failed"
        assert failed["error"].keys() >= {"type", "code", "message", "param"}


@pytest.mark.parametrize("store", [True, False])
async def test_who_waits_for_json_has_one_row_written_at_the_end(
    database_url: str, store: bool
) -> None:
    slow = Node("the only one")
    async with worker(database_url, slow) as only:
        reply = await start(only, "work", "hi", store=store)
        await slow.entered.wait()
        assert (await everything(database_url))["fermata.responses"] == []
        slow.may_go_on.set()
        told = json.loads(await reply.result())
        rows = (await everything(database_url))["fermata.responses"]
        assert len(rows) == (1 if store else 0)
        assert texts(told) == ["done by the only one"]


async def test_a_run_that_takes_long_is_seen_and_fails_with_its_process(database_url: str) -> None:
    slow = Node("the stopped one")
    async with (
        worker(database_url, slow) as stopped,
        worker(database_url, free("the other")) as other,
    ):
        reply = await start(stopped, "work", "hi")
        while not (await everything(database_url))["fermata.responses"]:  # noqa: ASYNC110  # PostgreSQL tells nobody
            await asyncio.sleep(0.05)
        (row,) = (await everything(database_url))["fermata.responses"]
        assert "in_progress" in row["t"]
        await freeze(database_url, stopped)
        assert await recover(other) == 1
        assert (await outcome(other, reply))["status"] == "failed"
        slow.may_go_on.set()


@pytest.mark.parametrize("opened", [True, False])
async def test_a_pause_keeps_its_row_however_it_was_opened(database_url: str, opened: bool) -> None:
    slow = Node("the only one", "asks")
    async with worker(database_url, slow) as only:
        reply = await start(only, "work", "hi")
        await slow.entered.wait()
        if opened:
            await only.open(reply.response_id)
        slow.may_go_on.set()
        paused = json.loads(await reply.result())
        assert len(calls(paused)) == 1
        assert len((await everything(database_url))["fermata.responses"]) == 1


async def test_a_process_that_woke_in_time_keeps_its_first_requests(database_url: str) -> None:
    slow = Node("the stopped one")
    async with (
        worker(database_url, slow) as stopped,
        worker(database_url, free("the other")) as other,
    ):
        reply = await start(stopped, "work", "hi")
        await slow.entered.wait()
        await freeze(database_url, stopped)
        await stopped.leases.beat()
        assert await recover(other) == 0
        slow.may_go_on.set()
        assert texts(json.loads(await reply.result())) == ["done by the stopped one"]


# --- recovery --------------------------------------------------------------------------------


async def test_C20_two_recoverers_take_an_orphan_over_once(database_url: str) -> None:
    slow = Node("the stopped one")
    async with (
        worker(database_url, slow) as stopped,
        worker(database_url, free("another")) as second,
        worker(database_url, free("another")) as third,
    ):
        paused = await told(stopped, "ask", "hi")
        answered = await start(stopped, "ask", [output(calls(paused)[0])])
        first = await start(stopped, "work", "hi", stream=True)
        await slow.entered.wait()
        await freeze(database_url, stopped)
        assert sum(await asyncio.gather(recover(second), recover(third))) == 2
        assert texts(await outcome(second, answered))[-1] == "done by another"
        assert (await outcome(third, first))["status"] == "failed"
        assert await recover(second) == 0
    story = await sql(database_url, "SELECT event, actor FROM fermata.audit ORDER BY run_id, seq")
    assert [(row["event"], row["actor"]) for row in story] == [
        ("requested", "anonymous"),
        ("asked", None),
        ("answered", "anonymous"),
        ("taken_over", "system:recovery"),
        ("completed", None),
    ]


async def test_an_orphan_of_a_model_that_is_not_served_here_is_left_to_others(
    database_url: str,
) -> None:
    slow = Node("the stopped one")
    async with (
        worker(database_url, slow) as stopped,
        worker(database_url, free("the stranger"), models=False) as stranger,
        worker(database_url, free("the other")) as other,
    ):
        paused = await told(stopped, "ask", "hi")
        reply = await start(stopped, "ask", [output(calls(paused)[0])])
        await slow.entered.wait()
        await freeze(database_url, stopped)
        assert await recover(stranger) == 0
        assert await recover(other) == 1
        assert texts(await outcome(other, reply))[-1] == "done by the other"


async def test_C28_what_an_ending_process_cannot_finish_is_released_at_once(
    database_url: str,
) -> None:
    slow = Node("the ending one")
    async with (
        worker(database_url, slow) as ending,
        worker(database_url, free("the other")) as other,
    ):
        paused = await told(ending, "ask", "hi")
        reply = await start(ending, "ask", [output(calls(paused)[0])])
        await slow.entered.wait()
        await ending.close(timedelta(milliseconds=1))
        with pytest.raises(Unavailable):
            await reply.result()
        with pytest.raises(Unavailable):
            await start(ending, "work", "hi")
        assert await recover(other) == 1
        assert texts(await outcome(other, reply))[-1] == "done by the other"


async def test_C02_a_repeat_on_another_worker_attaches_to_the_running_response(
    database_url: str,
) -> None:
    slow = Node("the first")
    async with (
        worker(database_url, slow) as first,
        worker(database_url, free("the other")) as other,
    ):
        paused = await told(first, "ask", "hi")
        said = [output(calls(paused)[0])]
        reply = await start(first, "ask", said)
        await slow.entered.wait()
        repeats = [await start(other, "ask", said, stream=stream) for stream in (False, True)]
        assert {repeat.response_id for repeat in repeats} == {reply.response_id}
        slow.may_go_on.set()
        result = json.loads(await reply.result())
        assert json.loads(await repeats[0].result()) == result
        frames = [frame async for frames in repeats[1].frames() for frame in frames]
        assert check_stream(read_frames(frames)) == result


# --- sweeps ----------------------------------------------------------------------------------


async def days_pass(url: str, days: int) -> None:
    """Everything that expires does so that many days (and a second) earlier."""
    for table in ("runs", "responses"):
        await sql(
            url,
            f"UPDATE fermata.{table}"
            " SET expires_at = expires_at - make_interval(days => %s, secs => 1)",
            days,
        )


async def statuses(url: str, table: str) -> list[str]:
    rows = await sql(url, f"SELECT status FROM fermata.{table} ORDER BY status")
    return [row["status"] for row in rows]


async def test_P5_a_sweep_takes_what_waited_too_long_and_only_that(database_url: str) -> None:
    async with worker(database_url, free("one")) as one:
        old = [await told(one, "ask", "hi") for _ in range(2)]
        await days_pass(database_url, 7)
        young = await told(one, "ask", "hi")
        rows = await checkpoint_rows(database_url)
        assert await sweep(one.database, MONTH) == Swept(2, 0, 0)
        assert await statuses(database_url, "runs") == ["expired", "expired", "waiting"]
        assert await statuses(database_url, "interrupts") == ["expired", "expired", "pending"]
        assert await checkpoint_rows(database_url) == rows // 3
        assert await sweep(one.database, MONTH) == Swept(0, 0, 0)
        for gone in old:
            error = await refusal(one, [output(calls(gone)[0])])
            assert isinstance(error, InterruptExpired)
        assert texts(await told(one, "ask", [output(calls(young)[0])]))[-1] == "done by one"


@pytest.mark.parametrize("store", [True, False], ids=["stored", "store: false"])
@pytest.mark.parametrize("swept", [True, False], ids=["swept", "not swept"])
@pytest.mark.parametrize("named", [True, False], ids=["by response", "by call"])
async def test_an_answer_after_the_ttl_is_a_410_swept_or_not(
    database_url: str, named: bool, swept: bool, store: bool
) -> None:
    async with worker(database_url, free("one")) as one:
        paused = await told(one, "ask", "hi", store=store)
        await days_pass(database_url, 7)
        if swept:
            await sweep(one.database, MONTH)
        more = {"previous_response_id": paused["id"]} if named else {}
        error = await refusal(one, [output(calls(paused)[0])], **more)
        assert isinstance(error, InterruptExpired)
        assert (error.status, error.error_code) == (410, "interrupt_expired")


async def test_a_run_that_moves_does_not_expire(database_url: str) -> None:
    slow = Node("one")
    async with worker(database_url, slow) as one:
        paused = await told(one, "ask", "hi")
        reply = await start(one, "ask", [output(calls(paused)[0])])
        await slow.entered.wait()
        await days_pass(database_url, 365)
        assert (await sweep(one.database, MONTH)).expired_runs == 0
        slow.may_go_on.set()
        assert texts(json.loads(await reply.result()))[-1] == "done by one"


async def test_a_failed_answer_keeps_its_run_for_another_ttl(database_url: str) -> None:
    node = free("one")
    node.then = "raises"
    async with worker(database_url, node) as one:
        paused = await told(one, "ask", "hi")
        await days_pass(database_url, 6)
        failed = await told(one, "ask", [output(calls(paused)[0])])
        assert failed["status"] == "failed"
        await days_pass(database_url, 6)
        assert (await sweep(one.database, MONTH)).expired_runs == 0
        assert await statuses(database_url, "runs") == ["stalled"]
        await days_pass(database_url, 1)
        assert (await sweep(one.database, MONTH)).expired_runs == 1
        assert await checkpoint_rows(database_url) == 0


async def test_what_another_transaction_holds_is_skipped(database_url: str) -> None:
    async with worker(database_url, free("one")) as one:
        held = await told(one, "ask", "hi")
        await told(one, "ask", "hi")
        await days_pass(database_url, 7)
        connect = AsyncConnection.connect(database_url)
        async with await connect as holder, holder.transaction():
            await holder.execute(
                "SELECT 1 FROM fermata.runs WHERE response_id = %s FOR UPDATE", (held["id"],)
            )
            assert (await sweep(one.database, MONTH)).expired_runs == 1
        assert (await sweep(one.database, MONTH)).expired_runs == 1
        assert await statuses(database_url, "runs") == ["expired", "expired"]


async def test_two_sweeps_at_once_share_the_work(database_url: str) -> None:
    await sql(
        database_url,
        "INSERT INTO fermata.runs"
        " (id, tenant, requester, model, status, response_id, settings, expires_at)"
        " SELECT 'run_' || n, 't', 'anna', 'm', 'waiting', 'resp_' || n, '{}', now()"
        " FROM generate_series(1, 3000) n",
    )
    await sql(
        database_url,
        "INSERT INTO fermata.responses"
        " (id, tenant, run_id, model, status, stored, input, body, completed_at, expires_at)"
        " SELECT 'resp_' || n, 't', 'run_' || n, 'm', 'completed', true, '[]', '{}', now(), now()"
        " FROM generate_series(1, 3000) n",
    )
    async with (
        open_database(database_url, size=1) as first,
        open_database(database_url, size=1) as second,
    ):
        shares = await asyncio.gather(sweep(first, MONTH), sweep(second, MONTH))
    assert sum(share.expired_runs for share in shares) == 3000
    assert sum(share.deleted_responses for share in shares) == 3000
    assert set(await statuses(database_url, "runs")) == {"expired"}


async def test_P5_responses_and_ended_runs_go_at_their_retention(database_url: str) -> None:
    async with worker(database_url, free("one")) as one:
        paused = await told(one, "ask", "hi")
        ended = await told(one, "ask", [output(calls(paused)[0])])
        await days_pass(database_url, 29)
        assert await sweep(one.database, MONTH) == Swept(0, 0, 0)
        assert json.loads(await retrieve(one.database, ended["id"], ANYBODY)) == ended
        await days_pass(database_url, 1)
        with pytest.raises(FermataError, match="not found"):
            await retrieve(one.database, ended["id"], ANYBODY)
        assert await sweep(one.database, MONTH) == Swept(0, 1, 2)
    for rows in (await everything(database_url)).values():
        assert rows == []


async def test_an_expired_run_is_forgotten_after_its_retention(database_url: str) -> None:
    async with worker(database_url, free("one")) as one:
        await told(one, "ask", "hi")
        await days_pass(database_url, 7)
        assert await sweep(one.database, MONTH) == Swept(1, 0, 0)
        await days_pass(database_url, 30)
        assert await sweep(one.database, MONTH) == Swept(0, 1, 1)
    for rows in (await everything(database_url)).values():
        assert rows == []


async def test_signs_of_life_of_the_dead_are_cleared(database_url: str) -> None:
    async with worker(database_url, free("one")) as one:
        await sql(
            database_url,
            "INSERT INTO fermata.leases (id, owner, expires_at) SELECT 'proc_' || n,"
            " 'proc_' || n, now() - n * interval '4 minutes' FROM generate_series(1, 2) n",
        )
        await sweep(one.database, MONTH)
        rows = await sql(database_url, "SELECT id FROM fermata.leases")
        assert {row["id"] for row in rows} == {"proc_1", one.leases.owner}
