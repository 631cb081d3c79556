"""Items: what a response was made from, references to stored items, what reaches a graph."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from pydantic import BaseModel

from gateway.store.statements import SQL
from tests.integration.api import Api, calls, envelope, output, texts
from tests.openresponses import Json, validate_items

PIXEL = "data:image/png;base64,iVBORw0KGgo="
TOOLS = [
    {"type": "function", "name": name, "parameters": {"type": "object"}}
    for name in ("weather", "clock")
]


def user(content: Any, **more: Any) -> Json:
    return {"role": "user", "content": content, **more}


async def listed(api: Api, response_id: str, **query: Any) -> Json:
    """A page of `input_items`, validated."""
    answer = await api.http.get(f"/v1/responses/{response_id}/input_items", params=query)
    assert answer.status_code == 200, answer.text
    validate_items(answer.json())
    return dict(answer.json())


def said(page: Json) -> list[str]:
    """The texts of a page's messages."""
    return [item["content"][0]["text"] for item in page["data"]]


async def talk(api: Api, turns: int) -> list[Json]:
    """A conversation by `previous_response_id`; its responses."""
    responses: list[Json] = []
    for turn in range(turns):
        more = {"previous_response_id": responses[-1]["id"]} if responses else {}
        responses.append(await api.create("parrot", f"say {turn}", **more))
    return responses


# --- input_items -----------------------------------------------------------------------------


async def test_the_items_of_a_response_are_what_it_was_made_from(api: Api) -> None:
    responses = await talk(api, 3)
    assert said(await listed(api, responses[0]["id"])) == ["say 0"]
    whole = ["say 0", "heard: say 0", "say 1", "heard: say 1", "say 2"]
    assert said(await listed(api, responses[-1]["id"], order="asc")) == whole
    assert said(await listed(api, responses[-1]["id"])) == whole[::-1]


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
async def test_pages_are_the_list_in_pieces(api: Api, order: str, limit: int) -> None:
    last = (await talk(api, 4))[-1]["id"]
    whole = (await listed(api, last, order=order))["data"]
    found: list[Json] = []
    more: Json = {}
    while not found or more:
        page = await listed(api, last, order=order, limit=limit, **more)
        assert len(page["data"]) <= limit
        found += page["data"]
        more = {"after": page["last_id"]} if page["has_more"] else {}
    assert found == whole
    assert len(whole) == 7


async def test_a_page_may_go_on_after_an_item_that_the_client_named(api: Api) -> None:
    first = await api.create("parrot", [user("one", id="mine"), user("two")])
    second = await api.create("parrot", "three", previous_response_id=first["id"])
    page = await listed(api, second["id"], after="mine", order="asc")
    assert said(page) == ["two", "heard: two", "three"]


async def test_every_kind_of_item_is_listed_as_the_sdk_reads_it(api: Api) -> None:
    call = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
    sent = [
        {"role": "developer", "content": "d"},
        user([{"type": "text", "text": "look"}, {"type": "input_image", "image_url": PIXEL}]),
        user([{"type": "input_file", "file_data": PIXEL, "filename": "a.png"}]),
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"role": "assistant", "content": "so be it"},
        call,
        output("call_1", [{"type": "input_text", "text": "see"}]),
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": None},
    ]
    sent[-1]["action"] = {"type": "search", "query": "q", "queries": ["q"]}
    told = await api.create("parrot", sent)
    page = await listed(api, told["id"], order="asc")
    assert [item["type"] for item in page["data"]] == [
        *("message", "message", "message", "reasoning", "message"),
        *("function_call", "function_call_output", "web_search_call"),
    ]
    assert page["data"][1]["content"][1]["image_url"] == PIXEL
    assert page["data"][2]["content"][0]["file_data"] == PIXEL


