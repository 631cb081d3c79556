"""Which nodes speak live: whose tokens may be shown before the node has finished.

A token that was streamed cannot be unsent, and only what ends up in the state's messages is an
item. So a node's tokens are shown as they come only if it is known beforehand that the message they
belong to goes into the state; the text of every other node is shown when its update confirms it.
Being wrong in one direction costs a moment's delay, in the other it shows people what a model only
thought; so everything that is not understood does not speak.

The author may say it (`Graph(live={"answer"})`). Otherwise it is read from the node's source, once
at start-up: `speech_flow` follows the message from the model's call to the return. Two ready-made
nodes are too clever for that and known by name: the model node of LangChain's `create_agent`
(unless middleware wraps the model's call, which may call it twice and keep one answer) and the
agent node of `create_react_agent` (unless a function chooses its model: it may call others).

Nodes are named by their path, `node` in the root graph and `subgraph:node` below, as the namespace
and the `langgraph_node` of a streamed message tell it. A subgraph added as a node hands its
messages on when it ends, so its nodes speak if both graphs have a `messages` channel. A `@task` of
a functional entrypoint streams under its own name beside the entrypoint's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from langgraph.pregel import Pregel

from gateway.runs.speech_flow import carried_sources

_MESSAGES = "messages"


def speaking_nodes(graph: Pregel[Any, Any, Any, Any]) -> frozenset[str]:
    """The paths of the nodes, subgraphs' and tasks' included, whose tokens may be shown at once."""
    return frozenset(_speaking(graph))


def _speaking(graph: Pregel[Any, Any, Any, Any]) -> Iterator[str]:
    functional = _is_functional(graph)
    if not functional and _MESSAGES not in graph.channels:
        return
    for name, node in graph.nodes.items():
        if name == "__start__" or node.retry_policy or graph.retry_policy:
            continue  # a second attempt would say it again, and the first is not in the state
        if isinstance(node.bound, Pregel):
            yield from (f"{name}:{inner}" for inner in _handed_on(node.bound))
        else:
            sources = _spoken_by(node.bound, functional=functional)
            # Nodes of a StateGraph may share a task; one that drops what it says looks the same.
            tasks = sources - {""} if functional else frozenset[str]()
            yield from ({name} if "" in sources else set()) | tasks


def _handed_on(subgraph: Pregel[Any, Any, Any, Any]) -> Iterator[str]:
    outputs = subgraph.output_channels
    if _MESSAGES in ([outputs] if isinstance(outputs, str) else outputs):
        yield from _speaking(subgraph)


def _is_functional(graph: Pregel[Any, Any, Any, Any]) -> bool:
    return type(graph) is Pregel and graph.output_channels == "__end__"


def _spoken_by(bound: Any, *, functional: bool) -> frozenset[str]:
    function = _function_of(bound)
    if function is None:
        return frozenset()
    known = _ready_made(function)
    if known is not None:
        return frozenset({""}) if known else frozenset()
    return carried_sources(function, final_value=functional)


def _function_of(bound: Any) -> Callable[..., Any] | None:
    """What the node runs under `astream`: the async function, or the sync one behind a thread."""
    if type(bound).__name__ not in {"RunnableCallable", "RunnableLambda"}:
        return None
    sync, asynchronous = getattr(bound, "func", None), getattr(bound, "afunc", None)
    wrapped = inspect.unwrap(asynchronous) if asynchronous is not None else None
    chosen = sync if sync is not None and wrapped in {sync, None} else asynchronous
    if chosen is None or inspect.isroutine(chosen):
        return chosen
    call = getattr(type(chosen), "__call__", None)  # noqa: B004  # its source is wanted
    return call.__get__(chosen) if inspect.isfunction(call) else None


def _ready_made(function: Callable[..., Any]) -> bool | None:
    """True or False for the nodes that are known by name, None for all others."""
    origin = (function.__module__, getattr(function, "__qualname__", ""))
    if origin == ("langchain.agents.factory", "create_agent.<locals>.amodel_node"):
        return inspect.getclosurevars(function).nonlocals.get("awrap_model_call_handler") is None
    if origin == (
        "langgraph.prebuilt.chat_agent_executor",
        "create_react_agent.<locals>.acall_model",
    ):
        return inspect.getclosurevars(function).nonlocals.get("is_dynamic_model") is False
    return None
