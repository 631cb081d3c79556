"""`/v1/conversations`, and responses that go on in one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from openai import NotFoundError
from openai.types.conversations import Conversation, ConversationDeletedResource
from openai.types.conversations.conversation_item_list import ConversationItemList

from gateway.runs.recovery import recover
from tests.integration.api import Api, calls, envelope, output, texts
from tests.integration.small_graphs import GATES
from tests.openresponses import Json, validate_items, validate_listed_item

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])


def user(content: Any, **more: Any) -> Json:
    return {"role": "user", "content": content, **more}


async def made(api: Api, *items: Json, **metadata: str) -> str:
    """A new conversation's id."""
    body = {"items": list(items), "metadata": metadata}
    answer = await api.http.post("/v1/conversations", json=body)
    assert answer.status_code == 200, answer.text
    Conversation.model_validate_json(answer.content, strict=True)
    assert answer.json().keys() == {"id", "object", "created_at", "metadata"}
    return str(answer.json()["id"])


async def held(api: Api, conversation: str, **query: Any) -> list[Json]:
    """Its items, oldest first, validated."""
    path = f"/v1/conversations/{conversation}/items"
    answer = await api.http.get(path, params={"order": "asc", "limit": 100, **query})
    assert answer.status_code == 200, answer.text
    validate_items(answer.json(), of=ConversationItemList)
    return list(answer.json()["data"])


def brief(items: list[Json]) -> list[str]:
    """An item as one short text."""
    return [
        item["content"][0]["text"] if item["type"] == "message" else item["type"] for item in items
    ]


# --- conversations and their items -----------------------------------------------------------


async def test_the_sdk_makes_reads_changes_and_deletes_one(api: Api) -> None:
    client = api.openai()
    one = await client.conversations.create(metadata={"a": "1"}, items=[user("hi")])
    assert (one.object, one.metadata) == ("conversation", {"a": "1"})
    assert await client.conversations.retrieve(one.id) == one
    changed = await client.conversations.update(one.id, metadata={"b": "2"})
    assert (changed.id, changed.metadata) == (one.id, {"b": "2"})
    added = await client.conversations.items.create(one.id, items=[user("one"), user("two")])
    assert [item.type for item in added.data] == ["message", "message"]
    found = [item async for item in client.conversations.items.list(one.id, limit=1)]
    assert [item.content[0].text for item in found] == ["two", "one", "hi"]  # type: ignore[union-attr]
    item = await client.conversations.items.retrieve(found[0].id or "", conversation_id=one.id)
    assert item == found[0]
    left = await client.conversations.items.delete(found[0].id or "", conversation_id=one.id)
    assert left == changed
    assert brief(await held(api, one.id)) == ["hi", "one"]
    gone = await client.conversations.delete(one.id)
    assert (gone.id, gone.deleted, gone.object) == (one.id, True, "conversation.deleted")
    with pytest.raises(NotFoundError):
        await client.conversations.retrieve(one.id)
    assert not await api.sql(
        "SELECT 1 FROM fermata.conversation_items WHERE conversation_id = %s", one.id
    )


async def test_deleted_resources_and_items_have_the_sdks_shape(api: Api) -> None:
    id = await made(api, user("hi"))
    (item,) = await held(api, id)
    answer = await api.http.get(f"/v1/conversations/{id}/items/{item['id']}")
    assert answer.json() == item
    validate_listed_item(answer.json())
    answer = await api.http.delete(f"/v1/conversations/{id}")
    ConversationDeletedResource.model_validate_json(answer.content, strict=True)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"items": null, "metadata": null}'])
async def test_a_conversation_may_be_empty(api: Api, body: bytes) -> None:
    answer = await api.http.post("/v1/conversations", content=body)
    assert (answer.status_code, answer.json()["metadata"]) == (200, {})
    assert await held(api, answer.json()["id"]) == []


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_pages_are_the_list_in_pieces(api: Api, order: str, limit: int) -> None:
    id = await made(api, *(user(str(number)) for number in range(5)))
    whole = await held(api, id, order=order)
    path, found, more = f"/v1/conversations/{id}/items", [], {}
    while not found or more:
        page = (await api.http.get(path, params={"order": order, "limit": limit, **more})).json()
        found += page["data"]
        more = {"after": page["last_id"]} if page["has_more"] else {}
    assert found == whole
    assert len(whole) == 5


async def test_an_item_that_is_there_is_not_added_again(api: Api) -> None:
    id = await made(api, user("one", id="msg_1"))
    path = f"/v1/conversations/{id}/items"
    sent = [user("one", id="msg_1"), user("two", id="msg_2"), user("two", id="msg_2")]
    answer = await api.http.post(path, json={"items": sent})
    assert brief(answer.json()["data"]) == ["two"]
    assert brief(await held(api, id)) == ["one", "two"]


