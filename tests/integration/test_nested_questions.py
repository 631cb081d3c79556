"""Nodes that call subgraphs: a question is asked once, what follows its answer is done once.

With exit durability LangGraph keeps nothing of a subgraph that has ended, and starts it anew when
its node is resumed for another question.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from gateway import Graph, current_run
from tests.integration.api import Api, calls, output, serving, texts
from tests.integration.small_graphs import chain, parrot
from tests.integration.test_background import polled
from tests.openresponses import Json

PAID: Counter[str] = Counter()
"""How often, by run."""
MODES = {
    "json": {},
    "stream": {"stream": True},
    "background": {"background": True},
}


async def ask_pay(state: MessagesState) -> dict[str, Any]:
    if interrupt("pay?") == "yes":
        PAID[current_run().run_id] += 1
    return {"messages": [AIMessage("paid")]}


async def ask_ship(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"shipped: {interrupt('ship?')}")]}


async def two_graphs(state: MessagesState) -> dict[str, Any]:
    paid = await chain(ask_pay).compile().ainvoke({"messages": state["messages"]})
    shipped = await chain(ask_ship).compile().ainvoke({"messages": state["messages"]})
    return {"messages": [AIMessage(f"{paid['messages'][-1].text}, {shipped['messages'][-1].text}")]}


async def graph_and_question(state: MessagesState) -> dict[str, Any]:
    paid = await chain(ask_pay).compile().ainvoke({"messages": state["messages"]})
    return {"messages": [AIMessage(f"{paid['messages'][-1].text}, shipped: {interrupt('ship?')}")]}


async def calls_two_deep(state: MessagesState) -> dict[str, Any]:
    """The graph that asks is called by a node of a graph that is called."""
    done = await chain(two_graphs).compile().ainvoke({"messages": state["messages"]})
    return {"messages": done["messages"][-1:]}


def without_checkpoints() -> Any:
    graph: Any = StateGraph(MessagesState)
    graph.add_node("inner", chain(parrot).compile(checkpointer=False))
    graph.add_edge(START, "inner")
    graph.add_edge("inner", END)
    return graph


OWN = {
    "two graphs": Graph(chain(two_graphs)),
    "graph and question": Graph(chain(graph_and_question)),
    "two deep": Graph(chain(calls_two_deep)),
    "without": Graph(without_checkpoints()),
    "without, tried again": Graph(without_checkpoints(), retries=1),
}


@pytest.fixture(scope="module")
async def api(module_database_url: str) -> AsyncIterator[Api]:
    async with serving(module_database_url, OWN) as served:
        yield served


async def told(api: Api, model: str, said: Any, mode: str, **more: Any) -> Json:
    """The response, once it has ended."""
    if mode != "background":
        return await api.told(model, said, stream=mode == "stream", **more)
    return await polled(api, await api.create(model, said, background=True, **more))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("model", ["two graphs", "graph and question", "two deep"])
async def test_each_question_of_a_node_s_graphs_is_asked_once(
    api: Api, model: str, mode: str
) -> None:
    response, asked = await told(api, model, "hi", mode), []
    while (open_calls := calls(response)) and len(asked) < 4:
        asked += [call["arguments"] for call in open_calls]
        said = [output(call) for call in open_calls]
        response = await told(api, model, said, mode, previous_response_id=response["id"])
    assert ["pay?" in asked[0], "ship?" in asked[1], len(asked)] == [True, True, 2]
    assert texts(response) == ["paid, shipped: yes"]
    run_id = await api.run_of(response)
    assert PAID[run_id] == 1
    assert await api.checkpoint_rows(run_id) == 0


@pytest.mark.parametrize("mode", MODES)
async def test_what_a_long_resumed_run_leaves_does_not_grow_with_its_steps(
    api: Api, mode: str
) -> None:
    """A pause keeps the newest checkpoint of each graph."""
    asked = await told(api, "graph and question", "hi", mode)
    again = await told(
        api,
        "graph and question",
        [output(calls(asked)[0])],
        mode,
        previous_response_id=asked["id"],
    )
    rows = await api.sql(
        "SELECT checkpoint_ns, count(*) AS n FROM checkpoints WHERE thread_id = %s GROUP BY 1",
        await api.run_of(again),
    )
    assert len(rows) == 2
    assert max(row["n"] for row in rows) <= 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("model", ["without", "without, tried again"])
async def test_a_subgraph_without_checkpoints_runs_in_every_mode(
    api: Api, model: str, mode: str
) -> None:
    done = await told(api, model, "hi", mode)
    assert (done["status"], done["error"], texts(done)) == ("completed", None, ["heard: hi"])
