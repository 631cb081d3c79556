"""What a served graph is given when pydantic cannot describe its state, and what a factory is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

from gateway import Graph
from gateway.errors import StartupError
from gateway.runs.graph import serve_graph


class WithMessages(MessagesState, total=False):
    call: Callable[[], None]  # has no JSON Schema


class Without(TypedDict):
    call: Callable[[], None]


def one_node(state: Any) -> StateGraph[Any, Any, Any, Any]:
    graph: Any = StateGraph(state)
    graph.add_node("node", lambda given: {})
    graph.add_edge(START, "node")
    return graph


async def test_a_state_with_messages_is_given_them() -> None:
    served = await serve_graph("m", Graph(one_node(WithMessages)))
    said = [HumanMessage("Hello")]
    assert served.first_input(said) == {"messages": said}


async def test_any_other_must_say_what_it_takes() -> None:
    with pytest.raises(StartupError, match=r"'m'.*Graph\(input=…\)"):
        await serve_graph("m", Graph(one_node(Without)))

    served = await serve_graph("m", Graph(one_node(Without), input=lambda messages: {"call": len}))
    assert served.first_input([]) == {"call": len}


async def test_a_factory_that_raises_says_of_which_model() -> None:
    def make() -> None:
        raise KeyError("MY_MODEL_KEY")

    with pytest.raises(KeyError) as raised:
        await serve_graph("small", Graph(make))  # type: ignore[arg-type]  # it makes nothing
    assert raised.value.__notes__ == ["While the graph of model 'small' was made."]


@pytest.mark.parametrize(
    ("factory", "given"),
    [
        (list, []),
        (lambda config: [config], [{"configurable": {}}]),
        (lambda runtime: [runtime], [{"configurable": {}}]),
        (lambda config=None: [config], [{"configurable": {}}]),
        (lambda model="small": [model], ["small"]),
        (lambda *names, **options: [names, options], [(), {}]),
    ],
)
async def test_what_a_factory_is_called_with(
    factory: Callable[..., list[Any]], given: list[Any]
) -> None:
    """A config, if there is something to fill with it; what has a default is its own."""
    got: list[Any] = []

    @functools.wraps(factory)
    def making(*args: Any, **kwargs: Any) -> StateGraph[Any, Any, Any, Any]:
        got.extend(factory(*args, **kwargs))
        return one_node(WithMessages)

    await serve_graph("m", Graph(making))
    assert got == given
