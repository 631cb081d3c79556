"""The floor: the same graphs in this process, with a checkpointer and without HTTP.

A run is what a server that keeps nothing after completion has to do at least: up to the pause, from
the answer to the end, and the thread deleted. Checkpoints are written at the exit only.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.types import Command, Interrupt
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from tests.benchmarks.cases import Case
from tests.benchmarks.graphs import ANSWER, GRAPHS
from tests.benchmarks.measure import RunFailed

POOL_SIZE: Final = 10  # the gateway's default


class BareGraphs:
    """The graphs on `savers`, taken in turn."""

    def __init__(self, savers: Sequence[BaseCheckpointSaver[Any]]) -> None:
        sets = [
            (saver, {name: graph.compile(checkpointer=saver) for name, graph in GRAPHS.items()})
            for saver in savers
        ]
        self._turns = itertools.cycle(sets)

    async def run(self, case: Case) -> int:
        """One run of `case`; how many units it was."""
        saver, graphs = next(self._turns)
        graph, thread = graphs[case.model], uuid.uuid4().hex
        start = {"messages": [HumanMessage("Refund order 1001")]}
        pending, tokens = await _advance(graph, start, thread, streamed=case.streamed)
        if case.answers:
            answers = {question.id: ANSWER for question in pending}
            pending, _ = await _advance(
                graph, Command(resume=answers), thread, streamed=case.streamed
            )
        if pending:
            raise RunFailed("paused")
        await saver.adelete_thread(thread)
        return tokens if case.unit == "deltas" else 1


async def _advance(
    graph: Any, given: Any, thread: str, *, streamed: bool
) -> tuple[Sequence[Interrupt], int]:
    """Runs until the pause or the end: the questions, and how many tokens came by."""
    config: RunnableConfig = {"configurable": {"thread_id": thread}}
    if not streamed:
        state = await graph.ainvoke(given, config, durability="exit")
        return state.get("__interrupt__", ()), 0
    pending: Sequence[Interrupt] = ()
    tokens = 0
    modes = ["messages", "updates"]
    async for mode, event in graph.astream(given, config, stream_mode=modes, durability="exit"):
        if mode == "messages":
            tokens += bool(event[0].text)
        else:
            pending = event.get("__interrupt__", pending)
    return pending, tokens


def in_memory() -> BareGraphs:
    return BareGraphs([InMemorySaver()])


@asynccontextmanager
async def on_postgres(dsn: str, *, prepared: bool) -> AsyncIterator[BareGraphs]:
    """A saver for each connection: one alone does everything under one lock, over any pool."""
    options = {
        "autocommit": True,
        "prepare_threshold": 0 if prepared else None,
        "row_factory": dict_row,
    }
    pool: AsyncConnectionPool[AsyncConnection[DictRow]] = AsyncConnectionPool(
        dsn, kwargs=options, min_size=POOL_SIZE, max_size=POOL_SIZE, open=False
    )
    async with pool:
        savers = [AsyncPostgresSaver(pool) for _ in range(POOL_SIZE)]
        await savers[0].setup()
        yield BareGraphs(savers)
