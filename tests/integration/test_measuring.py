"""`/v1/responses/input_tokens` and `/v1/responses/compact`."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses.input_token_count_response import InputTokenCountResponse

from tests.integration.api import Api, calls, envelope, output, texts
from tests.openresponses import Json, validate_compaction

PIXEL = "data:image/png;base64," + "A" * 40_000
TOOL = {"type": "function", "name": "f", "description": "x" * 400, "parameters": {}}


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


async def counted(api: Api, **body: Any) -> int:
    answer = await api.http.post("/v1/responses/input_tokens", json=body)
    assert answer.status_code == 200, answer.text
    InputTokenCountResponse.model_validate_json(answer.content, strict=True)
    assert answer.json()["object"] == "response.input_tokens"
    return int(answer.json()["input_tokens"])


async def compacted(api: Api, **body: Any) -> Json:
    answer = await api.http.post("/v1/responses/compact", json=body)
    assert answer.status_code == 200, answer.text
    validate_compaction(answer.json())
    return dict(answer.json())


# --- input_tokens ----------------------------------------------------------------------------


async def test_the_estimate_is_four_characters_a_token(api: Api) -> None:
    empty = await counted(api, model="parrot", input="")
    assert await counted(api, model="parrot", input="x" * 400) == empty + 100
    assert await counted(api, input="x" * 400) == empty + 100  # the SDK's model is optional
    told = await counted(api, model="parrot", input="", instructions="x" * 400)
    assert told > empty + 100


async def test_an_image_counts_as_an_image_and_not_as_its_characters(api: Api) -> None:
    parts = [{"type": "input_image", "image_url": PIXEL}]
    assert 85 <= await counted(api, model="parrot", input=[user(parts)]) < 100


async def test_what_stands_before_counts(api: Api) -> None:
    first = await api.create("parrot", "x" * 400)
    alone = await counted(api, model="parrot", input="y")
    with_history = await counted(api, model="parrot", input="y", previous_response_id=first["id"])
    assert with_history > alone + 200  # the input and the parrot's words
    made = await api.http.post("/v1/conversations", json={"items": [user("x" * 400)]})
    there = await counted(api, model="parrot", input="y", conversation=made.json()["id"])
    assert alone + 100 < there < with_history


async def test_tools_and_schemas_count(api: Api) -> None:
    alone = await counted(api, model="parrot", input="y")
    assert await counted(api, model="parrot", input="y", tools=[TOOL]) > alone + 100
    schema = {"type": "object", "properties": {"x" * 400: {"type": "string"}}}
    wanted = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
    assert await counted(api, model="parrot", input="y", text=wanted) > alone + 100


async def test_a_graph_may_count_by_itself(api: Api) -> None:
    body = {"model": "measured", "input": [user("a"), user("b")], "tools": [TOOL]}
    answer = await api.http.post("/v1/responses/input_tokens", json=body)
    assert answer.json()["input_tokens"] == 201
    assert answer.json()["fermata"] == {"counted_by": "graph"}
    estimate = await api.http.post("/v1/responses/input_tokens", json={**body, "model": "parrot"})
    assert estimate.json()["fermata"] == {"counted_by": "estimate"}


async def test_the_sdk_counts_and_compacts(api: Api) -> None:
    client = api.openai()
    count = await client.responses.input_tokens.count(model="measured", input="a")
    assert count.input_tokens == 100
    made = await client.responses.compact(model="remember", input="hi")
    assert [item.type for item in made.output] == ["message", "compaction"]
    sent = [item.model_dump(warnings=False) for item in made.output]
    told = await client.responses.create(model="remember", input=[*sent, user("x")])  # type: ignore[list-item]
    assert told.output_text == "human:hi\nhuman:x"


# --- compact ---------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["input", "previous", "conversation"])
async def test_a_compacted_history_stands_for_the_history(api: Api, way: str) -> None:
    first = await api.create("remember", "one")
    second = await api.create("remember", "two", previous_response_id=first["id"])
    items = [user("one"), *first["output"], user("two"), *second["output"]]
    named: Json = {"input": items}
    if way == "previous":
        named = {"previous_response_id": second["id"]}
    if way == "conversation":
        made = await api.http.post("/v1/conversations", json={"items": items})
        named = {"conversation": made.json()["id"]}
    result = await compacted(api, model="remember", **named)
    kinds = [item["type"] for item in result["output"]]
    assert kinds == ["message", "message", "compaction"]
    assert result["usage"]["total_tokens"] == 0  # no model was asked
    told = await api.create("remember", [*result["output"], user("three")])
    plain = await api.create("remember", "three", previous_response_id=second["id"])
    assert texts(told) == texts(plain)
    after = await api.create("remember", "four", previous_response_id=told["id"])
    assert texts(after)[0].startswith("human:one\nai:human:one\nhuman:two\nai:human:one")


async def test_it_is_not_stored_and_needs_no_storage(api: Api) -> None:
    told = await api.create("remember", "hi", store=False)
    result = await compacted(
        api, model="remember", input=[user("hi"), *told["output"]], store=False
    )
    assert (await api.get(result["id"])).status_code == 404
    again = await api.create("remember", [*result["output"], user("x")], store=False)
    assert texts(again) == ["human:hi\nai:human:hi\nhuman:x"]


async def test_a_compaction_is_smaller_than_what_it_holds(api: Api) -> None:
    said = {"role": "assistant", "content": "the same words again and again; " * 1000}
    result = await compacted(api, model="remember", input=[user("hi"), said])
    assert len(result["output"][-1]["encrypted_content"]) < 1000


async def test_a_question_in_it_can_be_answered(api: Api) -> None:
    paused = await api.create("ask", "hi")
    (call,) = calls(paused)
    result = await compacted(api, model="ask", previous_response_id=paused["id"])
    told = await api.create("ask", [*result["output"], output(call)])
    assert texts(told) == ["answer: 'yes'"]


async def test_a_graph_may_say_it_in_fewer_words(api: Api) -> None:
    items = [user("one"), {"role": "assistant", "content": "two"}]
    result = await compacted(api, model="measured", input=items)
    assert [item["type"] for item in result["output"]] == ["compaction"]
    assert result["usage"]["input_tokens"] == 10
    told = await api.create("remember", [*result["output"], user("x")])
    assert texts(told) == ["system:2 messages were said\nhuman:x"]


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["input_tokens", "compact"])
async def test_C40_refusals_name_one_parameter(api: Api, path: str) -> None:
    unstored = await api.create("parrot", "hi", store=False)
    bodies: list[tuple[Any, int, str | None]] = [
        ([], 400, None),
        ({"model": "gone", "input": "x"}, 404, "model"),
        ({"model": 7, "input": "x"}, 400, "model"),
        ({"model": "parrot", "input": [{"type": "nonsense"}]}, 400, "input[0].type"),
        ({"model": "parrot", "input": [{"id": "msg_x"}]}, 400, "input[0].id"),
        ({"model": "parrot", "input": [output("call_x")]}, 400, "input"),
        *(
            ({"model": "parrot", "previous_response_id": id}, 400, "previous_response_id")
            for id in ("resp_x", "\u0000", unstored["id"])
        ),
        ({"model": "parrot", "conversation": "conv_x"}, 404, "conversation"),
        ({"model": "measured", "input": "x", "tools": 7}, 400, "tools"),
    ]
    for body, status, param in bodies:
        if path == "compact" and param == "input":
            continue  # history, whatever it is worth
        answer = await api.http.post(f"/v1/responses/{path}", json=body)
        assert (answer.status_code, envelope(answer)["param"]) == (status, param), body


async def test_compact_needs_something_to_compact(api: Api) -> None:
    answer = await api.http.post("/v1/responses/compact", json={"model": "parrot"})
    assert (answer.status_code, envelope(answer)["param"]) == (400, "input")


@pytest.mark.parametrize("path", ["input_tokens", "compact"])
@pytest.mark.parametrize("model", ["mismeasured", "unmeasured"])
async def test_a_graphs_own_failure_is_told_without_its_text(
    api: Api, path: str, model: str
) -> None:
    answer = await api.http.post(f"/v1/responses/{path}", json={"model": model, "input": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "run_failed")
    assert answer.headers["x-should-retry"] == "false"
    assert model in answer.text
    assert "a secret" not in answer.text


async def test_another_tenants_response_is_unknown(api: Api) -> None:
    """The tenant stands inside the queries; here the row is given to somebody else."""
    told = await api.create("parrot", "hi")
    await api.sql("UPDATE fermata.responses SET tenant = 'rival' WHERE id = %s", told["id"])
    for path in ("input_tokens", "compact"):
        answer = await api.http.post(
            f"/v1/responses/{path}", json={"model": "parrot", "previous_response_id": told["id"]}
        )
        assert envelope(answer)["code"] == "previous_response_not_found"
    assert (await api.http.get(f"/v1/responses/{told['id']}/input_items")).status_code == 404
