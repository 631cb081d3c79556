"""C18: responses are cancelled and deleted; what waited is closed, and a late answer gets 410."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import MessagesState
from langgraph.types import interrupt

from gateway import Graph, ask_approval
from tests.integration.api import Api, calls, envelope, output, serving, texts
from tests.integration.people import ASKING, keys_of
from tests.integration.small_graphs import EFFECTS, GRAPHS, ask, chain, done
from tests.openresponses import Json, validate_resource

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
TAKEN = pytest.mark.parametrize("verb", ["cancel", "delete"])
PATIENCE = 20.0  # seconds; the machine may be busy


async def dawdle(state: MessagesState) -> dict[str, Any]:
    done("began")
    await asyncio.sleep(PATIENCE)
    done("ended")
    return {"messages": [AIMessage("slow")]}


async def stubborn(state: MessagesState) -> dict[str, Any]:
    """Is not to be cancelled, and asks when it is through."""
    if done("began") == 1:
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            done("ignored")
    return {"messages": [AIMessage(str(interrupt("still?")))]}


async def silent(state: MessagesState) -> dict[str, Any]:
    answer = ask_approval(
        "review", question="Now?", expires_in=timedelta(seconds=1), on_expiry="reject"
    )
    done(answer.action)
    return {"messages": [AIMessage(answer.action)]}


OWN = {
    **{name: GRAPHS[name] for name in ("ask", "fan", "flaky", "remember", "twice")},
    "slow": Graph(chain(dawdle)),
    "ask-slow": Graph(chain(ask, dawdle)),
    "stubborn": Graph(chain(stubborn)),
    "silent": Graph(chain(silent)),
}


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with serving(database_url, OWN) as running:
        yield running


async def take(
    api: Api, verb: str, response: Json | str, headers: Mapping[str, str] | None = None
) -> httpx.Response:
    """Cancel it or delete it."""
    response_id = response if isinstance(response, str) else response["id"]
    path = f"/v1/responses/{response_id}"
    if verb == "delete":
        return await api.http.delete(path, headers=headers)
    return await api.http.post(f"{path}/cancel", headers=headers)


async def taken(api: Api, verb: str, response: Json | str) -> Json:
    answer = await take(api, verb, response)
    assert answer.status_code == 200, answer.text
    if verb == "cancel":
        validate_resource(answer.json())
    return dict(answer.json())


async def state_of(api: Api, run_id: str) -> tuple[str, list[str], int]:
    """The run's status, those of its questions, and how many checkpoint rows it has."""
    (run,) = await api.sql("SELECT status FROM fermata.runs WHERE id = %s", run_id)
    questions = await api.sql(
        "SELECT status FROM fermata.interrupts WHERE run_id = %s ORDER BY created_at, position",
        run_id,
    )
    return run["status"], [one["status"] for one in questions], await api.checkpoint_rows(run_id)


async def refused_late(api: Api, model: str, asked: Json, **more: Any) -> None:
    said = [output(call) for call in calls(asked)]
    status, error = await api.refused({"model": model, "input": said, **more})
    assert (status, error["code"], error["param"]) == (410, "interrupt_closed", "input")


async def begun(api: Api, model: str) -> str:
    """The id of this model's response in progress, once its node has begun."""
    async with asyncio.timeout(PATIENCE):
        while True:
            rows = await api.sql(
                "SELECT id, run_id FROM fermata.responses"
                " WHERE model = %s AND status = 'in_progress'",
                model,
            )
            if rows and "began" in EFFECTS.get(rows[0]["run_id"], ()):
                return str(rows[0]["id"])
            await asyncio.sleep(0.02)


async def settled(api: Api, response_id: str) -> Json:
    """What a client sees that polls until nothing is in progress."""
    async with asyncio.timeout(PATIENCE):
        while True:
            seen = (await api.get(response_id)).json()
            if seen["status"] != "in_progress":
                return dict(seen)
            await asyncio.sleep(0.02)


