"""`background: true`: accepted durably, started by whoever is free, followed from anywhere."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import MessagesState
from langgraph.types import interrupt

from gateway import Graph
from tests.integration.api import Api, calls, output, serving, texts
from tests.integration.small_graphs import EFFECTS, GRAPHS, chain, done, speak
from tests.openresponses import Json, check_stream, read_frames, validate_resource

PATIENCE = 20.0  # seconds; the machine may be busy

GATES: dict[str, asyncio.Event] = {}
"""What the node `wait` waits for, by the user's text."""


def gate(name: str) -> asyncio.Event:
    return GATES.setdefault(name, asyncio.Event())


async def wait(state: MessagesState) -> dict[str, Any]:
    done("waits")
    await gate(str(state["messages"][0].text)).wait()
    return {}


async def say_first(state: MessagesState) -> dict[str, Any]:
    done("first")
    return {"messages": [await speak("one two three")]}


async def say_second(state: MessagesState) -> dict[str, Any]:
    done("second")
    return {"messages": [await speak("four five")]}


async def ask(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"answer: {interrupt('Go on?')}")]}


OWN: dict[str, Graph] = {
    "talk": Graph(chain(say_first, say_second)),
    "slow": Graph(chain(say_first, wait, say_second)),
    "ask": Graph(chain(say_first, ask, say_second)),
    "ask-slow": Graph(chain(ask, wait)),
    "fail": GRAPHS["fail"],
    "usage": GRAPHS["usage"],
}


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with serving(database_url, OWN) as running:
        yield running


@asynccontextmanager
async def replicas(url: str, count: int, **environ: str) -> AsyncIterator[list[Api]]:
    """So many gateways on one database."""
    if not count:
        yield []
        return
    async with serving(url, OWN, **environ) as one, replicas(url, count - 1, **environ) as others:
        yield [one, *others]


async def queued(api: Api, model: str, said: Any, **fields: Any) -> Json:
    """The answer to a background request."""
    response = await api.create(model, said, background=True, **fields)
    assert (response["status"], response["background"]) == ("queued", True)
    return response


async def polled(api: Api, response: Json, until: tuple[str, ...] = ()) -> Json:
    """What a client gets that polls until the response has ended, or is `until`."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await api.get(response["id"])
            assert answer.status_code == 200, answer.text
            validate_resource(answer.json())
            status = answer.json()["status"]
            if status in until or (not until and status not in ("queued", "in_progress")):
                return dict(answer.json())
            await asyncio.sleep(0.02)


async def rejoined(api: Api, response: Json, after: int | None = None) -> list[Json]:
    """All events of the response's stream, until it ends."""
    answer = await rejoin(api, response, after)
    assert answer.status_code == 200, answer.text
    return read_frames(answer.content)


async def rejoin(api: Api, response: Json, after: int | None = None) -> httpx.Response:
    more: Mapping[str, Any] = {} if after is None else {"starting_after": after}
    async with asyncio.timeout(PATIENCE):
        path = f"/v1/responses/{response['id']}"
        return await api.http.get(path, params={"stream": "true", **more})


async def reached(api: Api, response: Json, what: str) -> str:
    """The run's id, once its node has done this."""
    run_id = await api.run_of(response)
    await until(lambda: what in EFFECTS.get(run_id, ()))
    return run_id


async def until(condition: Callable[[], bool | Awaitable[Any]]) -> None:
    """Look again until it holds."""
    async with asyncio.timeout(PATIENCE):
        while True:
            holds = condition()
            if await holds if inspect.isawaitable(holds) else holds:
                return
            await asyncio.sleep(0.01)


async def nothing_stays(api: Api, run_id: str) -> None:
    assert await api.checkpoint_rows(run_id) == 0
    assert await api.sql("SELECT 1 FROM fermata.leases WHERE id = %s", run_id) == []


# --- polling ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_a_background_response_is_queued_and_ends(api: Api, stream: bool) -> None:
    if stream:
        events, last = await api.stream("talk", "hi", background=True)
        assert [event["type"] for event in events[:3]] == [
            "response.created",
            "response.queued",
            "response.in_progress",
        ]
        assert [event["response"]["status"] for event in events[:3]] == [
            "queued",
            "queued",
            "in_progress",
        ]
    else:
        last = await queued(api, "talk", "hi")
    ended = await polled(api, last)
    assert ended["status"] == "completed"
    assert texts(ended) == ["one two three", "four five"]
    if stream:
        assert ended == last
    run_id = await api.run_of(last)
    assert EFFECTS[run_id] == ["first", "second"]
    await nothing_stays(api, run_id)


async def test_it_is_in_progress_while_it_runs(api: Api) -> None:
    response = await queued(api, "slow", "progress")
    await reached(api, response, "waits")
    assert (await polled(api, response, ("in_progress",)))["status"] == "in_progress"
    gate("progress").set()
    assert texts(await polled(api, response)) == ["one two three", "four five"]


