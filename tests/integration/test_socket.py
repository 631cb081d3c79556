"""The WebSocket transport: sequential turns, continuation, reconnects, eviction, disconnects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import MessagesState

from gateway import Graph
from gateway.http.auth import KEY_FRESH, Bearer, Keys
from gateway.store.keys import create_key, revoke_key
from tests.integration.api import Api, calls, output, serving, texts
from tests.integration.small_graphs import GRAPHS, chain, last_text
from tests.integration.sockets import connected, opened
from tests.openresponses import check_stream

GATES: dict[str, asyncio.Event] = {}
"""What `gated` waits for, by the last text."""
ENDED: list[str] = []


async def gated(state: MessagesState) -> dict[str, Any]:
    try:
        await GATES[last_text(state)].wait()
    except asyncio.CancelledError:
        ENDED.append("cancelled")
        raise
    ENDED.append("through")
    return {"messages": [AIMessage("open")]}


MORE = {
    "gated": Graph(chain(gated)),
    "gated-cancel": Graph(chain(gated), on_disconnect="cancel"),
}


@pytest.fixture(scope="module")
async def api(
    anyio_backend: tuple[str, dict[str, bool]], module_database_url: str
) -> AsyncIterator[Api]:
    async with serving(module_database_url, GRAPHS | MORE, MAX_BODY_BYTES="20000") as served:
        yield served


def user(text: str) -> Any:
    return {"role": "user", "content": text}


# --- what Open Responses' own suite looks at -------------------------------------------------


async def test_events_are_those_of_the_stream(api: Api) -> None:
    async with connected(api) as socket:
        await socket.create("several", "x")
        events = await socket.events()
        resource = check_stream(events)
    streamed, _ = await api.stream("several", "x")
    assert [event["type"] for event in events] == [event["type"] for event in streamed]
    assert texts(resource) == ["one two three", "four five"]


async def test_turns_are_sequential(api: Api) -> None:
    async with connected(api) as socket:
        for said in ("first", "second"):
            await socket.create("remember", said, store=False)
            assert texts(await socket.response()) == [f"human:{said}"]


async def test_requests_that_come_at_once_are_answered_one_after_the_other(api: Api) -> None:
    async with connected(api) as socket:
        for n in range(5):
            await socket.create("remember", str(n), store=False)
        for n in range(5):
            assert texts(await socket.response()) == [f"human:{n}"]


@pytest.mark.parametrize("store", [True, False])
async def test_a_turn_continues_the_one_before(api: Api, store: bool) -> None:
    async with connected(api) as socket:
        previous = None
        for said in ("a", "b", "c"):
            await socket.create("remember", said, store=store, previous_response_id=previous)
            response = await socket.response()
            assert response["previous_response_id"] == previous
            previous = response["id"]
    lines = dict.fromkeys(texts(response)[0].splitlines())
    assert [line for line in lines if line.startswith("human:")] == [
        "human:a",
        "human:b",
        "human:c",
    ]
    (rows,) = await api.sql(
        "SELECT count(*) AS n FROM fermata.responses WHERE id = %s", response["id"]
    )
    assert rows["n"] == int(store)


async def test_what_is_not_stored_is_gone_with_its_connection(api: Api) -> None:
    async with connected(api) as socket:
        await socket.create("remember", "a", store=False)
        first = await socket.response()
    async with connected(api) as socket:
        await socket.create("remember", "b", store=False, previous_response_id=first["id"])
        error = await socket.error()
        assert (error["code"], error["param"]) == (
            "previous_response_not_found",
            "previous_response_id",
        )
        await socket.create("remember", [user("a"), user("b")], store=False)
        assert texts(await socket.response()) == ["human:a\nhuman:b"]


async def test_what_is_stored_is_continued_by_another_connection(api: Api) -> None:
    async with connected(api) as socket:
        await socket.create("remember", "a")
        first = await socket.response()
    async with connected(api) as socket:
        await socket.create("remember", "b", previous_response_id=first["id"], store=False)
        second = await socket.response()
        assert texts(second)[0].startswith("human:a\n")
        await socket.create("remember", "c", previous_response_id=second["id"], store=False)
        third = await socket.response()
        lines = texts(third)[0].splitlines()
        assert [line for line in lines if "human:" in line and "ai:" not in line][-2:] == [
            "human:b",
            "human:c",
        ]
        assert lines[0] == "human:a"
        assert third["previous_response_id"] == second["id"]


async def test_a_failed_continuation_evicts_what_it_continued(api: Api) -> None:
    async with connected(api) as socket:
        await socket.create("remember", "a", store=False)
        first = await socket.response()
        about = {"store": False, "previous_response_id": first["id"]}
        await socket.create("remember", [output("call_missing")], **about)
        assert "call_missing" in (await socket.error())["message"]
        await socket.create("remember", "b", **about)
        assert (await socket.error())["code"] == "previous_response_not_found"


async def test_a_failed_run_evicts_what_it_continued(api: Api) -> None:
    async with connected(api) as socket:
        await socket.create("usage", "a", store=False)
        first = await socket.response()
        about = {"store": False, "previous_response_id": first["id"]}
        await socket.create("fail", "b", **about)
        failed = await socket.response()
        assert failed["status"] == "failed"
        for continued in (failed["id"], first["id"]):
            await socket.create("usage", "c", store=False, previous_response_id=continued)
            assert (await socket.error())["code"] == "previous_response_not_found"


async def test_an_unknown_previous_response(api: Api) -> None:
    async with connected(api) as socket:
        await socket.create("remember", "x", previous_response_id="resp_missing", store=False)
        assert (await socket.error())["code"] == "previous_response_not_found"


async def test_a_warm_up_says_nothing_and_is_continued(api: Api) -> None:
    async with connected(api) as socket:
        await socket.create("remember", "a", generate=False, store=False)
        warm = await socket.response()
        assert (warm["status"], warm["output"]) == ("completed", [])
        await socket.create("remember", "b", previous_response_id=warm["id"], store=False)
        assert texts(await socket.response()) == ["human:a\nhuman:b"]


# --- questions -------------------------------------------------------------------------------


@pytest.mark.parametrize("store", [True, False])
async def test_a_question_is_answered_by_what_continues_it(api: Api, store: bool) -> None:
    async with connected(api) as socket:
        await socket.create("ask", "hello", store=store)
        asked = await socket.response()
        about = {"store": store, "previous_response_id": asked["id"]}
        await socket.create("ask", [output(calls(asked)[0])], **about)
        answered = await socket.response()
        assert texts(answered) == ["answer: 'yes'"]
        assert answered["previous_response_id"] == asked["id"]
        await socket.create("ask", "more", store=store, previous_response_id=answered["id"])
        assert calls(await socket.response())


async def test_a_question_outlives_its_connection(api: Api) -> None:
    async with connected(api) as socket:
        await socket.create("ask", "hello", store=False)
        asked = await socket.response()
    async with connected(api) as socket:
        history = [user("hello"), calls(asked)[0], output(calls(asked)[0])]
        await socket.create("ask", history, store=False)
        assert texts(await socket.response()) == ["answer: 'yes'"]


async def test_a_text_is_no_answer(api: Api) -> None:
    """C01: never a fresh run, never an approval."""
    async with connected(api) as socket:
        await socket.create("ask", "hello", store=False)
        asked = await socket.response()
        about = {"store": False, "previous_response_id": asked["id"]}
        await socket.create("ask", "please hurry", **about)
        assert calls(asked)[0]["call_id"] in (await socket.error())["message"]
        await socket.create("ask", [output(calls(asked)[0])], **about)
        assert texts(await socket.response()) == ["answer: 'yes'"], "it stayed open"


async def test_a_client_s_tool_is_answered_from_the_memory(api: Api) -> None:
    tools = [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]
    async with connected(api) as socket:
        await socket.create("tool", "x", store=False, tools=tools)
        called = await socket.response()
        about = {"store": False, "previous_response_id": called["id"], "tools": tools}
        await socket.create("remember", [output("call_weather", "rain")], **about)
        assert texts(await socket.response()) == [
            "human:x\nai:Let me see. calls weather\ntool:rain"
        ]


# --- messages that are none ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        ("no json", None, "invalid_json"),
        ("[]", None, "invalid_type"),
        ({"model": "ask", "input": "x"}, "type", "missing_required_parameter"),
        ({"type": "response.steer"}, "type", "invalid_value"),
        ({"type": "response.create", "input": "x"}, "model", "missing_required_parameter"),
        ({"type": "response.create", "model": "nobody", "input": "x"}, "model", "model_not_found"),
    ]
    + [
        (
            {"type": "response.create", "model": "ask", "input": "x", **field},
            next(iter(field)),
            "unsupported_parameter",
        )
        for field in ({"stream": False}, {"background": True}, {"stream_id": "a"})
    ],
)
async def test_a_refused_message_leaves_the_connection_open(
    api: Api, message: Any, param: str | None, code: str
) -> None:
    async with connected(api) as socket:
        await socket.send(message)
        error = await socket.error()
        assert (error["param"], error["code"]) == (param, code)
        assert error["headers"] == {"x-should-retry": "false"}
        await socket.create("usage", "x", stream=True, background=False)
        assert texts(await socket.response()) == ["counted"]


async def test_a_message_that_is_too_long_ends_the_connection(api: Api) -> None:
    async with connected(api) as socket:
        await socket.create("usage", "x" * 20_001)
        assert (await socket.error())["code"] == "request_too_large"
        assert await socket.closed() == 1009


async def test_the_memory_is_bounded(api: Api) -> None:
    async with connected(api) as socket:
        await socket.create("usage", "x" * 15_000, store=False)
        first = await socket.response()
        await socket.create("usage", "x" * 15_000, store=False, previous_response_id=first["id"])
        second = await socket.response()
        await socket.create("usage", "x", store=False, previous_response_id=second["id"])
        assert (await socket.error())["code"] == "previous_response_not_found"


async def test_too_many_waiting_requests_are_refused(api: Api) -> None:
    GATES["line"] = asyncio.Event()
    async with connected(api) as socket:
        await socket.create("gated", "line", store=False)
        assert (await socket.next())["type"] == "response.created"
        for _ in range(17):
            await socket.create("usage", "x", store=False)
        events = [await socket.next(), await socket.next()]
        (refused,) = [event for event in events if event["type"] == "error"]
        assert (refused["status"], refused["error"]["code"]) == (409, "response_in_progress")
        GATES["line"].set()
        assert (await socket.events())[-1]["type"] == "response.completed"
        for _ in range(16):
            assert texts(await socket.response()) == ["counted"]


# --- who asks --------------------------------------------------------------------------------


@pytest.mark.parametrize("denial", [True, False])
async def test_a_handshake_without_credentials_is_refused(database_url: str, denial: bool) -> None:
    """P6. A server that cannot send the envelope closes with the code as its reason."""
    async with (
        serving(database_url, GRAPHS, AUTH="keys") as api,
        opened(api, denial=denial) as (socket, first),
    ):
        if denial:
            assert first["status"] == 401
            body = await socket.received.get()
            assert json.loads(body["body"])["error"]["code"] == "invalid_api_key"
        else:
            assert first["type"] == "websocket.close"
            assert (first["code"], first["reason"]) == (1008, "invalid_api_key")


async def test_a_key_that_is_revoked_ends_its_connections(database_url: str) -> None:
    """P6: a connection may be older than its key's end."""
    moment = [0.0]
    async with serving(database_url, GRAPHS, AUTH="keys") as api:
        database = api.app.state.gateway.coordinator.database
        api.app.state.gateway.authenticator = Bearer(Keys(database, lambda: moment[0]), None)
        async with database.connection() as conn:
            id, key = await create_key(conn, tenant="shop", subject="anna", roles=())
        async with connected(api, {"authorization": f"Bearer {key}"}) as socket:
            await socket.create("usage", "x")
            assert texts(await socket.response()) == ["counted"]
            async with database.connection() as conn:
                await revoke_key(conn, id)
            moment[0] += KEY_FRESH
            await socket.create("usage", "x")
            assert (await socket.error())["code"] == "invalid_api_key"
            assert await socket.closed() == 1008


