"""C27: the client's connection drops: the run goes on or is cancelled as its graph says, to its
innermost subgraph; what an accepted answer set going always goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from gateway import Graph
from tests.integration.api import Api, calls, output, serving, texts
from tests.integration.small_graphs import EFFECTS, chain, done
from tests.integration.test_background import gate, polled, reached, until
from tests.openresponses import Json

STREAM = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])


async def dawdle(state: MessagesState) -> dict[str, Any]:
    done("began")
    try:
        await gate(str(state["messages"][0].text)).wait()
    except asyncio.CancelledError:
        done("cancelled")
        raise
    done("ended")
    return {"messages": [AIMessage("through")]}


async def ask(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"answer: {interrupt('Go on?')}")]}


def nested(*nodes: Any) -> Any:
    """These nodes in a subgraph of a subgraph."""
    inner = chain(*nodes).compile()
    inner.name = "inner"
    middle = chain_of("inner", inner)
    return chain_of("middle", middle)


def chain_of(name: str, node: Any) -> Any:
    graph: Any = StateGraph(MessagesState)
    graph.add_node(name, node)
    graph.add_edge(START, name)
    graph.add_edge(name, END)
    return graph.compile()


OWN = {
    "continue": Graph(nested(dawdle)),
    "cancel": Graph(nested(dawdle), on_disconnect="cancel"),
    "answered": Graph(nested(ask, dawdle), on_disconnect="cancel"),
}


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with serving(database_url, OWN) as running:
        yield running


class Connection:
    """A client's connection, below HTTP: one request, and its end when `drop` is called."""

    def __init__(self, api: Api, body: Json) -> None:
        self._gone = asyncio.Event()
        self._sent = json.dumps(body).encode()
        self._asked = False
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/responses",
            "raw_path": b"/v1/responses",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "scheme": "http",
            "server": ("gateway", 80),
            "client": ("client", 1),
        }
        self.served = asyncio.create_task(api.app(scope, self._receive, self._send))

    def drop(self) -> None:
        self._gone.set()

    async def _receive(self) -> Any:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._sent, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        """Nobody reads."""


async def left(api: Api, body: Json) -> Json:
    """The response in progress whose client has left while its node was at work."""
    connection = Connection(api, body)
    await until(lambda: api.sql("SELECT 1 FROM fermata.responses WHERE status = 'in_progress'"))
    (response,) = await api.sql("SELECT id FROM fermata.responses WHERE status = 'in_progress'")
    await reached(api, response, "began")
    connection.drop()
    return response


@STREAM
async def test_C27_a_run_that_goes_with_its_client_ends_to_its_innermost_node(
    api: Api, stream: bool
) -> None:
    response = await left(api, {"model": "cancel", "input": f"gone {stream}", "stream": stream})
    assert (await polled(api, response))["status"] == "cancelled"
    run_id = await api.run_of(response)
    assert EFFECTS[run_id] == ["began", "cancelled"]
    assert await api.checkpoint_rows(run_id) == 0


@STREAM
async def test_C27_a_run_that_continues_ends_without_its_client(api: Api, stream: bool) -> None:
    said = f"alone {stream}"
    response = await left(api, {"model": "continue", "input": said, "stream": stream})
    await asyncio.sleep(0.1)
    gate(said).set()
    assert texts(await polled(api, response)) == ["through"]


@STREAM
async def test_C27_an_accepted_answer_is_carried_out_without_its_client(
    api: Api, stream: bool
) -> None:
    said = f"answered {stream}"
    asked = await api.create("answered", said)
    body = {"model": "answered", "input": [output(calls(asked)[0])], "stream": stream}
    response = await left(api, body)
    await asyncio.sleep(0.1)
    gate(said).set()
    assert texts(await polled(api, response)) == ["answer: yes", "through"]
    rows = await api.sql("SELECT 1 FROM fermata.leases WHERE id <> owner")
    assert rows == []