# --- what waits ------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("model", ["ask", "fan"])
async def test_C18_a_cancelled_wait_is_closed(api: Api, model: str, stream: bool) -> None:
    asked = await api.told(model, "hi", stream=stream)
    run_id = await api.run_of(asked)
    assert await taken(api, "cancel", asked) == asked
    assert await taken(api, "cancel", asked) == asked
    assert await state_of(api, run_id) == ("cancelled", ["cancelled"] * len(calls(asked)), 0)
    await refused_late(api, model, asked)
    await refused_late(api, model, asked, previous_response_id=asked["id"])
    await refused_late(api, model, asked, stream=True)
    assert "answered" not in EFFECTS.get(run_id, ())
    assert (await api.get(asked["id"])).json() == asked


@BOTH
async def test_C18_a_deleted_wait_is_closed(api: Api, stream: bool) -> None:
    asked = await api.told("ask", "hi", stream=stream)
    run_id = await api.run_of(asked)
    told = await taken(api, "delete", asked)
    assert told == {"id": asked["id"], "object": "response", "deleted": True}
    assert await state_of(api, run_id) == ("cancelled", ["cancelled"], 0)
    assert (await api.get(asked["id"])).status_code == 404
    for verb in ("delete", "cancel"):
        answer = await take(api, verb, asked)
        assert (answer.status_code, envelope(answer)["code"]) == (404, "not_found")
    await refused_late(api, "ask", asked)
    await refused_late(api, "ask", asked, previous_response_id=asked["id"])
    status, error = await api.refused(
        {"model": "ask", "input": "and?", "previous_response_id": asked["id"]}
    )
    assert (status, error["code"]) == (400, "previous_response_not_found")


async def test_C18_reviewers_see_that_it_was_withdrawn(api: Api) -> None:
    for verb in ("cancel", "delete"):
        asked = await api.create("ask", "hi")
        path = f"/v1/interrupts/{calls(asked)[0]['call_id']}"
        await taken(api, verb, asked)
        assert (await api.http.get(path)).json()["status"] == "cancelled"
        assert (await api.http.get("/v1/interrupts")).json()["data"] == []
        answer = await api.http.post(f"{path}/answer", json={"output": "yes"})
        assert (answer.status_code, envelope(answer)["param"]) == (410, "call_id")


@TAKEN
async def test_C18_silence_answers_nothing_that_was_withdrawn(api: Api, verb: str) -> None:
    asked = await api.create("silent", "hi")
    run_id = await api.run_of(asked)
    await taken(api, verb, asked)
    await asyncio.sleep(1.5)
    assert await state_of(api, run_id) == ("cancelled", ["cancelled"], 0)
    assert run_id not in EFFECTS


@TAKEN
async def test_C18_half_answered_is_withdrawn_as_a_whole(api: Api, verb: str) -> None:
    asked = await api.create("fan", "hi")
    run_id = await api.run_of(asked)
    first = calls(asked)[0]["call_id"]
    answer = await api.http.post(f"/v1/interrupts/{first}/answer", json={"output": "yes"})
    assert answer.status_code == 200
    await taken(api, verb, asked)
    expected = ("cancelled", ["answered", "cancelled", "cancelled"], 0)
    assert await state_of(api, run_id) == expected
    await refused_late(api, "fan", asked)


@TAKEN
@pytest.mark.parametrize("of", ["asking", "failed"])
async def test_C18_a_run_that_failed_after_its_answer_is_withdrawn(
    api: Api, verb: str, of: str
) -> None:
    asked = await api.create("flaky", "hi")
    run_id = await api.run_of(asked)
    said = [output(calls(asked)[0])]
    failed = await api.create("flaky", said)
    assert (await state_of(api, run_id))[0] == "stalled"
    await taken(api, verb, asked if of == "asking" else failed)
    assert await state_of(api, run_id) == ("cancelled", ["answered"], 0)
    answer = await api.post({"model": "flaky", "input": said})
    if verb == "cancel":
        assert answer.json() == failed  # what came of this very answer, as ever
    else:
        assert answer.status_code == (410 if of == "asking" else 404)
    assert EFFECTS[run_id].count("attempt") == 1