# --- connections -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "outcome"), [("gated", "through"), ("gated-cancel", "cancelled")]
)
async def test_a_closed_socket_is_a_client_that_left(api: Api, model: str, outcome: str) -> None:
    """C27."""
    ENDED.clear()
    GATES[model] = asyncio.Event()
    async with connected(api) as socket:
        await socket.create(model, model)
        response = (await socket.next())["response"]
        assert (await socket.next())["type"] == "response.in_progress"
    if outcome == "through":
        GATES[model].set()
    told = await settled(api, response["id"])
    assert [outcome] == ENDED
    assert told["status"] == ("completed" if outcome == "through" else "cancelled")


async def settled(api: Api, response_id: str) -> Any:
    for _ in range(1000):
        told = (await api.get(response_id)).json()
        if told["status"] != "in_progress":
            return told
        await asyncio.sleep(0.01)
    raise AssertionError("it never ends")


async def test_an_old_connection_is_told_so(database_url: str) -> None:
    GATES["old"] = asyncio.Event()
    async with serving(database_url, GRAPHS | MORE, WEBSOCKET_LIMIT="500ms") as api:
        async with connected(api) as socket:
            assert (await socket.error())["code"] == "websocket_connection_limit_reached"
            assert await socket.closed() == 1008
        async with connected(api) as socket:
            await socket.create("gated", "old")
            await socket.next()
            await socket.next()
            await asyncio.sleep(0.6)
            GATES["old"].set()
            assert (await socket.events())[-1]["type"] == "response.completed"
            assert (await socket.error())["code"] == "websocket_connection_limit_reached"