BAD_BODIES: dict[str, tuple[Any, str | None]] = {
    "no object": ([], None),
    "metadata is a list": ({"metadata": []}, "metadata"),
    "seventeen pairs": ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
    "a long key": ({"metadata": {"k" * 65: "x"}}, "metadata"),
    "a long value": ({"metadata": {"k": "x" * 513}}, "metadata.k"),
    "items is a string": ({"items": "hi"}, "items"),
    "an unknown item": ({"items": [{"type": "nonsense"}]}, "items[0].type"),
    "a broken part": (
        {"items": [user([{"type": "input_image"}])]},
        "items[0].content[0].image_url",
    ),
    "an unknown reference": ({"items": [{"type": "item_reference", "id": "x"}]}, "items[0].id"),
}


@pytest.mark.parametrize("name", BAD_BODIES)
async def test_C40_a_bad_body_names_one_parameter(api: Api, name: str) -> None:
    body, param = BAD_BODIES[name]
    answer = await api.http.post("/v1/conversations", json=body)
    assert (answer.status_code, envelope(answer)["param"]) == (400, param)


async def test_C40_texts_that_postgresql_cannot_index_are_items_all_the_same(api: Api) -> None:
    odd = [user("\u0000\ud800", id="\u0000"), user("x", id="ü"), output("\u0000", "\ud800")]
    sent = json.dumps({"items": odd, "metadata": {"\u0000": "\ud800"}})
    answer = await api.http.post("/v1/conversations", content=sent)
    assert answer.status_code == 200, answer.text
    id = answer.json()["id"]
    assert (await api.http.get(f"/v1/conversations/{id}")).json()["metadata"] == {"\0": "\ud800"}
    found = (await api.http.get(f"/v1/conversations/{id}/items?order=asc")).json()["data"]
    assert found[0]["content"][0]["text"] == "\u0000\ud800"
    for item in found:
        path = f"/v1/conversations/{id}/items/{item['id']}"
        assert (await api.http.get(path)).json() == item


NOWHERE = ("conv_x", "%00", "x" * 1000)


@pytest.mark.parametrize("id", NOWHERE)
async def test_what_is_not_there_is_a_404(api: Api, id: str) -> None:
    there = await made(api, user("hi"))
    for method, path, body in (
        ("GET", f"/v1/conversations/{id}", None),
        ("POST", f"/v1/conversations/{id}", {"metadata": {}}),
        ("DELETE", f"/v1/conversations/{id}", None),
        ("GET", f"/v1/conversations/{id}/items", None),
        ("POST", f"/v1/conversations/{id}/items", {"items": [user("x")]}),
        ("GET", f"/v1/conversations/{id}/items/msg_1", None),
        ("DELETE", f"/v1/conversations/{id}/items/msg_1", None),
        ("GET", f"/v1/conversations/{there}/items/{id}", None),
        ("DELETE", f"/v1/conversations/{there}/items/{id}", None),
    ):
        answer = await api.http.request(method, path, json=body)
        assert answer.status_code == 404, (method, path)
        assert envelope(answer)["code"] == "not_found"
    status, error = await api.refused({"model": "parrot", "input": "x", "conversation": id})
    assert (status, error["param"]) == (404, "conversation")


async def test_another_tenants_conversation_looks_like_none(api: Api) -> None:
    id = await made(api, user("hi"))
    (item,) = await held(api, id)
    await api.sql("UPDATE fermata.conversations SET tenant = 'rival' WHERE id = %s", id)
    await api.sql(
        "UPDATE fermata.conversation_items SET tenant = 'rival' WHERE id = %s", item["id"]
    )
    for method, path, body in (
        ("GET", f"/v1/conversations/{id}", None),
        ("POST", f"/v1/conversations/{id}", {"metadata": {}}),
        ("DELETE", f"/v1/conversations/{id}", None),
        ("GET", f"/v1/conversations/{id}/items", None),
        ("POST", f"/v1/conversations/{id}/items", {"items": [user("x")]}),
        ("GET", f"/v1/conversations/{id}/items/{item['id']}", None),
        ("DELETE", f"/v1/conversations/{id}/items/{item['id']}", None),
        ("POST", "/v1/responses", {"model": "parrot", "input": "x", "conversation": id}),
        ("POST", "/v1/responses/input_tokens", {"input": "x", "conversation": id}),
    ):
        answer = await api.http.request(method, path, json=body)
        assert answer.status_code == 404, (method, path)
        assert envelope(answer)["code"] == "not_found"
    status, error = await api.refused(
        {"model": "parrot", "input": [{"type": "item_reference", "id": item["id"]}]}
    )
    assert (status, error["param"]) == (400, "input[0].id")
    assert len(await api.sql("SELECT 1 FROM fermata.conversation_items WHERE id = %s", item["id"]))