@TAKEN
async def test_C18_an_old_response_of_a_run_that_waits_anew_ends_nothing(
    api: Api, verb: str
) -> None:
    first = await api.create("twice", "hi")
    second = await api.create("twice", [output(calls(first)[0])], previous_response_id=first["id"])
    await taken(api, verb, first)
    said = [output(calls(second)[0], "no")]
    told = await api.create("twice", said, previous_response_id=second["id"])
    assert texts(told) == ["yes no"]
    await taken(api, verb, second)
    assert (await api.get(told["id"])).json() == told


@TAKEN
async def test_C18_what_reviewers_made_of_a_response_goes_with_it(api: Api, verb: str) -> None:
    asked = await api.create("twice", "hi")
    run_id = await api.run_of(asked)
    call_id = calls(asked)[0]["call_id"]
    answer = await api.http.post(f"/v1/interrupts/{call_id}/answer", json={"output": "yes"})
    assert answer.status_code == 200
    seen = await settled(api, asked["id"])
    await taken(api, verb, asked)
    assert await state_of(api, run_id) == ("cancelled", ["answered", "cancelled"], 0)
    following = seen["fermata"]["continued_by"]
    assert (await api.get(following)).status_code == (200 if verb == "cancel" else 404)


# --- what ended ------------------------------------------------------------------------------


@BOTH
async def test_C18_what_has_ended_is_cancelled_unchanged_and_can_be_deleted(
    api: Api, stream: bool
) -> None:
    told = await api.told("remember", "hi", stream=stream)
    assert await taken(api, "cancel", told) == told
    await taken(api, "delete", told)
    assert (await api.get(told["id"])).status_code == 404


async def test_C18_an_answer_whose_response_was_deleted_is_not_found_again(api: Api) -> None:
    asked = await api.create("ask", "hi")
    said = {"model": "ask", "input": [output(calls(asked)[0])], "previous_response_id": asked["id"]}
    told = (await api.post(said)).json()
    await taken(api, "delete", told)
    status, error = await api.refused(said)
    assert (status, error["code"]) == (404, "not_found")


async def test_C18_a_deleted_response_cuts_the_history_of_those_that_follow(api: Api) -> None:
    first = await api.create("remember", "one")
    second = await api.create("remember", "two", previous_response_id=first["id"])
    await taken(api, "delete", first)
    third = await api.create("remember", "three", previous_response_id=second["id"])
    assert texts(third) == [f"human:two\nai:{texts(second)[0]}\nhuman:three"]


@TAKEN
@pytest.mark.parametrize("id", ["resp_unknown", "x", "%00", "%ED%A0%80"])
async def test_C18_the_unknown_is_not_found(api: Api, verb: str, id: str) -> None:
    answer = await take(api, verb, id)
    assert (answer.status_code, envelope(answer)["param"]) == (404, "response_id")


@TAKEN
async def test_C18_what_was_not_stored_is_not_found(api: Api, verb: str) -> None:
    asked = await api.create("ask", "hi", store=False)
    assert (await take(api, verb, asked)).status_code == 404
    assert texts(await api.create("ask", [output(calls(asked)[0])])) == ["answer: 'yes'"]


# --- what moves ------------------------------------------------------------------------------


@BOTH
async def test_C18_a_response_in_progress_is_stopped(api: Api, stream: bool) -> None:
    request = asyncio.create_task(api.told("slow", "hi", stream=stream))
    response_id = await begun(api, "slow")
    answer = await take(api, "delete", response_id)
    assert (answer.status_code, envelope(answer)["code"]) == (409, "response_in_progress")
    told = await asyncio.gather(*(taken(api, "cancel", response_id) for _ in range(3)))
    assert [one["status"] for one in told] == ["cancelled"] * 3
    assert (await api.get(response_id)).json() == told[0] == await request
    assert EFFECTS[await api.run_of(told[0])] == ["began"]
    await taken(api, "delete", response_id)


async def test_C18_what_asks_instead_of_stopping_is_withdrawn(api: Api) -> None:
    request = asyncio.create_task(api.create("stubborn", "hi"))
    response_id = await begun(api, "stubborn")
    await taken(api, "cancel", response_id)
    asked = await request
    run_id = await api.run_of(asked)
    if calls(asked):
        assert await state_of(api, run_id) == ("cancelled", ["cancelled"], 0)
        await refused_late(api, "stubborn", asked)
    else:
        assert asked["status"] == "cancelled"