async def test_a_handshake_carries_the_request_s_id(api: Api) -> None:
    async with connected(api, {"x-request-id": "mine"}) as socket:
        assert socket.headers["x-request-id"] == "mine"
        assert socket.headers["openai-processing-ms"].isdigit()


@pytest.mark.parametrize(
    ("origin", "passes"),
    [("http://gateway", True), ("https://elsewhere.example", False), ("null", False)],
)
async def test_pages_of_other_sites_get_no_connection(api: Api, origin: str, passes: bool) -> None:
    """Where everybody may ask, any page in the browser of somebody on this machine could."""
    async with opened(api, {"origin": origin}) as (socket, first):
        assert first["type"] == ("websocket.accept" if passes else "websocket.http.response.start")
        if not passes:
            assert first["status"] == 403
            body = await socket.received.get()
            assert json.loads(body["body"])["error"]["code"] == "forbidden"


async def test_tasks_run_nothing_here_either(database_url: str) -> None:
    async with (
        serving(database_url, GRAPHS, TASK_HEADER="x-task") as api,
        connected(api, {"x-task": "tags_generation"}) as socket,
    ):
        await socket.create("ask", "x")
        assert texts(await socket.response()) == ['{"tags":[]}']
        assert await api.sql("SELECT id FROM fermata.responses") == []
