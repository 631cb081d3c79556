"""Idempotency-Key: the same request again gets the first response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.integration.api import Api, calls, envelope, output, serving, texts
from tests.integration.people import keys_of
from tests.integration.small_graphs import EFFECTS
from tests.integration.test_background import OWN, gate, polled, reached, until
from tests.openresponses import Json, check_stream, read_frames

KEY = {"Idempotency-Key": "order-1017"}
TALK = {"model": "talk", "input": "hi"}


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with serving(database_url, OWN) as running:
        yield running


async def posted(api: Api, body: Json, headers: Any = KEY) -> Json:
    answer = await api.post(body, headers=headers)
    assert answer.status_code == 200, answer.text
    if body.get("stream"):
        return check_stream(read_frames(answer.content))
    return dict(answer.json())


async def runs(api: Api) -> int:
    (row,) = await api.sql("SELECT count(*) AS number FROM fermata.responses")
    return int(row["number"])


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"store": False}], ids=str)
async def test_the_same_request_again_gets_the_first_response(api: Api, fields: Json) -> None:
    first = await posted(api, TALK | fields)
    again = await posted(api, dict(reversed((TALK | fields).items())))
    assert again == first
    assert await runs(api) == 1
    assert texts(first) == ["one two three", "four five"]


async def test_in_the_background_too(api: Api) -> None:
    body = TALK | {"background": True}
    first = await posted(api, body)
    assert (await posted(api, body))["id"] == first["id"]
    ended = await polled(api, first)
    assert await posted(api, body) == ended
    assert await runs(api) == 1


async def test_a_background_stream_again_is_the_first_one_s(api: Api) -> None:
    body = TALK | {"background": True, "stream": True}
    first = await posted(api, body)
    assert await posted(api, body) == first


async def test_another_body_is_refused(api: Api) -> None:
    await posted(api, TALK)
    for body in (TALK | {"input": "ho"}, TALK | {"stream": True}):
        answer = await api.post(body, headers=KEY)
        assert answer.status_code == 422
        assert envelope(answer)["code"] == "idempotency_key_reused"
    assert await runs(api) == 1


async def test_without_a_key_or_with_another_it_is_another_request(api: Api) -> None:
    ids = {
        (await posted(api, TALK, headers))["id"]
        for headers in (None, KEY, {"Idempotency-Key": "order-1018"})
    }
    assert len(ids) == 3


async def test_at_the_same_instant_on_two_replicas_one_runs(database_url: str) -> None:
    async with serving(database_url, OWN) as one, serving(database_url, OWN) as other:
        told = await asyncio.gather(*(posted(api, TALK) for api in (one, other) * 6))
        assert all(response == told[0] for response in told)
        assert await runs(one) == 1
        assert EFFECTS[await one.run_of(told[0])] == ["first", "second"]


async def test_while_it_runs_the_repeat_is_attached(database_url: str) -> None:
    body = {"model": "slow", "input": "attached"}
    async with serving(database_url, OWN) as one, serving(database_url, OWN) as other:
        first = asyncio.create_task(posted(one, body))
        await until(lambda: one.sql("SELECT 1 FROM fermata.responses"))
        (row,) = await one.sql("SELECT id FROM fermata.responses")
        await reached(one, row, "waits")
        again = asyncio.create_task(posted(other, body))
        done, _ = await asyncio.wait([first, again], timeout=0.3)
        assert not done
        gate("attached").set()
        assert await again == await first


@pytest.mark.parametrize("path", ["responses", "chat/completions"])
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_a_repeat_whose_first_request_goes_is_told_to_send_it_again(
    database_url: str, path: str, stream: bool
) -> None:
    name = f"goes {path} {stream}"
    said = {"messages": [{"role": "user", "content": name}]} if "chat" in path else {"input": name}
    body = {"model": "slow", "stream": stream, **said}
    async with serving(database_url, OWN) as one, serving(database_url, OWN) as other:
        requests = [
            asyncio.create_task(api.http.post(f"/v1/{path}", json=body, headers=KEY))
            for api in (one, other)
        ]
        await until(lambda: one.sql("SELECT 1 FROM fermata.responses"))
        (row,) = await one.sql("SELECT id, lease_id FROM fermata.responses")
        await reached(one, row, "waits")
        mine = int(row["lease_id"] != one.app.state.gateway.coordinator.leases.owner)
        await until(
            lambda: bool((one, other)[1 - mine].app.state.gateway.coordinator.watch._settling)
        )
        await one.sql("DELETE FROM fermata.responses")
        told = await requests[1 - mine]
        gate(name).set()
        await requests[mine]
    if not stream:
        assert (told.status_code, told.json()["error"]["code"]) == (503, "service_unavailable")
        assert "Retry-After" in told.headers
        return
    assert told.status_code == 200
    if path == "responses":
        failed = check_stream(read_frames(told.content))
        assert (failed["id"], failed["status"]) == (row["id"], "failed")
    else:
        *_, failed = chunks(told.text)
    assert failed["error"]["code"] == "service_unavailable"
    assert "send it again" in failed["error"]["message"]


def chunks(text: str) -> list[Json]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


async def test_an_answer_under_a_key_is_taken_once(api: Api) -> None:
    asked = await posted(api, {"model": "ask", "input": "hi"}, None)
    body = {
        "model": "ask",
        "input": [output(calls(asked)[0])],
        "previous_response_id": asked["id"],
    }
    first = await posted(api, body)
    assert await posted(api, body) == first
    refused = await api.post(body | {"input": [output(calls(asked)[0], "no")]}, headers=KEY)
    assert refused.status_code == 422


async def test_a_refused_request_keeps_its_key_free(api: Api) -> None:
    refused = await api.post({"model": "nobody", "input": "hi"}, headers=KEY)
    assert refused.status_code == 404
    assert texts(await posted(api, TALK))


async def test_a_key_is_its_tenant_s(database_url: str) -> None:
    keys = await keys_of(database_url)
    async with serving(database_url, OWN, AUTH="keys") as api:
        ids = []
        for who in ("anna", "eve", "carl"):
            sent = {"Authorization": f"Bearer {keys[who]}", **KEY}
            ids.append((await posted(api, TALK, sent))["id"])
    anna, eve, carl = ids
    assert anna == carl, "one shop"
    assert eve != anna


async def test_a_key_goes_after_its_time_and_with_its_response(database_url: str) -> None:
    async with serving(database_url, OWN, SWEEP_INTERVAL="50ms") as api:
        first = await posted(api, TALK)
        await api.http.delete(f"/v1/responses/{first['id']}")
        second = await posted(api, TALK)
        assert second["id"] != first["id"]
        await api.sql("UPDATE fermata.idempotency_keys SET expires_at = now()")
        assert (await posted(api, TALK))["id"] != second["id"]
        await api.sql("UPDATE fermata.idempotency_keys SET expires_at = now()")
        gone = "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM fermata.idempotency_keys)"
        await until(lambda: api.sql(gone))


@pytest.mark.parametrize("key", ["", "a key", "k" * 256])
async def test_a_key_that_is_none_is_refused(api: Api, key: str) -> None:
    answer = await api.post(TALK, headers={"Idempotency-Key": key})
    assert answer.status_code == 400
    assert "Idempotency-Key" in envelope(answer)["message"]