async def test_it_fails_in_the_end_and_leaves_nothing(api: Api) -> None:
    ended = await polled(api, await queued(api, "fail", "hi"))
    assert (ended["status"], ended["error"]["code"]) == ("failed", "run_failed")
    assert ended["output"][0]["content"][0]["text"] == "one two three"
    run_id = await api.run_of(ended)
    await nothing_stays(api, run_id)
    (run,) = await api.sql("SELECT status FROM fermata.runs WHERE id = %s", run_id)
    assert run["status"] == "failed"


async def test_it_needs_to_be_stored(api: Api) -> None:
    status, error = await api.refused(
        {"model": "talk", "input": "hi", "background": True, "store": False}
    )
    assert (status, error["param"]) == (400, "background")


async def test_a_conversation_goes_on_from_it_and_in_it(api: Api) -> None:
    first = await polled(api, await queued(api, "talk", "hi"))
    second = await queued(api, "talk", "more", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    assert texts(await polled(api, second)) == ["one two three", "four five"]


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_it_asks_and_is_answered_in_the_background(api: Api, stream: bool) -> None:
    asked = await polled(api, await queued(api, "ask", "hi"))
    assert asked["status"] == "completed"
    (call,) = calls(asked)
    fields = {"previous_response_id": asked["id"], "background": True}
    if stream:
        events, last = await api.stream("ask", [output(call)], **fields)
        assert events[1]["type"] == "response.queued"
    else:
        last = await queued(api, "ask", [output(call)], previous_response_id=asked["id"])
    ended = await polled(api, last)
    assert texts(ended) == ["answer: yes", "four five"]
    run_id = await api.run_of(ended)
    assert EFFECTS[run_id] == ["first", "second"]
    await nothing_stays(api, run_id)


async def test_the_same_answer_again_is_attached_to_what_it_got(api: Api) -> None:
    asked = await polled(api, await queued(api, "ask-slow", "again"))
    said = {"previous_response_id": asked["id"], "background": True}
    answer = [output(calls(asked)[0])]
    first = await api.create("ask-slow", answer, **said)
    again = await api.create("ask-slow", answer, **said)
    assert again["id"] == first["id"]
    stream = asyncio.create_task(api.stream("ask-slow", answer, **said))
    gate("again").set()
    events, last = await stream
    assert (last["id"], last["status"]) == (first["id"], "completed")
    assert events[1]["type"] == "response.queued"


# --- replicas --------------------------------------------------------------------------------


async def test_any_process_may_start_it_and_none_twice(database_url: str) -> None:
    """Those that serve without background runs leave it to those that run them."""
    async with (
        replicas(database_url, 1, BACKGROUND_RUNS="0") as (front,),
        replicas(database_url, 2, BACKGROUND_RUNS="3") as workers,
    ):
        responses = await asyncio.gather(*(queued(front, "talk", "hi") for _ in range(12)))
        ended = [await polled(front, one) for one in responses]
        runs = [await front.run_of(one) for one in responses]
        assert {one["status"] for one in ended} == {"completed"}
        assert all(EFFECTS[run] == ["first", "second"] for run in runs)
        assert workers


async def test_it_waits_while_nobody_is_free(database_url: str) -> None:
    async with serving(database_url, OWN, BACKGROUND_RUNS="1") as api:
        first = await queued(api, "slow", "full")
        await reached(api, first, "waits")
        second = await queued(api, "talk", "hi")
        foreground = await api.create("talk", "hi")
        assert foreground["status"] == "completed", "the foreground does not queue"
        assert (await api.get(second["id"])).json()["status"] == "queued"
        gate("full").set()
        assert (await polled(api, second))["status"] == "completed"


async def test_a_model_that_is_not_served_here_is_left_to_others(database_url: str) -> None:
    async with serving(database_url, {"other": OWN["talk"]}) as stranger:
        async with serving(database_url, OWN, BACKGROUND_RUNS="0") as front:
            response = await queued(front, "talk", "hi")
            own = await queued(stranger, "other", "hi")
            assert (await polled(stranger, own))["status"] == "completed"
            assert (await front.get(response["id"])).json()["status"] == "queued"
        async with serving(database_url, OWN) as able:
            assert (await polled(able, response))["status"] == "completed"


# --- the event log ---------------------------------------------------------------------------


async def test_C33_a_finished_stream_can_be_rejoined_anywhere_in_it(api: Api) -> None:
    events, last = await api.stream("talk", "hi", background=True)
    assert await rejoined(api, last) == events
    for number in (0, 3, len(events) - 2):
        assert await rejoined(api, last, number) == events[number + 1 :]
    behind = await rejoin(api, last, len(events) - 1)
    assert behind.content == b"data: [DONE]\n\n"


async def test_a_stream_is_followed_live_from_any_replica(database_url: str) -> None:
    async with replicas(database_url, 2) as (one, other):
        response = await queued(one, "slow", "live", stream=False)
        await reached(one, response, "waits")
        followers = [
            asyncio.create_task(rejoined(api, response, after))
            for api in (one, other)
            for after in (None, 2)
        ]
        await asyncio.sleep(0.2)
        assert not any(task.done() for task in followers)
        gate("live").set()
        whole, rest, *elsewhere = await asyncio.gather(*followers)
        assert elsewhere == [whole, rest]
        assert rest == whole[3:]
        assert check_stream(whole) == await polled(other, response)


async def test_a_client_that_leaves_takes_nothing_with_it(api: Api) -> None:
    stream = asyncio.create_task(api.stream("slow", "left", background=True))
    await until(lambda: api.sql("SELECT 1 FROM fermata.responses WHERE status = 'in_progress'"))
    (response,) = await api.sql("SELECT id FROM fermata.responses")
    await reached(api, response, "waits")
    stream.cancel()
    gate("left").set()
    assert check_stream(await rejoined(api, response))["status"] == "completed"


async def test_a_foreground_response_is_told_again_from_its_resource(api: Api) -> None:
    response = await api.create("usage", "hi")
    assert check_stream(await rejoined(api, response)) == response
    refused = await rejoin(api, response, 1)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "starting_after"


@pytest.mark.parametrize("query", [{"stream": "yes"}, {"stream": "true", "starting_after": "-1"}])
async def test_a_query_that_is_none_is_refused(api: Api, query: Mapping[str, str]) -> None:
    response = await api.create("usage", "hi")
    answer = await api.http.get(f"/v1/responses/{response['id']}", params=query)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in query


async def test_an_unknown_response_cannot_be_followed(api: Api) -> None:
    for response_id in ("resp_unknown", "resp_%00"):
        assert (await rejoin(api, {"id": response_id})).status_code == 404


async def test_the_log_goes_before_its_response(database_url: str) -> None:
    # Longer than the stream takes, which reads the log itself.
    quick = {"EVENT_RETENTION": "1s", "SWEEP_INTERVAL": "50ms"}
    async with serving(database_url, OWN, **quick) as api:
        _, last = await api.stream("talk", "hi", background=True)
        await until(lambda: api.sql("SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM fermata.events)"))
        assert (await polled(api, last)) == last
        assert (await rejoin(api, last, 1)).status_code == 400
        assert check_stream(await rejoined(api, last))["output"] == last["output"]


async def test_a_deleted_response_takes_its_log_with_it(api: Api) -> None:
    response = await polled(api, await queued(api, "talk", "hi"))
    assert await api.sql("SELECT 1 FROM fermata.events")
    await api.http.delete(f"/v1/responses/{response['id']}")
    assert await api.sql("SELECT 1 FROM fermata.events") == []


# --- cancelling ------------------------------------------------------------------------------


async def cancelled(api: Api, response: Json) -> Json:
    answer = await api.http.post(f"/v1/responses/{response['id']}/cancel")
    assert answer.status_code == 200, answer.text
    validate_resource(answer.json())
    return dict(answer.json())


@pytest.mark.parametrize("where", [0, 1], ids=["here", "elsewhere"])
async def test_it_is_cancelled_from_any_replica(database_url: str, where: int) -> None:
    async with (
        serving(database_url, OWN) as holder,
        serving(database_url, OWN, BACKGROUND_RUNS="0") as other,
    ):
        api = (holder, other)[where]
        response = await queued(other, "slow", f"never {where}")
        run_id = await reached(other, response, "waits")
        follower = asyncio.create_task(rejoined(other, response))
        for _ in range(2):
            assert (await cancelled(api, response))["status"] == "cancelled"
        events = await follower
        assert events[-1]["type"] == "response.failed"
        assert check_stream(events)["status"] == "cancelled"
        await nothing_stays(api, run_id)
        story = await api.sql("SELECT event FROM fermata.audit WHERE run_id = %s", run_id)
        assert [row["event"] for row in story] == [
            "requested",
            "queued",
            "cancel_requested",
            "cancelled",
        ]


async def test_it_is_cancelled_before_anybody_starts_it(database_url: str) -> None:
    async with serving(database_url, OWN, BACKGROUND_RUNS="0") as api:
        response = await queued(api, "talk", "hi")
        follower = asyncio.create_task(rejoined(api, response))
        assert (await cancelled(api, response))["status"] == "cancelled"
        events = await follower
        assert [event["type"] for event in events] == [
            "response.created",
            "response.queued",
            "response.failed",
        ]
        assert events[-1]["response"]["status"] == "cancelled"
        (run,) = await api.sql("SELECT id, status FROM fermata.runs")
        assert run["status"] == "cancelled"
        assert run["id"] not in EFFECTS
        await nothing_stays(api, run["id"])


async def test_an_answer_that_is_queued_can_be_taken_back(database_url: str) -> None:
    async with serving(database_url, OWN, BACKGROUND_RUNS="0") as api:
        asked = await api.create("ask", "hi")
        response = await queued(api, "ask", [output(calls(asked)[0])])
        assert (await cancelled(api, response))["status"] == "cancelled"
        run_id = await api.run_of(response)
        await nothing_stays(api, run_id)


async def test_what_is_in_progress_is_not_deleted(api: Api) -> None:
    response = await queued(api, "slow", "undeleted")
    await reached(api, response, "waits")
    answer = await api.http.delete(f"/v1/responses/{response['id']}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "response_in_progress")
    gate("undeleted").set()
    await polled(api, response)