# --- responses in a conversation -------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("as_object", [False, True])
async def test_a_conversation_is_the_context_and_grows(
    api: Api, stream: bool, as_object: bool
) -> None:
    id = await made(api, {"role": "developer", "content": "be brief"}, user("one"))
    named: Any = {"id": id} if as_object else id
    first = await api.told("remember", "two", stream=stream, conversation=named)
    assert first["conversation"] == {"id": id}
    assert texts(first) == ["system:be brief\nhuman:one\nhuman:two"]
    second = await api.told("remember", "three", stream=stream, conversation=named)
    reply = texts(first)[0]
    assert texts(second) == [f"{reply}\nai:{reply}\nhuman:three"]
    items = await held(api, id)
    assert brief(items) == ["be brief", "one", "two", reply, "three", texts(second)[0]]
    assert items[3]["id"] == first["output"][0]["id"]


async def test_instructions_do_not_become_part_of_it(api: Api) -> None:
    id = await made(api)
    told = await api.create("remember", "hi", conversation=id, instructions="be brief")
    assert texts(told) == ["system:be brief\nhuman:hi"]
    assert brief(await held(api, id))[0] == "hi"


async def test_a_conversation_may_be_answered_without_new_input(api: Api) -> None:
    id = await made(api, user("hi"))
    answer = await api.post({"model": "remember", "conversation": id})
    assert texts(answer.json()) == ["human:hi"]


async def test_conversation_and_previous_response_exclude_each_other(api: Api) -> None:
    first = await api.create("parrot", "hi")
    status, error = await api.refused(
        {
            "model": "parrot",
            "input": "x",
            "conversation": await made(api),
            "previous_response_id": first["id"],
        }
    )
    assert (status, error["code"]) == (400, "mutually_exclusive_parameters")


@BOTH
async def test_what_is_not_stored_as_a_response_is_part_of_the_conversation(
    api: Api, stream: bool
) -> None:
    id = await made(api)
    told = await api.told("parrot", "hi", stream=stream, conversation=id, store=False)
    assert (await api.get(told["id"])).status_code == 404
    assert brief(await held(api, id)) == ["hi", "heard: hi"]


@BOTH
async def test_a_failed_response_adds_nothing_and_may_be_tried_again(
    api: Api, stream: bool
) -> None:
    id = await made(api)
    for _ in range(2):
        told = await api.told("fail", "hi", stream=stream, conversation=id)
        assert told["status"] == "failed"
        assert await held(api, id) == []


async def test_an_incomplete_response_is_part_of_it(api: Api) -> None:
    id = await made(api)
    told = await api.create("truncation", "hi", conversation=id)
    assert told["status"] == "incomplete"
    assert brief(await held(api, id)) == ["hi", "Once"]


async def test_an_item_that_was_taken_out_is_no_context(api: Api) -> None:
    id = await made(api, user("one"), user("two"))
    items = await held(api, id)
    await api.http.delete(f"/v1/conversations/{id}/items/{items[0]['id']}")
    assert texts(await api.create("remember", "three", conversation=id)) == [
        "human:two\nhuman:three"
    ]


async def test_its_items_can_be_referred_to(api: Api) -> None:
    id = await made(api, user("one"), user("two"))
    refers = [{"type": "item_reference", "id": item["id"]} for item in await held(api, id)]
    assert texts(await api.create("remember", [*refers, user("x")])) == [
        "human:one\nhuman:two\nhuman:x"
    ]
    inside = await api.create("remember", [*refers, user("x")], conversation=id)
    assert texts(inside) == ["human:one\nhuman:two\nhuman:x"]


async def test_a_clients_tool_is_answered_in_the_conversation(api: Api) -> None:
    tools = [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]
    id = await made(api)
    asked = await api.create("two-tools", "hi", tools=tools, conversation=id)
    status, error = await api.refused({"model": "two-tools", "input": "x", "conversation": id})
    assert (status, error["param"]) == (400, "input")
    told = await api.create("two-tools", [output(calls(asked)[0], "sunny")], conversation=id)
    assert texts(told) == ["weather: sunny"]


# --- busy ------------------------------------------------------------------------------------


