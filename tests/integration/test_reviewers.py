"""Questions answered one by one, by people who are not the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.integration.api import Api, calls, envelope, output, serving, texts
from tests.integration.people import ASKING, PEOPLE, keys_of
from tests.integration.small_graphs import EFFECTS
from tests.openresponses import Json, validate_resource

PATIENCE = 20.0  # seconds; the machine may be busy


@dataclass
class Desk:
    """Where people look at questions; `who` is one of `PEOPLE`."""

    api: Api
    keys: dict[str, str]

    def headers(self, who: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.keys[who]}"}

    async def create(self, model: str, said: Any = "go", who: str = "mia", **fields: Any) -> Json:
        answer = await self.api.post(
            {"model": model, "input": said, **fields}, headers=self.headers(who)
        )
        assert answer.status_code == 200, answer.text
        validate_resource(answer.json())
        return dict(answer.json())

    async def answer(self, call: Json, body: Any, who: str = "bob") -> Any:
        path = f"/v1/interrupts/{call['call_id']}/answer"
        return await self.api.http.post(path, json=body, headers=self.headers(who))

    async def answered(self, call: Json, body: Any, who: str = "bob") -> Json:
        answer = await self.answer(call, body, who)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def look(self, call: Json, who: str = "bob") -> Json:
        path = f"/v1/interrupts/{call['call_id']}"
        return dict((await self.api.http.get(path, headers=self.headers(who))).json())

    async def list(self, who: str = "bob", **query: Any) -> Json:
        answer = await self.api.http.get("/v1/interrupts", params=query, headers=self.headers(who))
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def get(self, response_id: str, who: str = "mia") -> Json:
        answer = await self.api.http.get(f"/v1/responses/{response_id}", headers=self.headers(who))
        assert answer.status_code == 200, answer.text
        validate_resource(answer.json())
        return dict(answer.json())

    async def polled(self, response_id: str, until: str = "message") -> Json:
        """What a client sees that polls until there is such an item, or the response failed."""
        async with asyncio.timeout(PATIENCE):
            while True:
                seen = await self.get(response_id)
                kinds = [item["type"] for item in seen["output"]]
                if seen["status"] != "in_progress" and (
                    until in kinds or seen["status"] == "failed"
                ):
                    return seen
                await asyncio.sleep(0.02)

    async def questions(self, response: Json) -> list[dict[str, Any]]:
        return await self.api.sql(
            "SELECT status, reviewer, answered_by FROM fermata.interrupts"
            " WHERE response_id = %s ORDER BY position",
            response["id"],
        )


@pytest.fixture
async def desk(database_url: str) -> AsyncIterator[Desk]:
    async with serving(database_url, ASKING, AUTH="keys") as api:
        yield Desk(api, await keys_of(database_url))


# --- one question ----------------------------------------------------------------------------


async def test_C45_the_response_that_asked_shows_what_came_of_it(desk: Desk) -> None:
    asked = await desk.create("refund", metadata={"order": "7"})
    (call,) = calls(asked)
    told = await desk.answered(call, {"action": "approve", "note": "fine"})
    assert told["status"] == "answered"
    assert told["answerable"] is False
    seen = await desk.polled(asked["id"])
    assert [item["type"] for item in seen["output"]] == [
        "function_call", "function_call_output", "message"
    ]  # fmt: skip
    assert (seen["id"], seen["status"], seen["output"][0]) == (asked["id"], "completed", call)
    assert seen["output"][1]["call_id"] == call["call_id"]
    assert "bob" not in seen["output"][1]["output"]
    assert texts(seen) == ["approve by bob: fine"]
    assert seen["metadata"] == {"order": "7"}
    assert await desk.get(asked["id"]) == seen
    # The response that carries it is an ordinary one, and what comes next belongs to it.
    carrier = await desk.get(seen["fermata"]["continued_by"])
    assert carrier["id"] == told["answered_by"]
    assert texts(carrier) == texts(seen)
    assert carrier["previous_response_id"] == asked["id"]
    assert "fermata" not in carrier
    later = await desk.create("refund", "again", previous_response_id=carrier["id"])
    assert calls(later)


async def test_what_nobody_answered_is_as_it_was(desk: Desk) -> None:
    asked = await desk.create("refund")
    assert await desk.get(asked["id"]) == asked


async def test_a_clients_own_answer_leaves_the_response_that_asked_alone(desk: Desk) -> None:
    asked = await desk.create("raw")
    await desk.create("raw", [output(calls(asked)[0])], previous_response_id=asked["id"])
    assert await desk.get(asked["id"]) == asked


async def test_a_question_as_its_reviewers_see_it(desk: Desk) -> None:
    asked = await desk.create("refund")
    (call,) = calls(asked)
    seen = await desk.look(call)
    times = {seen.pop(name) for name in ("created_at", "expires_at")}
    assert all(isinstance(one, int) for one in times)
    assert seen == {
        "id": call["call_id"],
        "object": "fermata.interrupt",
        "call_id": call["call_id"],
        "response_id": asked["id"],
        "model": "refund",
        "name": call["name"],
        "requester": "mia",
        "status": "pending",
        "answerable": True,
        "question": {
            "expects": "approval",
            "question": "Refund?",
            "payload": {"n": 1},
            "allowed": ["approve", "reject"],
        },
        "answered_at": None,
        "answered_by": None,
    }
    assert (await desk.look(call, "carl"))["answerable"] is False
    assert (await desk.look(call, "mia"))["answerable"] is False


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"action": "approve"}, "approve by bob: None"),
        ({"action": "reject", "note": "too much"}, "reject by bob: too much"),
        ({"type": "approve"}, "approve by bob: None"),
        ({"output": "Yes"}, "approve by bob: None"),
        ({"output": '{"action": "reject", "note": "ñ"}'}, "reject by bob: ñ"),
        ({"output": {"action": "approve"}}, "approve by bob: None"),
    ],
)
async def test_answers_in_every_form(desk: Desk, body: Json, said: str) -> None:
    asked = await desk.create("refund")
    await desk.answered(calls(asked)[0], body)
    assert texts(await desk.polled(asked["id"])) == [said]


@pytest.mark.parametrize(
    ("value", "seen"), [("free words", "'free words'"), ([1, 2], "[1, 2]"), ("", "''")]
)
async def test_a_raw_interrupt_takes_anything(desk: Desk, value: Any, seen: str) -> None:
    asked = await desk.create("raw")
    await desk.answered(calls(asked)[0], {"output": value})
    assert texts(await desk.polled(asked["id"])) == [f"answer: {seen}"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"output": "ok"}, "output"),
        ({"output": True}, "output"),
        ({"output": None}, "output"),
        ({"output": ""}, "output"),
        ({"output": ["approve"]}, "output"),
        ({"action": "apply"}, "output"),
        ({"action": "edit", "value": {}}, "output"),
        ({"answer": "approve"}, "output"),
    ],
)
async def test_a_wrong_answer_is_refused_and_the_question_stays(
    desk: Desk, body: Any, param: str
) -> None:
    asked = await desk.create("refund")
    refused = await desk.answer(calls(asked)[0], body)
    assert refused.status_code == 400
    assert envelope(refused)["code"] == "invalid_interrupt_answer"
    assert envelope(refused)["param"] == param
    assert (await desk.look(calls(asked)[0]))["status"] == "pending"


@pytest.mark.parametrize("body", [[], "approve", 7, None, {}])
async def test_a_body_that_is_no_answer(desk: Desk, body: Any) -> None:
    asked = await desk.create("raw")
    assert envelope(await desk.answer(calls(asked)[0], body))
    assert (await desk.look(calls(asked)[0]))["status"] == "pending"


async def test_a_body_that_is_no_json(desk: Desk) -> None:
    call = calls(await desk.create("raw"))[0]
    path = f"/v1/interrupts/{call['call_id']}/answer"
    refused = await desk.api.http.post(path, content=b"{", headers=desk.headers("bob"))
    assert envelope(refused)["code"] == "invalid_json"


@pytest.mark.parametrize("call_id", ["call_none", "%00", "ä", "a" * 5000])
async def test_a_question_that_is_none(desk: Desk, call_id: str) -> None:
    for answer in (
        await desk.api.http.get(f"/v1/interrupts/{call_id}", headers=desk.headers("bob")),
        await desk.answer({"call_id": call_id}, {"action": "approve"}),
    ):
        assert (answer.status_code, envelope(answer)["code"]) == (404, "not_found")


# --- again, and at once ----------------------------------------------------------------------


async def test_the_same_answer_again_changes_nothing(desk: Desk) -> None:
    asked = await desk.create("refund")
    (call,) = calls(asked)
    first = await desk.answered(call, {"action": "approve"})
    await desk.polled(asked["id"])
    assert await desk.answered(call, {"output": "yes"}) == first
    assert EFFECTS[await desk.api.run_of(asked)] == ["answered"]


@pytest.mark.parametrize(("who", "body"), [("bob", {"output": "no"}), ("mia", {"output": "yes"})])
async def test_another_answer_is_refused_and_the_first_stands(
    desk: Desk, who: str, body: Json
) -> None:
    asked = await desk.create("refund", who="anna")
    (call,) = calls(asked)
    await desk.answered(call, {"action": "approve"})
    refused = await desk.answer(call, body, who)
    assert envelope(refused)["code"] == "interrupt_already_answered"
    assert "another reviewer" in envelope(refused)["message"]
    assert "bob" not in envelope(refused)["message"]
    assert texts(await desk.polled(asked["id"])) == ["approve by bob: None"]


async def test_twenty_answers_at_once_are_one(desk: Desk) -> None:
    asked = await desk.create("refund", who="anna")
    (call,) = calls(asked)
    people = ["bob", "mia"] * 10
    told = await asyncio.gather(*(desk.answer(call, {"action": "approve"}, one) for one in people))
    (question,) = await desk.questions(asked)
    for who, answer in zip(people, told, strict=True):
        if who == question["reviewer"]:
            assert answer.json()["answered_by"] == question["answered_by"]
        else:
            assert envelope(answer)["code"] == "interrupt_already_answered"
    await desk.polled(asked["id"])
    assert EFFECTS[await desk.api.run_of(asked)] == ["answered"]


async def test_a_run_that_failed_after_the_answer_goes_on_with_the_same(desk: Desk) -> None:
    asked = await desk.create("flaky")
    (call,) = calls(asked)
    first = await desk.answered(call, {"action": "approve"})
    failed = await desk.polled(asked["id"])
    assert (failed["status"], failed["error"]["code"]) == ("failed", "run_failed")
    assert envelope(await desk.answer(call, {"action": "reject"}))
    again = await desk.answered(call, {"action": "approve"})
    assert again["answered_by"] != first["answered_by"]
    seen = await desk.polled(asked["id"])
    assert (seen["status"], texts(seen)) == ("completed", ["approve after all"])


# --- several questions -----------------------------------------------------------------------


async def test_the_last_answer_of_a_batch_resumes(desk: Desk) -> None:
    asked = await desk.create("several")
    one, two = calls(asked)
    kept = await desk.answered(two, {"action": "reject"}, "carl")
    assert (kept["status"], kept["answered_by"]) == ("answered", None)
    assert await desk.get(asked["id"]) == asked
    assert [entry["id"] for entry in (await desk.list())["data"]] == [one["call_id"]]
    assert await desk.answered(two, {"action": "reject"}, "carl") == kept
    refused = await desk.answer(two, {"action": "approve"}, "bob")
    assert envelope(refused)["code"] == "interrupt_already_answered"
    await desk.answered(one, {"action": "approve"}, "bob")
    seen = await desk.polled(asked["id"])
    assert texts(seen) == ["a=approve by bob b=reject by carl"]
    outputs = [item for item in seen["output"] if item["type"] == "function_call_output"]
    assert [item["call_id"] for item in outputs] == [one["call_id"], two["call_id"]]
    # A takeover would find both answers by the response that carries them.
    carrier = seen["fermata"]["continued_by"]
    assert await desk.questions(asked) == [
        {"status": "answered", "reviewer": who, "answered_by": carrier} for who in ("bob", "carl")
    ]
    assert sorted(EFFECTS[await desk.api.run_of(asked)]) == ["a", "b"]
    assert await desk.api.checkpoint_rows(await desk.api.run_of(asked)) == 0


async def test_two_last_answers_at_once_resume_one_run(desk: Desk) -> None:
    for _ in range(5):
        asked = await desk.create("several")
        told = await asyncio.gather(
            *(
                desk.answer(call, {"action": "approve"}, who)
                for call, who in zip(calls(asked), ("bob", "carl"), strict=True)
            )
        )
        assert [answer.status_code for answer in told] == [200, 200]
        await desk.polled(asked["id"])
        assert sorted(EFFECTS[await desk.api.run_of(asked)]) == ["a", "b"]


async def test_a_run_that_asks_again_is_followed_on(desk: Desk) -> None:
    asked = await desk.create("twice")
    await desk.answered(calls(asked)[0], {"output": "one"})
    async with asyncio.timeout(PATIENCE):
        while not (entries := (await desk.list())["data"]):  # noqa: ASYNC110  # as clients do
            await asyncio.sleep(0.02)
    seen = await desk.get(asked["id"])
    _, second = calls(seen)
    assert (entries[0]["id"], entries[0]["response_id"]) == (
        second["call_id"], seen["fermata"]["continued_by"]
    )  # fmt: skip
    await desk.answered(second, {"output": "two"})
    final = await desk.polled(asked["id"])
    assert [item["type"] for item in final["output"]] == [
        "function_call", "function_call_output", "function_call", "function_call_output", "message"
    ]  # fmt: skip
    assert texts(final) == ["one two"]
    middle = await desk.get(seen["fermata"]["continued_by"])
    assert calls(middle) == [second]
    assert middle["fermata"] == final["fermata"]


async def mixed(desk: Desk) -> tuple[Json, Json, Json]:
    """A batch whose first question a reviewer has answered."""
    asked = await desk.create("several", who="bob")
    one, two = calls(asked)
    await desk.answered(one, {"action": "approve"}, "carl")
    return asked, one, two


async def test_the_client_answers_what_the_reviewers_left(desk: Desk) -> None:
    asked, _, two = await mixed(desk)
    final = await desk.create(
        "several", [output(two, "no")], "bob", previous_response_id=asked["id"]
    )
    assert texts(final) == ["a=approve by carl b=reject by bob"]
    assert [one["answered_by"] for one in await desk.questions(asked)] == [final["id"]] * 2
    assert await desk.get(asked["id"]) == asked


async def test_whoever_answered_one_elsewhere_may_repeat_it_with_the_rest(desk: Desk) -> None:
    asked, one, two = await mixed(desk)
    both = [output(one, "approve"), output(two, "no")]
    final = await desk.create("several", both, "carl", previous_response_id=asked["id"])
    assert texts(final) == ["a=approve by carl b=reject by carl"]


@pytest.mark.parametrize(("who", "said"), [("bob", "yes"), ("bob", "no"), ("carl", "no")])
async def test_another_answer_to_what_a_reviewer_answered_is_refused(
    desk: Desk, who: str, said: str
) -> None:
    asked, one, two = await mixed(desk)
    body = {
        "model": "several",
        "previous_response_id": asked["id"],
        "input": [output(one, said), output(two, "no")],
    }
    refused = await desk.api.post(body, headers=desk.headers(who))
    assert envelope(refused)["code"] == "interrupt_already_answered"
    assert [one["status"] for one in await desk.questions(asked)] == ["answered", "pending"]


# --- the list --------------------------------------------------------------------------------


async def test_everybody_sees_what_they_may_answer(desk: Desk) -> None:
    refund = calls(await desk.create("refund"))[0]["call_id"]
    first, second = (call["call_id"] for call in calls(await desk.create("several", who="anna")))
    raw = calls(await desk.create("raw"))[0]["call_id"]
    expected = {
        "bob": [refund, first, second, raw],
        "mia": [first, second, raw],
        "carl": [first, second, raw],
        "anna": [raw],
        "eve": [],
    }
    assert expected.keys() == PEOPLE.keys()
    for who, ids in expected.items():
        listed = await desk.list(who)
        assert [entry["id"] for entry in listed["data"]] == ids
        assert all(entry["answerable"] for entry in listed["data"])
        assert (listed["object"], listed["has_more"]) == ("list", False)


async def test_the_list_in_pages(desk: Desk) -> None:
    ids = []
    for _ in range(3):
        await desk.create("refund", who="bob")  # which bob may not answer, in between
        ids.append(calls(await desk.create("raw"))[0]["call_id"])
    pages, after = [], {}
    while True:
        page = await desk.list("bob", limit=2, status="pending", **after)
        pages.append([entry["id"] for entry in page["data"]])
        assert (page["first_id"], page["last_id"]) == (pages[-1][0], pages[-1][-1])
        if not page["has_more"]:
            break
        after = {"after": page["last_id"]}
    assert pages == [ids[:2], ids[2:]]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "101"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"limit": "٣"}, "limit"),
        ({"limit": "9" * 5000}, "limit"),
        ({"after": "call_none"}, "after"),
        ({"after": "\x00"}, "after"),
        ({"status": "answered"}, "status"),
    ],
)
async def test_a_wrong_list_is_refused(desk: Desk, query: Json, param: str) -> None:
    answer = await desk.api.http.get("/v1/interrupts", params=query, headers=desk.headers("bob"))
    assert (answer.status_code, envelope(answer)["param"]) == (400, param)


# --- what is over, and what is not kept --------------------------------------------------------


async def test_what_is_over_is_gone_for_reviewers_too(desk: Desk) -> None:
    asked = await desk.create("refund")
    (call,) = calls(asked)
    await desk.api.sql("UPDATE fermata.runs SET expires_at = now() - interval '1 second'")
    assert (await desk.list())["data"] == []
    seen = await desk.look(call)
    assert (seen["status"], seen["answerable"]) == ("expired", False)
    late = await desk.answer(call, {"action": "approve"})
    assert (late.status_code, envelope(late)["code"]) == (410, "interrupt_expired")
    # Not even that is told to who may not answer.
    assert (await desk.answer(call, {"action": "approve"}, "carl")).status_code == 403


async def test_a_question_is_answerable_whatever_store_says(desk: Desk) -> None:
    asked = await desk.create("refund", store=False)
    told = await desk.answered(calls(asked)[0], {"action": "approve"})
    async with asyncio.timeout(PATIENCE):
        while await desk.api.sql("SELECT 1 FROM fermata.runs WHERE status = 'running'"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert EFFECTS[await desk.api.run_of(asked)] == ["answered"]
    for response_id in (asked["id"], told["answered_by"]):
        answer = await desk.api.http.get(
            f"/v1/responses/{response_id}", headers=desk.headers("mia")
        )
        assert answer.status_code == 404


async def test_without_authentication_nobody_has_a_role(database_url: str) -> None:
    """Open is not everything: a question for a manager waits for somebody who proves to be one."""
    async with serving(database_url, ASKING) as api:
        (refund,) = calls(await api.create("refund", "go"))
        (raw,) = calls(await api.create("raw", "go"))
        path = "/v1/interrupts"
        assert [one["id"] for one in (await api.http.get(path)).json()["data"]] == [raw["call_id"]]
        body = {"action": "approve"}
        refused = await api.http.post(f"{path}/{refund['call_id']}/answer", json=body)
        assert envelope(refused)["code"] == "reviewer_not_allowed"
        taken = await api.http.post(f"{path}/{raw['call_id']}/answer", json=body)
        assert taken.status_code == 200