async def test_C40_odd_queries_of_a_list(api: Api) -> None:
    told = await api.create("parrot", "hi")
    path = f"/v1/responses/{told['id']}/input_items"
    plain = (await api.http.get(path)).json()
    for query in ("include[]=", "include[]=x&include[]=message.output_text.logprobs", "include=x"):
        assert (await api.http.get(f"{path}?{query}")).json() == plain
    for query in ("limit=", "order=", "after=", "include[0][b]=%ff&=&%00=1"):
        assert (await api.http.get(f"{path}?{query}")).json() == plain
    for query in ("limit=0", "limit=101", "limit=x", "limit=-1", "limit=%D9%A1", f"limit={9**99}"):
        answer = await api.http.get(f"{path}?{query}")
        assert (answer.status_code, envelope(answer)["param"]) == (400, "limit")
    for query in ("order=up", "order=%00"):
        answer = await api.http.get(f"{path}?{query}")
        assert (answer.status_code, envelope(answer)["param"]) == (400, "order")
    for after in ("msg_x", "%00", "%ff", told["output"][0]["id"], "x" * 5000):
        answer = await api.http.get(f"{path}?after={after}")
        assert (answer.status_code, envelope(answer)["param"]) == (400, "after")


async def test_items_of_what_is_not_there(api: Api) -> None:
    unstored = await api.create("parrot", "hi", store=False)
    for id in ("resp_x", "%00", unstored["id"]):
        answer = await api.http.get(f"/v1/responses/{id}/input_items")
        assert answer.status_code == 404
        assert envelope(answer)["code"] == "not_found"


async def test_an_empty_input_is_an_empty_list(api: Api) -> None:
    told = await api.create("parrot", [])
    assert (await listed(api, told["id"]))["data"] == []


@pytest.mark.parametrize("echoed", [False, True])
async def test_a_question_and_its_answer_are_listed_once(api: Api, echoed: bool) -> None:
    paused = await api.create("ask", "hi")
    (call,) = calls(paused)
    sent = [*([call] if echoed else []), output(call)]
    told = await api.create("ask", sent, previous_response_id=paused["id"])
    page = await listed(api, told["id"], order="asc")
    kinds = [item["type"] for item in page["data"]]
    assert kinds == ["message", "function_call", "function_call_output"]


async def test_nothing_that_the_conversation_holds_is_stored_again(api: Api) -> None:
    first = await api.create("parrot", [user("one", id="msg_1")])
    echo = [user("one", id="msg_1"), *first["output"]]
    refers = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    for sent in (echo, refers):
        told = await api.create("parrot", [*sent, user("two")], previous_response_id=first["id"])
        page = await listed(api, told["id"], order="asc")
        assert said(page) == ["one", "heard: one", "two"]
        (row,) = await api.sql("SELECT input FROM fermata.responses WHERE id = %s", told["id"])
        assert len(row["input"]) == 1


@pytest.mark.parametrize("statement", ["history", "chain"])
def test_a_conversation_is_read_by_its_own_rows(database_url: str, statement: str) -> None:
    """Of a small table too, which a join would read whole for every turn."""
    explained = SQL[statement]
    for name, value in (("tenant", "default"), ("id", "200")):
        explained = explained.replace(f"%({name})s", f"'{value}'")
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO fermata.responses"
            " (id, tenant, run_id, model, previous_id, status, stored, input, body, completed_at)"
            " SELECT n::text, 'default', 'run', 'm', (n - 1)::text, 'completed', true, '[]',"
            " to_json(repeat(md5(n::text), 40)), now() FROM generate_series(1, 200) AS n"
        )
        conn.execute("ANALYZE fermata.responses")
        plan = conn.execute(f"EXPLAIN {explained}".encode()).fetchall()
    assert not [line for (line,) in plan if "Seq Scan on responses" in line]


# --- item_reference --------------------------------------------------------------------------


async def test_input_and_output_can_be_referred_to(api: Api) -> None:
    asked = await api.create("tool", "hi", tools=TOOLS)
    (call,) = calls(asked)
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    answered = await api.create("remember", [thought, user("one"), call, output(call, "sunny")])
    items = (await listed(api, answered["id"], order="asc"))["data"]
    reply = answered["output"][0]
    sent = [{"type": "item_reference", "id": item["id"]} for item in [*items, reply]]
    told = await api.create("remember", [*sent, user("two")])
    before = texts(answered)[0]
    assert texts(told) == [f"{before}\nai:{before}\nhuman:two"]


