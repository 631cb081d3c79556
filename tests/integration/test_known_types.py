"""Nothing outside the standard appears unless it is asked for: openai-node's helper throws on any
type that it does not know, and the Vercel AI SDK fails on unknown items."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
from langgraph.config import get_stream_writer
from langgraph.graph import MessagesState

from gateway import Graph
from graphs import GRAPHS as DEMOS
from tests.integration.api import Api, calls, output, serving
from tests.integration.small_graphs import GRAPHS as SMALL
from tests.integration.small_graphs import PAYLOADS, chain, speak
from tests.openresponses import TERMINAL, Json, read_frames

KNOWN_EVENTS = {
    *("response.created", "response.queued", "response.in_progress", *TERMINAL),
    *("response.output_item.added", "response.output_item.done"),
    *("response.content_part.added", "response.content_part.done"),
    *("response.output_text.delta", "response.output_text.done"),
    *("response.refusal.delta", "response.refusal.done"),
    *("response.function_call_arguments.delta", "response.function_call_arguments.done"),
    *("response.reasoning_summary_part.added", "response.reasoning_summary_part.done"),
    *("response.reasoning_summary_text.delta", "response.reasoning_summary_text.done"),
}
"""The minimal sequences of the wire, and nothing else."""

KNOWN_ITEMS = {"message", "function_call", "reasoning"}
KNOWN_PARTS = {"output_text", "refusal", "summary_text"}


async def chatter(state: MessagesState) -> dict[str, Any]:
    """Everything that a graph may do beside its messages."""
    writer = get_stream_writer()
    writer({"progress": 0.5})
    writer("half way")
    await RunnableLambda(lambda text: text, name="inner").ainvoke("x")
    return {"messages": [await speak("done")]}


WAITS = {"gate"}  # until its own test lets it go on
GRAPHS = {
    **DEMOS,
    **{name: graph for name, graph in SMALL.items() if name not in WAITS},
    "chatter": Graph(chain(chatter)),
}
# What leads somewhere in a demonstration graph; all others take any text.
SAID = ("Refund order ORDER-123", "What is the weather in Paris?")
TOOLS = [
    {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}}
    for name in ("weather", "ask_user_something")
]


@pytest.fixture(scope="module")
async def api(
    anyio_backend: tuple[str, dict[str, bool]], module_database_url: str
) -> AsyncIterator[Api]:
    for said in SAID:
        PAYLOADS.setdefault(said, {"question": "Well?"})
    async with serving(module_database_url, GRAPHS) as served:
        yield served


def types_in(output_items: list[Json]) -> Iterator[tuple[str, set[str]]]:
    for item in output_items:
        parts = item.get("content") or item.get("summary") or []
        yield item["type"], {part["type"] for part in parts}


def judge(events: list[Json], resource: Json) -> None:
    assert {event["type"] for event in events} <= KNOWN_EVENTS
    for kind, parts in types_in(resource["output"]):
        assert kind in KNOWN_ITEMS
        assert parts <= KNOWN_PARTS


async def streamed(api: Api, body: Json) -> Json:
    answer = await api.post({**body, "stream": True})
    assert answer.status_code == 200, answer.text
    events = read_frames(answer.content)
    judge(events, events[-1]["response"])
    return dict(events[-1]["response"])


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("model", GRAPHS)
async def test_every_graph_in_every_mode(api: Api, model: str, said: str) -> None:
    body = {"model": model, "input": said, "tools": TOOLS}
    told = await api.post(body)
    assert told.status_code == 200, told.text
    judge([], told.json())
    live = await streamed(api, body)
    await streamed(api, {**body, "background": True})
    again = await api.http.get(f"/v1/responses/{live['id']}", params={"stream": "true"})
    judge(read_frames(again.content), live)

    asked = [call for call in calls(live) if call["name"] not in {one["name"] for one in TOOLS}]
    if asked and live["status"] == "completed":
        reply = {**body, "input": [output(call, "no") for call in asked]}
        answered = await api.post({**reply, "stream": True})
        if answered.status_code == 200:  # some take other answers than "no"
            events = read_frames(answered.content)
            judge(events, events[-1]["response"])
