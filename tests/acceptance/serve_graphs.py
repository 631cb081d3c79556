"""Small graphs for the acceptance tests, served beside the demonstration graphs."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from gateway import Graph, async_effect, current_run
from graphs import GRAPHS as DEMOS


def one_node(action: Any) -> StateGraph[Any, Any, Any, Any]:
    graph = StateGraph(MessagesState)
    graph.add_node("act", action)
    graph.add_edge(START, "act")
    graph.add_edge("act", END)
    return graph


def last_text(state: MessagesState) -> str:
    return str(state["messages"][-1].text)


async def ask_twice(state: MessagesState) -> dict[str, Any]:
    first = interrupt({"question": "first?"})
    second = interrupt({"question": "second?"})
    return {"messages": [AIMessage(f"first={first} second={second}")]}


async def sleep_and_answer(state: MessagesState) -> dict[str, Any]:
    """Sleeps as many seconds as the text says; "ask" makes it pause."""
    text = last_text(state)
    if text == "ask":
        text = str(interrupt({"question": "how long?"}))
    await asyncio.sleep(float(text))
    return {"messages": [AIMessage(f"slept {text}")]}


async def fail(state: MessagesState) -> dict[str, Any]:
    raise ValueError("this graph always fails")


async def fail_once_after_answer(state: MessagesState) -> dict[str, Any]:
    """Raises the first time that an answer arrives; the effect before the exception is kept."""
    answer = interrupt({"question": "go on?"})
    run_id, performed = current_run().run_id, list[str]()
    for name in ("effect", "attempt"):
        await async_effect(f"{run_id}:{name}", partial(performed.append, name))
    if "attempt" in performed:
        raise ValueError("the first attempt fails")
    return {"messages": [AIMessage(f"went on with {answer}")]}


GRAPHS = {
    **DEMOS,
    "two-questions": Graph(one_node(ask_twice), interrupt_name="ask"),
    "sleepy": Graph(one_node(sleep_and_answer)),
    "failing": Graph(one_node(fail)),
    "flaky": Graph(one_node(fail_once_after_answer)),
}