async def test_a_question_is_answered_where_its_call_and_the_history_are_references(
    api: Api,
) -> None:
    """As the Vercel AI SDK resends a conversation."""
    asked = await api.create("tool", "hi", tools=TOOLS)
    (tool_call,) = calls(asked)
    paused = await api.create("ask", [user("hi"), tool_call, output(tool_call, "sunny")])
    (question,) = calls(paused)
    sent = [
        user("hi"),
        {"type": "item_reference", "id": tool_call["id"]},
        output(tool_call, "sunny"),
        {"type": "item_reference", "id": question["id"]},
        output(question),
    ]
    told = await api.create("ask", sent)
    assert texts(told) == ["answer: 'yes'"]


async def test_an_answer_counts_though_its_history_is_gone(api: Api) -> None:
    old = await api.create("parrot", "hi")
    paused = await api.create("ask", "hi")
    (question,) = calls(paused)
    assert (await api.http.delete(f"/v1/responses/{old['id']}")).status_code == 200
    gone = {"type": "item_reference", "id": old["output"][0]["id"]}
    told = await api.create("ask", [user("hi"), gone, user("go"), output(question)])
    assert texts(told) == ["answer: 'yes'"]


async def test_what_was_not_stored_cannot_be_referred_to(api: Api) -> None:
    unstored = await api.create("parrot", "hi", store=False)
    reference = {"type": "item_reference", "id": unstored["output"][0]["id"]}
    for sent in ([reference], [user("x"), {"id": "msg_x"}]):
        status, error = await api.refused({"model": "parrot", "input": sent})
        assert (status, error["code"]) == (400, "not_found")
        assert error["param"] == f"input[{len(sent) - 1}].id"


# --- what reaches the graph ------------------------------------------------------------------


async def test_images_and_files_reach_the_graph_and_come_back(api: Api) -> None:
    parts = [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": PIXEL, "detail": "low"},
        {"type": "input_file", "file_data": PIXEL, "filename": "a.png"},
    ]
    told = await api.create("blocks", [user(parts)])
    assert texts(told) == ["human: text; image image/png; file image/png"]
    again = await api.create("blocks", "and?", previous_response_id=told["id"])
    assert texts(again)[0].startswith("human: text; image image/png; file image/png\nai: text")
    (item,) = (await listed(api, told["id"]))["data"]
    assert item["content"] == parts


async def test_reasoning_goes_out_and_comes_in(api: Api) -> None:
    told = await api.create("reasoning", "hi")
    assert [item["type"] for item in told["output"]] == ["reasoning", "message"]
    again = await api.create("blocks", [user("hi"), *told["output"], user("and?")])
    assert texts(again) == ["human: text\nai: reasoning; text\nhuman: text"]


async def test_several_calls_of_one_turn_and_their_outputs(api: Api) -> None:
    asked = await api.create("two-tools", "hi", tools=TOOLS)
    assert [call["name"] for call in calls(asked)] == ["weather", "clock"]
    outputs = [output(call, call["name"]) for call in calls(asked)]
    for sent in (outputs, outputs[::-1]):
        told = await api.create("two-tools", sent, previous_response_id=asked["id"])
        assert texts(told) == ["weather: weather, clock: clock"]
    status, error = await api.refused(
        {"model": "two-tools", "input": outputs[:1], "previous_response_id": asked["id"]}
    )
    assert (status, error["param"]) == (400, "input")
    assert calls(asked)[1]["call_id"] in error["message"]


async def test_a_graph_sees_whom_a_request_is_for(api: Api) -> None:
    told = await api.create("safety", "hi", safety_identifier="hash_1", user="ada")
    assert (told["safety_identifier"], texts(told)) == ("hash_1", ["hash_1 ada"])


class City(BaseModel):
    name: str
    people: int


async def test_parse_of_the_sdk_works_with_a_graph_that_obeys(api: Api) -> None:
    client = api.openai()
    told = await client.responses.parse(model="schema", input="Köln", text_format=City)
    assert told.output_parsed == City(name="Köln", people=3)


async def test_C41_a_graph_sees_the_most_tokens_and_ends_incomplete(api: Api) -> None:
    told = await api.create("truncation", "hi", max_output_tokens=16)
    assert (told["status"], told["max_output_tokens"]) == ("incomplete", 16)
    assert told["incomplete_details"] == {"reason": "max_output_tokens"}
