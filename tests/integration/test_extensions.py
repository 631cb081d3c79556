"""`Fermata-Events: 1`: progress for those who ask, nothing but the standard for all others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.config import get_stream_writer
from langgraph.graph import MessagesState
from langgraph.types import interrupt

from gateway import Graph
from tests.integration.api import Api, calls, output, serving, texts
from tests.integration.small_graphs import GRAPHS, chain, speak
from tests.integration.sockets import connected
from tests.openresponses import Json, check_stream, read_frames

ASKED = {"Fermata-Events": "1"}


async def look(state: MessagesState) -> dict[str, Any]:
    write = get_stream_writer()
    write({"looked_at": 1, "of": 2})
    message = await speak("one two")
    write({"looked_at": 2, "of": 2})
    write(object())  # has no JSON form
    return {"messages": [message]}


async def decide(state: MessagesState) -> dict[str, Any]:
    answer = interrupt("Go on?")
    get_stream_writer()("decided")
    return {"messages": [AIMessage(f"decided: {answer}")]}


async def inner(state: MessagesState) -> dict[str, Any]:
    get_stream_writer()("from inside")
    return {"messages": [AIMessage("inner")]}


async def broken(state: MessagesState) -> dict[str, Any]:
    raise ValueError("a secret")


def nested() -> Any:
    graph = chain(look)
    graph.add_node("sub", chain(inner).compile())
    graph.add_edge("look", "sub")
    return graph


MORE = {
    "progress": Graph(chain(look, decide)),
    "nested": Graph(nested()),
    "broken": Graph(chain(broken)),
}


@pytest.fixture(scope="module")
async def api(
    anyio_backend: tuple[str, dict[str, bool]], module_database_url: str
) -> AsyncIterator[Api]:
    async with serving(module_database_url, GRAPHS | MORE) as served:
        yield served


async def streamed(api: Api, model: str, said: Any = "x", **fields: Any) -> list[Json]:
    body = {"model": model, "input": said, "stream": True, **fields}
    answer = await api.post(body, headers=ASKED)
    assert answer.status_code == 200, answer.text
    return read_frames(answer.content)


def ours(events: list[Json]) -> list[tuple[str, Any]]:
    return [
        (event["type"], event["payload"])
        for event in events
        if event["type"].startswith("fermata:")
    ]


def step(node: str, status: str, *path: str) -> tuple[str, Any]:
    return "fermata:step", {"node": node, "path": list(path), "status": status}


async def test_who_asks_is_told_steps_and_progress_in_one_sequence(api: Api) -> None:
    events = await streamed(api, "progress")
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert ours(events) == [
        step("look", "started"),
        ("fermata:progress", {"looked_at": 1, "of": 2}),
        ("fermata:progress", {"looked_at": 2, "of": 2}),
        step("look", "finished"),
        step("decide", "started"),
        step("decide", "waiting"),
    ]
    asked = events[-1]["response"]
    about = {"previous_response_id": asked["id"]}
    resumed = await streamed(api, "progress", [output(calls(asked)[0])], **about)
    assert ours(resumed) == [
        step("decide", "started"),
        ("fermata:progress", "decided"),
        step("decide", "finished"),
    ]
    assert texts(resumed[-1]["response"]) == ["decided: yes"]


async def test_nobody_else_is_told_anything(api: Api) -> None:
    """The Node SDK throws on a type that it does not know."""
    events, told = await api.stream("progress", "x")
    assert ours(events) == []
    assert texts(told) == ["one two"]
    for value in ("0", "", "true"):
        body = {"model": "progress", "input": "x", "stream": True}
        answer = await api.post(body, headers={"Fermata-Events": value})
        check_stream(read_frames(answer.content))
        assert ours(read_frames(answer.content)) == []


async def test_the_standard_part_is_the_same(api: Api) -> None:
    events = await streamed(api, "progress")
    plain, _ = await api.stream("progress", "x")
    assert [event["type"] for event in events if not event["type"].startswith("fermata:")] == [
        event["type"] for event in plain
    ]


async def test_a_subgraph_s_steps_say_where_they_are(api: Api) -> None:
    told = ours(await streamed(api, "nested"))
    assert step("inner", "started", "sub") in told
    assert step("inner", "finished", "sub") in told
    assert ("fermata:progress", "from inside") in told


async def test_a_failed_step_tells_no_secret(api: Api) -> None:
    events = await streamed(api, "broken")
    assert step("broken", "failed") in ours(events)
    assert "a secret" not in str(events)
    assert events[-1]["type"] == "response.failed"


async def test_json_and_chat_stay_as_they_are(api: Api) -> None:
    answer = await api.post({"model": "nested", "input": "x"}, headers=ASKED)
    assert texts(answer.json()) == ["one two", "inner"]
    body = {"model": "nested", "messages": [{"role": "user", "content": "x"}], "stream": True}
    chunks = await api.http.post("/v1/chat/completions", json=body, headers=ASKED)
    assert b"fermata:" not in chunks.content


async def test_a_repeat_is_told_plainly(api: Api) -> None:
    asked = (await streamed(api, "progress"))[-1]["response"]
    answer = {"said": [output(calls(asked)[0])], "previous_response_id": asked["id"]}
    await streamed(api, "progress", **answer)
    again = await streamed(api, "progress", **answer)
    assert ours(again) == []
    check_stream(again)


async def test_a_connection_asks_with_its_handshake(api: Api) -> None:
    async with connected(api, ASKED) as socket:
        await socket.create("nested", "x")
        events = await socket.events()
    assert step("look", "started") in ours(events)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