@TAKEN
async def test_C18_an_accepted_answer_is_carried_out(api: Api, verb: str) -> None:
    asked = await api.create("ask-slow", "hi")
    request = asyncio.create_task(api.create("ask-slow", [output(calls(asked)[0])]))
    response_id = await begun(api, "ask-slow")
    for one in (response_id, asked):
        answer = await take(api, verb, one)
        assert (answer.status_code, envelope(answer)["code"]) == (409, "response_in_progress")
    request.cancel()


@TAKEN
async def test_C18_another_process_cannot_stop_it(api: Api, verb: str, database_url: str) -> None:
    request = asyncio.create_task(api.create("slow", "hi"))
    response_id = await begun(api, "slow")
    async with serving(database_url, OWN) as other:
        answer = await take(other, verb, response_id)
        assert (answer.status_code, envelope(answer)["code"]) == (409, "response_in_progress")
        asked = await api.create("ask", "hi")
        await taken(other, verb, asked)
        await refused_late(api, "ask", asked)
    await taken(api, "cancel", response_id)
    assert (await request)["status"] == "cancelled"


@TAKEN
@pytest.mark.parametrize("head_start", [0, 0.002, 0.005, 0.01])
async def test_C18_of_an_answer_and_a_withdrawal_one_wins(
    api: Api, verb: str, head_start: float
) -> None:
    async def withdraw(asked: Json) -> httpx.Response:
        await asyncio.sleep(head_start)
        return await take(api, verb, asked)

    for _ in range(5):
        asked = await api.create("ask", "hi")
        run_id = await api.run_of(asked)
        said = {"model": "ask", "input": [output(calls(asked)[0])]}
        answer, withdrawn = await asyncio.gather(api.post(said), withdraw(asked))
        status, questions, rows = await state_of(api, run_id)
        assert rows == 0
        if status == "cancelled":
            assert (answer.status_code, envelope(answer)["code"]) == (410, "interrupt_closed")
            assert (withdrawn.status_code, questions) == (200, ["cancelled"])
            assert "answered" not in EFFECTS[run_id]
        else:
            assert (status, questions) == ("completed", ["answered"])
            assert texts(answer.json()) == ["answer: 'yes'"]
            assert withdrawn.status_code in (200, 409)
            assert EFFECTS[run_id].count("answered") == 1


@TAKEN
async def test_C18_many_withdrawals_at_once(api: Api, verb: str) -> None:
    asked = await api.create("ask", "hi")
    run_id = await api.run_of(asked)
    answers = await asyncio.gather(*(take(api, verb, asked) for _ in range(5)))
    found = sorted(one.status_code for one in answers)
    assert found == ([200] * 5 if verb == "cancel" else [200, *[404] * 4])
    assert await state_of(api, run_id) == ("cancelled", ["cancelled"], 0)


# --- who -------------------------------------------------------------------------------------


async def test_C18_only_its_own_tenant_can(database_url: str) -> None:
    async with serving(database_url, ASKING, AUTH="keys") as api:
        keys = await keys_of(database_url)
        mia, eve = ({"authorization": f"Bearer {keys[who]}"} for who in ("mia", "eve"))
        asked = (await api.post({"model": "raw", "input": "hi"}, headers=mia)).json()
        for verb in ("cancel", "delete"):
            assert (await take(api, verb, asked)).status_code == 401
            answer = await take(api, verb, asked, eve)
            assert (answer.status_code, envelope(answer)["code"]) == (404, "not_found")
        assert (await state_of(api, await api.run_of(asked)))[0] == "waiting"
        assert (await take(api, "delete", asked, mia)).status_code == 200
        said = {"model": "raw", "input": [output(calls(asked)[0])]}
        assert (await api.post(said, headers=mia)).status_code == 410
        unknown = {"model": "raw", "input": [output("call_unknown")]}
        found = [await api.post(body, headers=eve) for body in (said, unknown)]
        assert found[0].status_code == found[1].status_code != 410
        assert envelope(found[0])["code"] == envelope(found[1])["code"]