async def test_one_response_at_a_time(api: Api) -> None:
    """OpenAI's code and status, which openai-agents waits for; the SDKs are told to retry."""
    id = await made(api)
    body = {"model": "gate", "input": "wait", "conversation": id}
    first = asyncio.create_task(api.post(body))
    await api.until("SELECT 1 FROM fermata.responses WHERE conversation_id = %s", id)
    for method, path, sent in (
        ("POST", "/v1/responses", {"model": "parrot", "input": "x", "conversation": id}),
        ("POST", f"/v1/conversations/{id}/items", {"items": [user("x")]}),
        ("DELETE", f"/v1/conversations/{id}", None),
    ):
        answer = await api.http.request(method, path, json=sent)
        error = envelope(answer)
        assert (answer.status_code, error["code"]) == (400, "conversation_locked")
        assert error["param"] == "conversation"
        assert (answer.headers["retry-after"], answer.headers["x-should-retry"]) == ("1", "true")
    client = api.openai().with_options(max_retries=3)
    second = asyncio.create_task(
        client.responses.create(model="parrot", input="next", conversation=id)
    )
    GATES["wait"].set()
    assert (await first).status_code == 200
    assert (await second).output_text == "heard: next"
    assert brief(await held(api, id)) == ["wait", "through", "next", "heard: next"]


async def test_of_many_at_once_each_is_told_once_or_refused(api: Api) -> None:
    id = await made(api)
    bodies = [{"model": "parrot", "input": str(n), "conversation": id} for n in range(8)]
    answers = await asyncio.gather(*(api.post(body) for body in bodies))
    served = [answer.json() for answer in answers if answer.status_code == 200]
    refused = [envelope(answer)["code"] for answer in answers if answer.status_code != 200]
    assert served
    assert set(refused) <= {"conversation_locked"}
    heard = [texts(one)[0] for one in served]
    assert sorted(brief(await held(api, id))[1::2]) == sorted(heard)


# --- questions -------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("way", ["conversation", "previous", "call"])
async def test_a_question_is_answered_in_its_conversation(api: Api, stream: bool, way: str) -> None:
    id = await made(api)
    paused = await api.told("ask", "hi", stream=stream, conversation=id)
    (call,) = calls(paused)
    assert brief(await held(api, id))[-1] == "function_call"
    named: Json = {
        "conversation": {"conversation": id},
        "previous": {"previous_response_id": paused["id"]},
        "call": {},
    }[way]
    told = await api.told("ask", [output(call)], stream=stream, **named)
    assert texts(told) == ["answer: 'yes'"]
    again = await api.told("ask", [output(call)], stream=stream, **named)
    assert again["id"] == told["id"]
    kinds = [item["type"] for item in await held(api, id)]
    notice = ["message"] if stream else []
    assert kinds == ["message", *notice, "function_call", "function_call_output", "message"]
    await api.sql("UPDATE fermata.interrupts SET card = NULL WHERE call_id = %s", call["call_id"])
    after = await api.create("remember", "next", conversation=id)
    assert texts(after)[0].endswith("tool:yes\nai:answer: 'yes'\nhuman:next")


@pytest.mark.parametrize("stream", [False, True])
async def test_background_responses_go_on_in_a_conversation(api: Api, stream: bool) -> None:
    id = await made(api)
    named: Json = {"conversation": id, "background": True, "stream": stream}

    async def ended(said: Any) -> Json:
        answer = await api.post({"model": "ask", "input": said, **named})
        assert answer.status_code == 200, answer.text
        await api.until(
            "SELECT 1 FROM fermata.responses WHERE conversation_id = %s HAVING count(*) > 0"
            " AND bool_and(status NOT IN ('queued', 'in_progress'))",
            id,
        )
        (row,) = await api.sql(
            "SELECT id FROM fermata.responses WHERE conversation_id = %s"
            " ORDER BY created_at DESC LIMIT 1",
            id,
        )
        return dict((await api.get(row["id"])).json())

    (call,) = calls(await ended("hi"))
    assert texts(await ended([output(call)])) == ["answer: 'yes'"]
    kinds = [item["type"] for item in await held(api, id)]
    notice = ["message"] if stream else []
    assert kinds == ["message", *notice, "function_call", "function_call_output", "message"]
    after = await api.create("remember", "next", conversation=id)
    assert texts(after)[0].endswith("tool:yes\nai:answer: 'yes'\nhuman:next")


async def test_a_resent_history_with_the_answer_adds_the_answer_only(api: Api) -> None:
    id = await made(api)
    paused = await api.create("ask", "hi", conversation=id)
    (call,) = calls(paused)
    told = await api.create("ask", [user("hi"), call, output(call)])
    assert texts(told) == ["answer: 'yes'"]
    kinds = [item["type"] for item in await held(api, id)]
    assert kinds == ["message", "function_call", "function_call_output", "message"]


