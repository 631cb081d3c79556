"""A background run changes hands: it goes on after its last finished step, and what was told stays.

A worker is a coordinator of its own, as in `test_leases`; one that died is one that does not beat.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from gateway import Graph
from gateway.errors import LeaseLost
from gateway.runs import opening
from gateway.runs.catalog import serve_graphs
from gateway.runs.confined import confine_graphs
from gateway.runs.coordinator import Coordinator
from gateway.runs.endings import Keep
from gateway.runs.following import FollowedReply
from gateway.runs.lease import Leases
from gateway.runs.pickup import start_queued
from gateway.runs.principal import ANYBODY
from gateway.runs.recovery import recover
from gateway.runs.withdrawal import cancel
from gateway.store.db import open_database
from gateway.wire.request import parse_create
from tests.integration.api import calls, output, texts
from tests.integration.small_graphs import chain
from tests.integration.test_background import until
from tests.integration.test_leases import everything, freeze, sql
from tests.openresponses import Json, check_stream, read_frames

TTL = timedelta(seconds=30)
PATIENCE = 30.0  # seconds; the machine may be busy


class Voice(BaseChatModel):
    """Says these tokens; after the first `until` it says nothing for ever."""

    tokens: list[str]
    until: int = 100

    @property
    def _llm_type(self) -> str:
        return "voice"

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("".join(self.tokens)))])

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        for number, token in enumerate(self.tokens):
            if number == self.until:
                await asyncio.Event().wait()
            yield ChatGenerationChunk(message=AIMessageChunk(token))


class Values(MessagesState):
    text: str
    large: float
    flag: bool
    nothing: None


@dataclass
class Worker:
    """What the nodes of this worker do."""

    name: str
    dies: bool = False
    says: list[str] = field(default_factory=lambda: ["one ", "two ", "three"])
    until: int = 100
    did: list[str] = field(default_factory=list)
    at: asyncio.Event = field(default_factory=asyncio.Event)
    fails: int = 0

    async def here(self) -> None:
        """Where this worker dies, if it does."""
        self.at.set()
        if self.dies:
            await asyncio.Event().wait()

    async def first(self, state: MessagesState) -> dict[str, Any]:
        self.did.append("first")
        return {"messages": [AIMessage("the first")]}

    async def second(self, state: MessagesState) -> dict[str, Any]:
        self.did.append("second")
        await self.here()
        return {"messages": [AIMessage("the second")]}

    async def speak(self, state: MessagesState) -> dict[str, Any]:
        self.did.append("speak")
        self.at.set()
        return {"messages": [await Voice(tokens=self.says, until=self.until).ainvoke("")]}

    async def ask(self, state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"answer: {interrupt('Go on?')}")]}

    async def inner(self, state: MessagesState) -> Any:
        self.did.append("inner")
        return await self.graph_inside.ainvoke(state)

    async def flaky(self, state: MessagesState) -> dict[str, Any]:
        self.did.append("flaky")
        self.fails -= 1
        if self.fails >= 0:
            raise ValueError("a secret")
        return {"messages": [AIMessage("through")]}

    def blocked(self, state: MessagesState) -> dict[str, Any]:
        self.did.append("blocked")
        BLOCKED.set()
        assert MAY_GO_ON.wait(PATIENCE)
        self.did.append("through")
        return {"messages": [AIMessage("a sync node")]}

    def graphs(self) -> dict[str, Graph]:
        self.graph_inside = chain(self.first, self.second).compile()
        return {
            "steps": Graph(chain(self.first, self.second)),
            "voice": Graph(chain(self.first, self.speak), live=True),
            "ask": Graph(chain(self.ask, self.first, self.second)),
            "nested": Graph(chain(self.inner)),
            "tasks": Graph(self.tasks()),
            "retried": Graph(chain(self.first, self.flaky), retries=2, backoff=timedelta()),
            "sync": Graph(chain(self.first, self.blocked)),
            "values": Graph(self.values()),
        }

    def values(self) -> Any:
        """Values that a JSON column of PostgreSQL refuses, or gives back as others."""

        async def write(state: Values) -> dict[str, Any]:
            return {"text": "a\0b", "large": 1e20, "flag": True, "nothing": None}

        async def read(state: Values) -> dict[str, Any]:
            await self.here()
            held = [state["text"], state["large"], state["flag"], state["nothing"]]
            return {"messages": [AIMessage(repr(held))]}

        graph: Any = StateGraph(Values)
        graph.add_sequence([("write", write), ("read", read)])
        graph.add_edge(START, "write")
        return graph

    def tasks(self) -> Any:
        @task
        async def one() -> str:
            self.did.append("one")
            return "the first"

        @task
        async def two() -> str:
            self.did.append("two")
            await self.here()
            return "the second"

        @entrypoint()
        async def flow(said: str) -> str:
            return f"{await one()}, {await two()}"

        return flow


BLOCKED, MAY_GO_ON = threading.Event(), threading.Event()


@asynccontextmanager
async def running(url: str, worker: Worker) -> AsyncIterator[Coordinator]:
    confine_graphs(asyncio.get_running_loop())
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(url, size=3))
        leases = Leases(database, TTL)
        keep = Keep(wait=timedelta(days=7), response=timedelta(days=30))
        coordinator = Coordinator(database, leases, await serve_graphs(worker.graphs()), keep)
        await leases.beat()
        watching = asyncio.create_task(coordinator.watch_for_ever())
        yield coordinator
        await coordinator.close(timedelta(milliseconds=1))
        watching.cancel()


@asynccontextmanager
async def mortals(url: str, number: int) -> AsyncIterator[tuple[list[Worker], list[Coordinator]]]:
    """So many workers that die in the second step."""
    workers = [Worker(str(one), dies=True) for one in range(number)]
    async with AsyncExitStack() as stack:
        yield workers, [await stack.enter_async_context(running(url, one)) for one in workers]


async def queued(coordinator: Coordinator, model: str, said: Any, **fields: Any) -> FollowedReply:
    body = {"model": model, "input": said, "background": True, **fields}
    reply = await opening.create(coordinator, parse_create(body), ANYBODY)
    assert isinstance(reply, FollowedReply)
    return reply


async def told(coordinator: Coordinator, reply: FollowedReply, after: int = -1) -> list[Json]:
    """The events of the stream, as this worker tells them."""
    follower = FollowedReply(coordinator, ANYBODY.tenant, reply.response_id, after)
    async with asyncio.timeout(PATIENCE):
        return read_frames([frame async for frames in follower.frames() for frame in frames])


async def on_record(url: str, reply: FollowedReply, number: int) -> list[Json]:
    """The events that are on record, once there are so many."""
    async with asyncio.timeout(PATIENCE):
        while True:
            rows = await sql(
                url,
                "SELECT frames FROM fermata.events WHERE response_id = %s ORDER BY first",
                reply.response_id,
            )
            frames = b"".join(row["frames"] for row in rows)
            events = read_frames(frames + b"data: [DONE]\n\n")
            if len(events) >= number:
                return events
            await asyncio.sleep(0.02)


async def taken_over(url: str, dead: Coordinator, other: Coordinator) -> None:
    await freeze(url, dead)
    assert await recover(other) == 1
    assert await recover(other) == 0


async def outcome(coordinator: Coordinator, reply: FollowedReply) -> Json:
    async with asyncio.timeout(PATIENCE):
        return dict(json.loads(await coordinator.outcome_of(ANYBODY.tenant, reply.response_id)))


async def nothing_stays(url: str) -> None:
    rows = await everything(url)
    assert not any(found for table, found in rows.items() if "check" in table)


# --- the step --------------------------------------------------------------------------------


async def test_C21_what_was_accepted_runs_although_its_process_died(database_url: str) -> None:
    async with running(database_url, Worker("dead")) as dead:
        reply = await queued(dead, "steps", "hi")
    other = Worker("other")
    async with running(database_url, other) as alive:
        assert await start_queued(alive)
        assert not await start_queued(alive)
        assert texts(await outcome(alive, reply)) == ["the first", "the second"]
    assert other.did == ["first", "second"]


@pytest.mark.parametrize("model", ["steps", "ask", "nested", "tasks"])
async def test_C20_a_takeover_goes_on_after_the_last_finished_step(
    database_url: str, model: str
) -> None:
    dead, other = Worker("dead", dies=True), Worker("other")
    async with running(database_url, dead) as stopped, running(database_url, other) as alive:
        if model == "ask":
            body = parse_create({"model": "ask", "input": "hi"})
            asked = json.loads(await (await opening.create(stopped, body, ANYBODY)).result())
            reply = await queued(stopped, model, [output(calls(asked)[0])])
        else:
            reply = await queued(stopped, model, "hi")
        assert await start_queued(stopped)
        await dead.at.wait()
        if model == "tasks":  # a task of an entrypoint is no step: its result is written soon after
            await until_written(database_url)
        await taken_over(database_url, stopped, alive)
        ended = await outcome(alive, reply)
        events = await told(alive, reply)
        await nothing_stays(database_url)
        (row,) = await sql(
            database_url, "SELECT takeovers FROM fermata.responses WHERE id = %s", ended["id"]
        )
        assert row["takeovers"] == 1
        assert check_stream(events)["output"] == ended["output"] or calls(ended)
    finished = {"tasks": ["one"], "nested": ["inner", "first"]}.get(model, ["first"])
    assert dead.did[: len(finished)] == finished
    again = {"tasks": ["two"], "nested": ["inner", "second"]}.get(model, ["second"])
    assert other.did == again
    said = {
        "ask": ["answer: yes", "the first", "the second"],
        "tasks": ["the first, the second"],
    }.get(model, ["the first", "the second"])
    assert texts(ended) == said


async def test_a_takeover_has_every_value_as_it_was(database_url: str) -> None:
    dead, other = Worker("dead", dies=True), Worker("other")
    async with running(database_url, dead) as stopped, running(database_url, other) as alive:
        reply = await queued(stopped, "values", "hi")
        assert await start_queued(stopped)
        await dead.at.wait()
        await taken_over(database_url, stopped, alive)
        assert texts(await outcome(alive, reply)) == [repr(["a\0b", 1e20, True, None])]


async def spoil(url: str) -> None:
    """A state that this code cannot read back."""
    await sql(
        url, 'UPDATE checkpoints SET checkpoint = checkpoint || \'{"channel_values": {"x": 1e20}}\''
    )


async def test_a_run_that_cannot_be_read_back_fails_in_the_end(database_url: str) -> None:
    async with mortals(database_url, 5) as (workers, all_of_them):
        reply = await queued(all_of_them[0], "steps", "hi")
        assert await start_queued(all_of_them[0])
        await workers[0].at.wait()
        await spoil(database_url)
        await freeze(database_url, all_of_them[0])
        for tries in (1, 2, 3):
            assert await recover(all_of_them[tries]) == 0, "another may have the code for it"
            (row,) = await sql(database_url, "SELECT status, takeovers FROM fermata.responses")
            assert row == {"status": "in_progress", "takeovers": tries}
            await sql(database_url, "UPDATE fermata.leases SET expires_at = now()")
        assert await recover(all_of_them[4]) == 1
        ended = await outcome(all_of_them[4], reply)
        assert (ended["status"], ended["error"]["code"]) == ("failed", "run_failed")
        assert "cannot be read" in ended["error"]["message"]
        await nothing_stays(database_url)


async def test_a_run_that_cannot_be_read_back_can_be_cancelled(database_url: str) -> None:
    dead, other = Worker("dead", dies=True), Worker("other")
    async with running(database_url, dead) as stopped, running(database_url, other) as alive:
        reply = await queued(stopped, "steps", "hi")
        assert await start_queued(stopped)
        await dead.at.wait()
        await spoil(database_url)
        await sql(database_url, "UPDATE fermata.responses SET cancelling = true")
        await taken_over(database_url, stopped, alive)
        assert (await outcome(alive, reply))["status"] == "cancelled"
        await nothing_stays(database_url)


async def until_written(url: str) -> None:
    await until(lambda: sql(url, "SELECT 1 FROM checkpoint_writes WHERE channel = '__return__'"))


async def test_a_long_run_keeps_its_newest_checkpoint_only(database_url: str) -> None:
    dead = Worker("dead", dies=True)
    async with running(database_url, dead) as stopped:
        await queued(stopped, "steps", "hi")
        assert await start_queued(stopped)
        await dead.at.wait()
        rows = await everything(database_url)
        assert len(rows["checkpoints"]) == 1
        assert rows["checkpoint_writes"] == []


# --- what was told ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("says", "items"),
    [
        (["one ", "two ", "three"], [("completed", "one two three")]),
        (["one two three ", "four"], [("completed", "one two three four")]),
        (["one ", "or two"], [("incomplete", "one two "), ("completed", "one or two")]),
        (["One"], [("incomplete", "one two "), ("completed", "One")]),
    ],
    ids=["the same", "more", "another", "at once another"],
)
async def test_what_was_told_stays(
    database_url: str, says: list[str], items: list[tuple[str, str]]
) -> None:
    dead, other = Worker("dead", until=2), Worker("other", says=says)
    async with running(database_url, dead) as stopped, running(database_url, other) as alive:
        reply = await queued(stopped, "voice", "hi", stream=True)
        assert await start_queued(stopped)
        before = await on_record(database_url, reply, 13)
        assert before[-1]["delta"] == "two "
        await taken_over(database_url, stopped, alive)
        events = await told(alive, reply)
        assert events[: len(before)] == before
        assert await told(alive, reply, len(before) - 1) == events[len(before) :]
        last = check_stream(events)
        assert last["output"] == (await outcome(alive, reply))["output"]
        assert [(item["status"], item["content"][0]["text"]) for item in last["output"]] == [
            ("completed", "the first"),
            *items,
        ]
    assert other.did == ["speak"]


async def test_P4_a_stopped_holder_that_wakes_writes_nothing(database_url: str) -> None:
    dead, other = Worker("dead", dies=True), Worker("other")
    async with running(database_url, dead) as stopped, running(database_url, other) as alive:
        reply = await queued(stopped, "steps", "hi")
        assert await start_queued(stopped)
        await dead.at.wait()
        execution = stopped.running(reply.response_id)
        assert execution is not None
        assert execution.journal is not None
        await taken_over(database_url, stopped, alive)
        await outcome(alive, reply)
        before = await everything(database_url)
        events = await told(alive, reply)
        with pytest.raises(LeaseLost):
            await execution.journal.put([b"event: nonsense\ndata: {}\n\n"] * 70)
        await stopped.leases.beat()
        await until(lambda: stopped.running(reply.response_id) is None)
        assert await everything(database_url) == before
        assert await told(alive, reply) == events


# --- ends ------------------------------------------------------------------------------------


async def test_a_run_that_ends_its_holders_fails_in_the_end(database_url: str) -> None:
    async with mortals(database_url, 5) as (workers, all_of_them):
        reply = await queued(all_of_them[0], "steps", "hi")
        assert await start_queued(all_of_them[0])
        for number in range(4):
            async with asyncio.timeout(PATIENCE):
                await workers[number].at.wait()
            await taken_over(database_url, all_of_them[number], all_of_them[number + 1])
        ended = await outcome(all_of_them[4], reply)
        assert ended["status"] == "failed"
        assert texts(ended) == ["the first"]
        assert check_stream(await told(all_of_them[4], reply))["status"] == "failed"
        await nothing_stays(database_url)


async def test_C28_a_holder_that_ends_in_order_hands_over_and_does_not_count(
    database_url: str,
) -> None:
    ending, other = Worker("ending", dies=True), Worker("other")
    async with running(database_url, other) as alive:
        async with running(database_url, ending) as closing:
            reply = await queued(closing, "steps", "hi")
            assert await start_queued(closing)
            await ending.at.wait()
        assert await recover(alive) == 1, "at once: nobody waits for the lease to end"
        assert texts(await outcome(alive, reply)) == ["the first", "the second"]
        (row,) = await sql(database_url, "SELECT takeovers FROM fermata.responses")
        assert row["takeovers"] == 0
        story = await sql(database_url, "SELECT event FROM fermata.audit ORDER BY seq")
        assert [one["event"] for one in story] == ["requested", "queued", "taken_over", "completed"]
    assert other.did == ["second"]


async def test_what_was_to_be_cancelled_is_not_run_again(database_url: str) -> None:
    dead, other = Worker("dead", dies=True), Worker("other")
    async with running(database_url, dead) as stopped, running(database_url, other) as alive:
        reply = await queued(stopped, "steps", "hi")
        assert await start_queued(stopped)
        await dead.at.wait()
        await sql(
            database_url,
            "UPDATE fermata.responses SET cancelling = true WHERE id = %s",
            reply.response_id,
        )
        await taken_over(database_url, stopped, alive)
        assert (await outcome(alive, reply))["status"] == "cancelled"
    assert other.did == []


# --- retries ---------------------------------------------------------------------------------


@pytest.mark.parametrize("background", [False, True], ids=["foreground", "background"])
@pytest.mark.parametrize("fails", [2, 3])
async def test_a_graph_whose_author_allows_it_is_tried_again(
    database_url: str, fails: int, background: bool
) -> None:
    one = Worker("one", fails=fails)
    async with running(database_url, one) as alive:
        body = {"model": "retried", "input": "hi", "stream": True, "background": background}
        reply = await opening.create(alive, parse_create(body), ANYBODY)
        if background:
            assert await start_queued(alive)
        async with asyncio.timeout(PATIENCE):
            last = check_stream(
                read_frames([frame async for frames in reply.frames() for frame in frames])
            )
        through = fails == 2
        assert last["status"] == ("completed" if through else "failed")
        assert texts(last) == (["the first", "through"] if through else ["the first"])
        await nothing_stays(database_url)
    assert one.did == ["first", "flaky", "flaky", "flaky"]


# --- sync nodes ------------------------------------------------------------------------------


@pytest.fixture
def blocked() -> Any:
    BLOCKED.clear()
    MAY_GO_ON.clear()
    yield BLOCKED
    MAY_GO_ON.set()


async def is_blocked() -> None:
    await until(BLOCKED.is_set)


async def test_a_sync_node_is_waited_for_before_its_response_is_cancelled(
    database_url: str, blocked: Any
) -> None:
    one = Worker("one")
    async with running(database_url, one) as alive:
        reply = await queued(alive, "sync", "hi")
        assert await start_queued(alive)
        await is_blocked()
        cancelling = asyncio.create_task(cancel(alive, reply.response_id, ANYBODY))
        done, _ = await asyncio.wait([cancelling], timeout=0.3)
        assert not done
        (lease,) = await sql(database_url, "SELECT 1 FROM fermata.leases WHERE id <> owner")
        assert lease
        MAY_GO_ON.set()
        assert json.loads(await cancelling)["status"] == "cancelled"
    assert one.did == ["first", "blocked", "through"]


async def test_a_sync_node_is_waited_for_before_the_lease_goes(
    database_url: str, blocked: Any
) -> None:
    ending, other = Worker("ending"), Worker("other")
    async with running(database_url, other) as alive, running(database_url, ending) as closing:
        reply = await queued(closing, "sync", "hi")
        assert await start_queued(closing)
        await is_blocked()
        end = asyncio.create_task(closing.close(timedelta(milliseconds=1)))
        done, _ = await asyncio.wait([end], timeout=0.3)
        assert not done
        assert await recover(alive) == 0, "its thread is still at work"
        MAY_GO_ON.set()
        await end
        assert await recover(alive) == 1
        assert texts(await outcome(alive, reply)) == ["the first", "a sync node"]
    assert ending.did == ["first", "blocked", "through"]
    assert other.did == ["blocked", "through"]
