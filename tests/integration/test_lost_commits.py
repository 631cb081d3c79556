"""The commit happened and nobody heard of it; and what cannot be started, or recovered.

None of it may keep others waiting for as long as the process lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import MessagesState

from gateway import Graph, async_effect, current_run
from tests.integration.api import Api, serving, texts, whole_audit
from tests.integration.small_graphs import GRAPHS, chain, last_text
from tests.integration.test_background import polled, queued
from tests.openresponses import Json, check_stream, read_frames
from tests.postgres.proxy import COMMITTED, DatabaseProxy, proxied

KEY = {"Idempotency-Key": "order-1017"}
SOON = 20.0  # seconds; the machine may be busy


async def act(state: MessagesState) -> dict[str, Any]:
    done = await async_effect(last_text(state), lambda: "done")
    return {"messages": [AIMessage(f"{done} for {current_run().run_id}")]}


OWN = {"act": Graph(chain(act)), "parrot": GRAPHS["parrot"]}


async def unheard(
    proxy: DatabaseProxy, name: str, request: Coroutine[Any, Any, httpx.Response]
) -> httpx.Response:
    """The answer to a request whose transaction with this statement commits; the connection is cut
    before anybody hears of it."""
    with proxy.trap(name, COMMITTED) as trap:
        asking = asyncio.create_task(request)
        await asyncio.to_thread(trap.wait)
        trap.cut()
        return await asking


async def conversation(api: Api) -> str:
    return str((await api.http.post("/v1/conversations", json={})).json()["id"])


async def forgotten(api: Api) -> None:
    """Nothing is left of what never began."""
    await api.until("SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM fermata.responses)")


async def test_an_opening_that_nobody_heard_of_leaves_nothing(database_url: str) -> None:
    with proxied(database_url) as proxy:
        async with serving(proxy.url, OWN, LEASE_TTL="3s") as api:
            body = {"model": "parrot", "input": "hi", "stream": True}
            with proxy.trap("open_first", COMMITTED) as trap:
                asking = asyncio.create_task(api.post(body))
                await asyncio.to_thread(trap.wait)
                assert len(await api.sql("SELECT 1 FROM fermata.responses")) == 1
                trap.cut()
                assert (await asking).status_code == 503
            await forgotten(api)


async def test_a_key_s_repeat_begins_anew(database_url: str) -> None:
    with proxied(database_url) as proxy:
        async with serving(proxy.url, OWN, LEASE_TTL="3s") as api:
            body = {"model": "parrot", "input": "hi"}
            answer = await unheard(proxy, "remember_key", api.post(body, headers=KEY))
            assert answer.status_code == 503
            async with asyncio.timeout(SOON):
                while (again := await api.post(body, headers=KEY)).status_code == 503:
                    assert "Retry-After" in again.headers
            assert texts(again.json()) == ["heard: hi"]
            assert (await api.post(body, headers=KEY)).json() == again.json()
            assert len(await api.sql("SELECT 1 FROM fermata.responses")) == 1


async def test_a_conversation_is_free_again(database_url: str) -> None:
    with proxied(database_url) as proxy:
        async with serving(proxy.url, OWN, LEASE_TTL="3s") as api:
            body = {"model": "parrot", "input": "hi", "conversation": await conversation(api)}
            answer = await unheard(proxy, "open_in_conversation", api.post(body))
            assert answer.status_code == 503
            await forgotten(api)
            assert texts((await api.post(body)).json()) == ["heard: hi"]


async def test_what_cannot_be_recovered_keeps_nobody_from_it(database_url: str) -> None:
    async with serving(database_url, OWN) as api:
        told = await api.create("parrot", "hi")
        await api.sql(
            "UPDATE fermata.responses SET id = 'resp_z', status = 'in_progress',"
            " completed_at = NULL, lease_id = 'gone' WHERE id = %s",
            told["id"],
        )
        await api.sql(
            "INSERT INTO fermata.responses"
            " (id, tenant, run_id, model, status, stored, lease_id, resumes, input, body)"
            " SELECT 'resp_' || n, 'default', 'run_' || n,"
            "        CASE WHEN n > 60 THEN 'served elsewhere' ELSE 'parrot' END,"
            "        'in_progress', true, 'gone', n > 60, '[]', '{}'"
            "   FROM generate_series(1, 120) AS n"
        )
    async with serving(database_url, OWN, LEASE_TTL="3s") as api:
        await api.until("SELECT 1 FROM fermata.responses WHERE id = 'resp_z' AND status = 'failed'")


@pytest.mark.parametrize(
    ("model", "statement"), [("parrot", "forget_first"), ("act", "forget_acted")]
)
async def test_a_response_that_is_not_kept_still_ends_well(
    database_url: str, model: str, statement: str
) -> None:
    with proxied(database_url) as proxy:
        async with serving(proxy.url, OWN) as api:
            body = {"model": model, "input": "hi", "store": False, "stream": True}
            answer = await unheard(proxy, statement, api.post(body))
            assert check_stream(read_frames(answer.content))["status"] == "completed"
            assert not await api.sql("SELECT 1 FROM fermata.responses")
    await whole_audit(database_url)


@pytest.mark.parametrize("model", ["act", "parrot"])
async def test_a_key_holds_for_what_is_not_stored(database_url: str, model: str) -> None:
    """After an effect, and in a conversation."""
    async with serving(database_url, OWN) as api:
        body: Json = {"model": model, "input": "hi", "store": False}
        if model == "parrot":
            body["conversation"] = await conversation(api)
        first, again = [(await api.post(body, headers=KEY)).json() for _ in range(2)]
        assert again == first
        assert first["status"] == "completed"
        assert (await api.get(first["id"])).status_code == 404


def deepest() -> list[Json]:
    """A client's tool that makes a request as deep as it may be."""
    deep: Any = {}
    for _ in range(195):
        deep = [deep]
    return [{"type": "function", "name": "f", "parameters": {"x": deep}}]


async def test_the_deepest_request_is_started_in_the_background(database_url: str) -> None:
    async with serving(database_url, OWN) as api:
        deeper = {"model": "parrot", "input": "hi", "tools": [{"x": deepest()}]}
        assert (await api.refused(deeper))[1]["code"] == "invalid_json"
        response = await queued(api, "parrot", "hi", tools=deepest())
        assert texts(await polled(api, response)) == ["heard: hi"]


async def test_what_cannot_be_started_keeps_nobody_from_it(database_url: str) -> None:
    async with serving(database_url, {}) as api:
        broken = (
            "INSERT INTO fermata.runs (id, tenant, requester, model, status, response_id, settings)"
            " VALUES ('run_1', 'default', 'anna', 'parrot', 'running', 'resp_1', '{}')",
            "INSERT INTO fermata.responses (id, tenant, run_id, model, status, stored, resumes,"
            " logged, input, body) VALUES ('resp_1', 'default', 'run_1', 'parrot', 'queued', true,"
            " true, true, '[]', '{}')",
        )
        for statement in broken:
            await api.sql(statement)
    async with serving(database_url, OWN) as api:
        response = await queued(api, "parrot", "hi")
        assert texts(await polled(api, response)) == ["heard: hi"]
        assert await api.sql("SELECT 1 FROM fermata.responses WHERE status = 'queued'")
