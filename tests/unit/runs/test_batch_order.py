"""Several questions of one pause are told in the order of their tasks, whoever asked first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send, interrupt

from gateway import Graph, RunSettings
from gateway.human.run import CurrentRun
from gateway.runs.drive import drive
from gateway.runs.events import Paused
from gateway.runs.graph import serve_graph
from gateway.runs.outset import Outset

NAMES = ["first", "second", "third"]


def backwards(*, in_subgraph: bool) -> StateGraph[Any, Any, Any, Any]:
    """Each task asks only when the one after it has asked."""
    asked = {name: asyncio.Event() for name in NAMES}

    async def ask(state: Any) -> dict[str, Any]:
        after = NAMES[NAMES.index(state["name"]) + 1 :]
        if after:
            await asked[after[0]].wait()
        asked[state["name"]].set()
        interrupt(state["name"])
        return {}

    node: Any = ask
    if in_subgraph:
        inner: Any = StateGraph(dict)
        inner.add_node("ask", ask)
        inner.add_edge(START, "ask")
        node = inner.compile()
    graph: Any = StateGraph(MessagesState)
    graph.add_node("each", node)
    graph.add_conditional_edges(
        START, lambda state: [Send("each", {"name": name}) for name in NAMES], ["each"]
    )
    return graph


@pytest.mark.parametrize("in_subgraph", [False, True])
@pytest.mark.parametrize("live", [False, True])
async def test_the_order_is_that_of_the_sends(in_subgraph: bool, live: bool) -> None:
    served = await serve_graph("m", Graph(backwards(in_subgraph=in_subgraph)))
    current = CurrentRun("run", "resp", "tenant", "subject", RunSettings())
    *_, paused = [event async for event in drive(served, Outset(live=live), current)]

    assert isinstance(paused, Paused)
    assert [one.value for one in paused.interrupts] == NAMES
