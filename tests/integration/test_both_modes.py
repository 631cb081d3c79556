"""JSON and stream hear a graph in two ways; what they tell must be the same."""

from __future__ import annotations

import asyncio
import gc
import operator
import sys
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.config import get_store
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Send, interrupt
from typing_extensions import TypedDict

from gateway import Graph
from tests.integration.api import Api, calls, output, serving, texts
from tests.integration.small_graphs import chain, counted_model, last_text
from tests.openresponses import Json


async def inner(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage("from inside")]}


async def deeper(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await counted_model("from a model").ainvoke("")]}


async def breaks(state: MessagesState) -> dict[str, Any]:
    raise ValueError("a secret")


async def asks(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"one: {interrupt('one?')}")]}


async def asks_again(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"two: {interrupt('two?')}")]}


async def calls_a_graph(state: MessagesState) -> Any:
    """Its own state is not the root's: only what it returns is told."""
    told = await chain(inner, deeper).compile().ainvoke(state)
    return {"messages": told["messages"][-1:]}


def inner_sync(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage("from a thread")]}


def calls_a_graph_in_a_thread(state: MessagesState) -> Any:
    return {"messages": chain(inner_sync).compile().invoke(state)["messages"][-1:]}


async def remembers(state: MessagesState) -> dict[str, Any]:
    store = get_store()
    await store.aput(("notes",), "said", {"text": last_text(state)})
    found = await store.aget(("notes",), "said")
    return {"messages": [AIMessage(f"noted: {found.value['text']}")]}


def parallel() -> Any:
    """Two subgraphs side by side."""
    graph: Any = StateGraph(MessagesState)
    for name in ("left", "right"):
        graph.add_node(name, chain(inner, deeper).compile())
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return graph


class Votes(TypedDict):
    votes: Annotated[list[str], operator.add]


async def vote(state: Votes) -> Any:
    return {"votes": [f"vote: {interrupt('vote?')}"]}


def sent() -> Any:
    """A subgraph for each of three, by `Send`."""
    graph: Any = StateGraph(Votes)
    graph.add_node("each", chain(vote, state=Votes).compile())
    graph.add_conditional_edges(
        START, lambda state: [Send("each", {"votes": []}) for _ in range(3)], ["each"]
    )
    graph.add_edge("each", END)
    return graph


@task
async def work(number: int) -> str:
    return f"{number}: {interrupt('sure?')}" if number else "0"


@entrypoint()
async def functional(state: Any) -> Any:
    done = await asyncio.gather(*(work(number) for number in range(3)))
    return AIMessage(", ".join(done))


def nested(*nodes: Any) -> Any:
    """These nodes two graphs deep, after one of the root's own."""
    middle: Any = StateGraph(MessagesState)
    middle.add_node("middle", chain(*nodes).compile())
    middle.add_edge(START, "middle")
    outer: Any = StateGraph(MessagesState)
    outer.add_node("inner", inner)
    outer.add_node("outer", middle.compile())
    outer.add_edge(START, "inner")
    outer.add_edge("inner", "outer")
    return outer


OWN = {
    "nested": Graph(nested(inner, deeper)),
    "called": Graph(chain(calls_a_graph)),
    "threaded": Graph(chain(calls_a_graph_in_a_thread)),
    "parallel": Graph(parallel()),
    "stored": Graph(chain(remembers).compile(store=InMemoryStore())),
    "broken": Graph(nested(inner, breaks)),
    "asking": Graph(nested(asks, asks_again)),
    "sent": Graph(sent(), input=lambda messages: {"votes": []}),
    "functional": Graph(functional),
}


@pytest.fixture(scope="module")
async def api(module_database_url: str) -> AsyncIterator[Api]:
    async with serving(module_database_url, OWN) as served:
        yield served


async def story(api: Api, model: str, *, stream: bool) -> list[Json]:
    """Every response from the first request to the end; each question is answered."""
    told = [await api.told(model, "hi", stream=stream)]
    while asked := calls(told[-1]):
        said = [output(call, f"yes {number}") for number, call in enumerate(asked)]
        more = {"previous_response_id": told[-1]["id"]}
        told.append(await api.told(model, said, stream=stream, **more))
    return told


@pytest.mark.parametrize("model", OWN)
async def test_both_modes_tell_the_same(api: Api, model: str) -> None:
    plain = await story(api, model, stream=False)
    streamed = await story(api, model, stream=True)
    assert [one["status"] for one in plain] == [one["status"] for one in streamed]
    assert [one["error"] for one in plain] == [one["error"] for one in streamed]
    assert [one["usage"] for one in plain] == [one["usage"] for one in streamed]
    assert [len(calls(one)) for one in plain] == [len(calls(one)) for one in streamed]
    # A pause in JSON carries only its calls.
    ends = [
        (sorted(texts(one)), sorted(texts(other)))
        for one, other in zip(plain, streamed, strict=True)
        if not calls(one)
    ]
    assert all(one == other for one, other in ends)


async def test_what_is_told_is_right(api: Api) -> None:
    """Else both could tell nothing."""
    said = {model: [texts(one) for one in await story(api, model, stream=False)] for model in OWN}
    assert said["nested"] == [["from inside", "from inside", "from a model"]]
    assert said["called"] == [["from a model"]]
    assert said["threaded"] == [["from a thread"]]
    assert sorted(said["parallel"][0]) == ["from a model"] * 2 + ["from inside"] * 2
    assert said["stored"] == [["noted: hi"]]
    assert said["broken"] == [["from inside", "from inside"]]
    assert said["asking"] == [[], [], ["two: yes 0"]]
    assert "vote: yes 2" in said["sent"][1][0]
    assert said["functional"] == [[], [], ["0, 1: yes 0, 2: yes 0"]]


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("name", ["talks", "asks", "breaks"])
async def test_a_run_leaves_no_generator_to_the_collector(
    database_url: str, name: str, stream: bool
) -> None:
    """The loop would close it in a task of its own, some turns later: a tenth of a short request,
    and a graph that is not through when its run is."""
    left: list[str] = []
    first, finalizer = sys.get_asyncgen_hooks()
    graphs = {
        "talks": Graph(chain(inner)),
        "asks": Graph(chain(asks)),
        "breaks": Graph(chain(breaks)),
    }
    async with serving(database_url, graphs) as api:
        sys.set_asyncgen_hooks(first, lambda agen: left.append(agen.__qualname__))
        try:
            await (api.stream(name, "hi") if stream else api.post({"model": name, "input": "hi"}))
            gc.collect()
        finally:
            sys.set_asyncgen_hooks(first, finalizer)
    assert left == []