async def test_while_a_question_waits_its_answer_comes_next(api: Api) -> None:
    id = await made(api)
    paused = await api.create("ask", "hi", conversation=id)
    (call,) = calls(paused)
    for sent in ("please hurry", [user("yes")], []):
        status, error = await api.refused({"model": "ask", "input": sent, "conversation": id})
        assert status == 400
        assert call["call_id"] in error["message"]
    other = await made(api)
    for conversation in (other, id):
        body = {"model": "ask", "input": [output(call)], "conversation": conversation}
        answer = await api.post(body)
        assert answer.status_code == (400 if conversation == other else 200)


async def test_a_plain_text_answers_a_question_for_text(api: Api) -> None:
    id = await made(api)
    await api.create("ask-text", "hi", conversation=id, store=False)
    told = await api.create("ask-text", "Ada", conversation=id)
    assert texts(told) == ["hello Ada"]
    assert [item["type"] for item in await held(api, id)][-1] == "message"
    after = await api.create("remember", "next", conversation=id)
    assert "hello Ada" in texts(after)[0]


async def test_a_withdrawn_question_does_not_block_its_conversation(api: Api) -> None:
    id = await made(api)
    paused = await api.create("ask", "hi", conversation=id)
    (call,) = calls(paused)
    assert (await api.http.post(f"/v1/responses/{paused['id']}/cancel")).status_code == 200
    told = await api.create("remember", "next", conversation=id)
    assert texts(told) == ["human:hi\nhuman:next"]
    status, error = await api.refused({"model": "ask", "input": [output(call)], "conversation": id})
    assert (status, error["code"]) == (410, "interrupt_closed")


async def test_an_expired_question_does_not_block_its_conversation(api: Api) -> None:
    id = await made(api)
    paused = await api.create("ask", "hi", conversation=id)
    run = await api.run_of(paused)
    await api.sql("UPDATE fermata.runs SET expires_at = now() WHERE id = %s", run)
    told = await api.create("remember", "next", conversation=id)
    assert texts(told) == ["human:hi\nhuman:next"]


async def test_a_reviewers_answer_goes_to_the_conversation(api: Api) -> None:
    id = await made(api)
    paused = await api.create("ask", "hi", conversation=id)
    (call,) = calls(paused)
    answer = await api.http.post(f"/v1/interrupts/{call['call_id']}/answer", json={"output": "yes"})
    assert answer.status_code == 200, answer.text
    await api.until(
        "SELECT 1 FROM fermata.conversation_items WHERE conversation_id = %s AND position > 3", id
    )
    assert brief(await held(api, id))[-1] == "answer: 'yes'"


async def test_a_run_that_failed_after_its_answer_waits_for_nobody(api: Api) -> None:
    """The conversation goes on; the answer, sent again, still brings its run to its end."""
    id = await made(api)
    paused = await api.create("flaky", "hi", conversation=id)
    (call,) = calls(paused)
    failed = await api.create("flaky", [output(call)], conversation=id)
    assert failed["status"] == "failed"
    told = await api.create("remember", "next", conversation=id)
    assert texts(told) == ["human:hi\nhuman:next"]
    ended = await api.create("flaky", [output(call)], conversation=id)
    assert texts(ended) == ["through"]
    assert brief(await held(api, id))[-2:] == ["function_call_output", "through"]


async def test_recovery_frees_a_conversation_whose_process_died(api: Api) -> None:
    id = await made(api)
    body = {"model": "gate", "input": "die", "conversation": id}
    first = asyncio.create_task(api.post(body))
    await api.until("SELECT 1 FROM fermata.responses WHERE conversation_id = %s", id)
    await api.sql(
        "UPDATE fermata.responses SET lease_id = 'abandoned' WHERE conversation_id = %s", id
    )
    await recover(api.app.state.gateway.coordinator)
    told = await api.create("parrot", "next", conversation=id)
    GATES["die"].set()
    assert (await first).status_code >= 500  # it woke up, and may say nothing any more
    assert texts(told) == ["heard: next"]
    assert brief(await held(api, id)) == ["next", "heard: next"]


async def test_a_conversation_that_is_deleted_meanwhile(api: Api) -> None:
    id = await made(api)
    paused = await api.create("ask", "hi", conversation=id)
    (call,) = calls(paused)
    assert (await api.http.delete(f"/v1/conversations/{id}")).status_code == 200
    told = await api.create("ask", [output(call)], previous_response_id=paused["id"])
    assert texts(told) == ["answer: 'yes'"]
