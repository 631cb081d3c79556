"""Replicas in one process, on one loop, that a test can kill, stop and wake; for the model check.

A replica is a coordinator with a pool of its own. One that is killed loses its pool, as a process
loses its connections; one that is stopped does not beat any more. Either way its leases are made to
be over in SQL: the database owns time, and nobody sleeps.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt
from psycopg import AsyncConnection
from psycopg.rows import dict_row

from gateway import Graph, current_run
from gateway.human.effects import Happened, async_effect
from gateway.runs import opening, withdrawal
from gateway.runs.catalog import serve_graphs
from gateway.runs.coordinator import Coordinator
from gateway.runs.endings import Keep
from gateway.runs.lease import Leases
from gateway.runs.principal import Principal
from gateway.runs.recovery import recover
from gateway.runs.replies import Reply
from gateway.runs.retrieval import retrieve
from gateway.store.db import open_database
from gateway.store.retention import sweep
from gateway.wire.request import parse_create
from tests.openresponses import Json

MODEL = "transfer"
KEEP = Keep(wait=timedelta(days=7), response=timedelta(days=30))
TTL = timedelta(minutes=10)  # longer than any example: a lease is over when the test says so
SOON = 10.0  # seconds until what must happen must have happened

_HERE: ContextVar[str] = ContextVar("replica")


@dataclass(eq=False)
class Visit:
    """A node that waits to be told how it goes on. `node` says which."""

    replica: str
    run_id: str
    response_id: str
    node: str
    key: str
    told: asyncio.Future[str]


@dataclass
class World:
    """What is outside of all replicas: the bank, and the nodes that wait."""

    bank: list[str] = field(default_factory=list)
    visits: list[Visit] = field(default_factory=list)

    async def visit(self, node: str, key: str) -> str:
        run, told = current_run(), asyncio.get_running_loop().create_future()
        visit = Visit(_HERE.get(), run.run_id, run.response_id, node, key, told)
        self.visits.append(visit)
        try:
            return str(await told)
        finally:
            self.visits.remove(visit)


async def soon(holds: Callable[[], object]) -> None:
    """Until it holds."""
    async with asyncio.timeout(SOON):
        while not holds():  # noqa: ASYNC110  # anything may be waited for
            await asyncio.sleep(0.001)


def graph_of(world: World) -> Graph:  # noqa: C901  # four small nodes
    """Asks, transfers once, may ask again; a node waits before and after all of it."""

    async def begin(state: MessagesState) -> dict[str, Any]:
        text = str(state["messages"][-1].text)
        if text.startswith("slowly "):
            await world.visit("begin", text)
        return {}

    async def act(state: MessagesState) -> dict[str, Any]:
        key = str(state["messages"][-1].text).removeprefix("slowly ")
        answer = interrupt({"question": f"Transfer {key}?"})
        how = await world.visit("act", key)
        if answer == "approve":
            await async_effect(
                f"{current_run().tenant}:{key}",
                lambda: pay(key, how),
                on_uncertain=lambda: Happened("paid") if key in world.bank else None,
            )
        if how == "raise":
            raise ValueError(key)
        return {"messages": [AIMessage(f"{key}: {answer}")] if how != "ask" else []}

    async def pay(key: str, how: str) -> str:
        world.bank.append(key)
        if how == "die":
            await asyncio.Event().wait()
        return "paid"

    async def more(state: MessagesState) -> dict[str, Any]:
        if isinstance(state["messages"][-1], AIMessage):
            return {}
        answer = interrupt({"question": "Anything else?"})
        if await world.visit("more", "") == "raise":
            raise ValueError("more")
        return {"messages": [AIMessage(f"and {answer}")]}

    graph = StateGraph(MessagesState)
    for node in (begin, act, more):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "begin")
    graph.add_edge("begin", "act")
    graph.add_edge("act", "more")
    graph.add_edge("more", END)
    return Graph(graph, input=lambda messages: {"messages": messages})


class Replica:
    """One coordinator. `alive` takes requests; a stopped one may still wake and write."""

    def __init__(self, name: str, tenant: str, sql: Observer) -> None:
        self.name = name
        self.state = "alive"
        self._sql = sql
        self._principal = Principal(tenant, "anna")
        self._pool = AsyncExitStack()

    async def start(self, url: str, world: World) -> Replica:
        database = await self._pool.enter_async_context(open_database(url, size=4))
        leases = Leases(database, TTL)
        served = await serve_graphs({MODEL: graph_of(world)})
        self.coordinator = Coordinator(database, leases, served, KEEP)
        await leases.beat()
        return self

    async def _as_itself(self, work: Awaitable[Any]) -> Any:
        _HERE.set(self.name)  # the tasks that this starts are its own
        return await work

    async def create(self, said: Any, **fields: Any) -> Reply:
        request = parse_create({"model": MODEL, "input": said, **fields})
        reply: Reply = await self._as_itself(
            opening.create(self.coordinator, request, self._principal)
        )
        return reply

    async def recover(self) -> None:
        await self._as_itself(recover(self.coordinator))

    async def cancel(self, response_id: str) -> Json:
        body = await withdrawal.cancel(self.coordinator, response_id, self._principal)
        return dict(json.loads(body))

    async def delete(self, response_id: str) -> None:
        await withdrawal.delete(self.coordinator, response_id, self._principal)

    async def read(self, response_id: str) -> Json:
        database = self.coordinator.database
        return dict(json.loads(await retrieve(database, response_id, self._principal)))

    async def sweep(self) -> None:
        await sweep(self.coordinator.database, KEEP.response)

    def runs(self, response_id: str) -> bool:
        return self.coordinator.running(response_id) is not None

    async def stop(self) -> None:
        """It does not beat any more; what it runs goes on when its nodes do."""
        self.state = "stopped"
        await self._sql(
            "UPDATE fermata.leases SET expires_at = now() - interval '1 second' WHERE owner = %s",
            self.coordinator.leases.owner,
        )

    async def wake(self) -> None:
        self.state = "alive"
        await self.coordinator.leases.beat()

    async def kill(self) -> None:
        """It reaches nothing any more."""
        await self.stop()
        self.state = "dead"
        await self._pool.aclose()


class Observer:
    """A connection of the test's own, to see and to age what is stored."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def open(self) -> Observer:
        self._conn = await AsyncConnection.connect(
            self._url, autocommit=True, row_factory=dict_row, prepare_threshold=1
        )
        return self

    async def close(self) -> None:
        await self._conn.close()

    async def __call__(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        cursor = await self._conn.execute(statement.encode(), values)
        return list(await cursor.fetchall()) if cursor.description else []
