"""What real clients sent, word for word, through the whole gateway in this process.

`tests/cases/client_requests.json` was recorded with the clients against another server, so a
request that goes on from a response, a call or an item names ids of that server. Its counterpart
is made here first and its ids are put in, nothing else: the model's name aside, the request stays
as it was sent.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import MessagesState
from langgraph.types import interrupt

from gateway import Graph, ask_approval
from graphs import GRAPHS as DEMOS
from graphs.refund import read_answer
from tests.integration.api import Api, calls, envelope, output, serving
from tests.integration.small_graphs import EFFECTS, chain, done
from tests.openresponses import Json, check_stream, read_frames, validate_resource

_CASES = Path(__file__).parents[1] / "cases" / "client_requests.json"
RECORDED: list[Json] = json.loads(_CASES.read_text())
IDS = [f"{n} {one['client']}" for n, one in enumerate(RECORDED)]


async def approval(state: MessagesState) -> dict[str, Any]:
    answer = ask_approval(
        "review_refund", question="Refund EUR 19.99?", payload={"order": "A-1042"}
    )
    if answer.approved:
        done("refunded")
    return {"messages": [AIMessage(f"typed: {answer.action}")]}


async def raw(state: MessagesState) -> dict[str, Any]:
    review = read_answer(interrupt({"question": "Refund EUR 19.99?"}))
    if review.decision == "approved":
        done("refunded")
    return {"messages": [AIMessage(f"raw: {review.decision}")]}


GRAPHS = {
    **DEMOS,
    "typed-approval": Graph(chain(approval)),
    "raw-approval": Graph(chain(raw), interrupt_name="review_refund"),
}
TALKS = "echo"
ASKS = ("typed-approval", "raw-approval")


@pytest.fixture(scope="module")
async def api(
    anyio_backend: tuple[str, dict[str, bool]], module_database_url: str
) -> AsyncIterator[Api]:
    async with serving(module_database_url, GRAPHS) as served:
        yield served


def items(body: Json) -> Iterator[Json]:
    if isinstance(body["input"], list):
        yield from body["input"]


def of_type(body: Json, kind: str) -> list[Json]:
    return [item for item in items(body) if item.get("type") == kind]


def answers(body: Json) -> bool:
    return bool(of_type(body, "function_call_output"))


async def replay(api: Api, record: Json, body: Json) -> httpx.Response:
    """Send the body as the client did, with its own headers."""
    return await api.post(body, headers=record["headers"])


async def told(api: Api, answer: httpx.Response, body: Json) -> Json:
    """The resource that came of it, every event and field of it validated."""
    assert answer.status_code == 200, answer.text
    if body.get("stream"):
        return check_stream(read_frames(answer.content))
    resource: Json = answer.json()
    while resource["status"] in ("queued", "in_progress"):
        resource = (await api.get(resource["id"])).json()
    validate_resource(resource)
    return resource


def with_ids(record: Json, model: str, **ids: str | None) -> Json:
    """The recorded body with our model and the ids of our own counterparts."""
    body = copy.deepcopy(record["body"])
    body["model"] = model
    if ids.get("response") and "previous_response_id" in body:
        body["previous_response_id"] = ids["response"]
    if ids.get("conversation") and "conversation" in body:
        body["conversation"] = ids["conversation"]
    for item in items(body):
        if "call_id" in item and ids.get("call"):
            item["call_id"] = ids["call"]
        if item.get("type") == "item_reference" and ids.get("item"):
            item["id"] = ids["item"]
    return body


async def counterpart(api: Api, model: str) -> dict[str, str | None]:
    """A first response of ours: its ids stand for those of the recorded server."""
    first = await api.create(model, "Hi.")
    found = calls(first)
    made = await api.http.post("/v1/conversations", json={})
    return {
        "conversation": made.json()["id"],
        "response": first["id"],
        "call": found[0]["call_id"] if found else None,
        "item": first["output"][0]["id"],
    }


async def effects_of(api: Api, response: Json) -> list[str]:
    return EFFECTS.get(await api.run_of(response), [])


# --- as they are -----------------------------------------------------------------------------


@pytest.mark.parametrize("model", [TALKS, "interruptible-approval"])
@pytest.mark.parametrize("record", RECORDED, ids=IDS)
async def test_no_field_that_a_client_carries_is_refused(
    api: Api, record: Json, model: str
) -> None:
    """Ids of the other server's calls that are echoed in the input are history; the other ids that
    the request names are those of a response that said something and asked nothing."""
    ids = await counterpart(api, model)
    before = sum(map(len, EFFECTS.values()))
    body = with_ids(record, model, **{**ids, "call": None})
    answer = await replay(api, record, body)

    if answers(body) and not of_type(body, "function_call"):
        # Its call is the other server's, and not in the input: nobody can know it.
        error = envelope(answer)
        assert answer.status_code == 400
        assert error["param"] == "input"
        assert "No tool call found" in error["message"]
    else:
        resource = await told(api, answer, body)
        assert resource["status"] == "completed"
        assert resource["model"] == model
    assert sum(map(len, EFFECTS.values())) == before


# --- answers ---------------------------------------------------------------------------------

ANSWERS = [
    pytest.param(record, id=name)
    for name, record in zip(IDS, RECORDED, strict=True)
    if answers(record["body"]) and record["body"]["input"][-1].get("type") == "function_call_output"
]
CARD = RECORDED[-3]["body"]["input"][-1]["output"]
MEANS = {
    "approve": ("approve", "approved"),
    "approved": ("approve", "approved"),
    "ok": (None, "feedback"),
    '{"decision": "approve"}': (None, "feedback"),
    CARD: (None, "feedback"),
}
"""What the recorded outputs are to a typed approval (None: refused), and to a raw interrupt that
reads words. `ok` and a made-up shape approve nothing, and neither does the answer of a card where
none was shown; how Open WebUI approves is in `test_cards.py`."""


@pytest.mark.parametrize("model", ASKS)
@pytest.mark.parametrize("record", ANSWERS)
async def test_an_answer_meets_the_question_that_it_names(
    api: Api, record: Json, model: str
) -> None:
    ids = await counterpart(api, model)
    body = with_ids(record, model, **ids)
    (sent,) = [item["output"] for item in of_type(body, "function_call_output")]
    text = sent if isinstance(sent, str) else "".join(part["text"] for part in sent)
    typed, untyped = MEANS[text]
    answer = await replay(api, record, body)

    asked = (await api.get(str(ids["response"]))).json()
    if model == "raw-approval":
        said = await told(api, answer, body)
        assert said["output"][-1]["content"][0]["text"] == f"raw: {untyped}"
        assert await effects_of(api, asked) == (["refunded"] if untyped == "approved" else [])
    elif typed is None:
        assert answer.status_code == 400
        assert envelope(answer)["code"] == "invalid_interrupt_answer"
        assert await effects_of(api, asked) == []
    else:
        said = await told(api, answer, body)
        assert said["output"][-1]["content"][0]["text"] == "typed: approve"
        assert await effects_of(api, asked) == ["refunded"]


# --- what agent loops answer by themselves ---------------------------------------------------

AUTO_ANSWERS = {
    "langchain": "Error: review_refund is not a valid tool, try one of [get_weather].",
    "langchain's error": "Error invoking tool 'review_refund' with kwargs {} with error:\n no.",
    "openai-agents": "Tool execution was not approved.",
    "openai-agents's error": "An error occurred while running the tool. Please try again.",
    "ai sdk": "Model tried to call unavailable tool 'review_refund'. Available tools: get_weather.",
    "ai sdk 7": '{"error":"AI_NoSuchToolError: Model tried to call unavailable tool."}',
    "ai sdk 7's long one": '{"error":"AI_NoSuchToolError: ' + "x" * 2000 + '"}',
    "ai sdk's denial": "Tool call execution denied.",
    "ai sdk's json": '{"type":"execution-denied"}',
    "codex": "unsupported call: review_refund",
    "open webui": 'Error: Tool "review_refund" not found.',
    "open webui's card": "Error: tool call rejected by user.",
    "a closed tab": '{"error": "Client session disconnected."}',
    "a form": '{"submitted": false}',
    "llm": 'tool "review_refund" does not exist',
}
"""Taken from the clients' sources, word for word."""

NO_DECISIONS = {
    "nothing": "",
    "a list": "[]",
    "null": "null",
    "success": '{"success": true}',
    "true": "true",
    "one": "1",
    "sure": "sure",
}


@pytest.mark.parametrize("named", [True, False], ids=["previous", "history"])
@pytest.mark.parametrize("model", ASKS)
@pytest.mark.parametrize("text", AUTO_ANSWERS.values(), ids=list(AUTO_ANSWERS))
async def test_an_auto_answer_answers_nothing(api: Api, text: str, model: str, named: bool) -> None:
    """Refused in words that say what is wanted; the question stays open for a person's answer."""
    asked = await api.create(model, "Refund it.")
    (call,) = calls(asked)
    history = [] if named else [{"role": "user", "content": "Refund it."}, call]
    fields = {"previous_response_id": asked["id"]} if named else {}
    body = {"model": model, "input": [*history, output(call, text)], **fields}
    status, error = await api.refused(body)

    assert (status, error["code"]) == (400, "invalid_interrupt_answer")
    assert error["param"] == f"input[{len(history)}].output"
    assert await effects_of(api, asked) == []
    approved = await api.create(model, [output(call, "approve")], **fields)
    assert "approve" in approved["output"][0]["content"][0]["text"]
    assert await effects_of(api, asked) == ["refunded"]


@pytest.mark.parametrize("text", NO_DECISIONS.values(), ids=list(NO_DECISIONS))
async def test_what_is_no_decision_approves_nothing(api: Api, text: str) -> None:
    """A typed question refuses it; a graph that takes any answer gets it, and decides by words."""
    typed = await api.create("typed-approval", "Refund it.")
    body = {"model": "typed-approval", "input": [output(calls(typed)[0], text)]}
    status, error = await api.refused(body)
    untyped = await api.create("raw-approval", "Refund it.")
    said = await api.create("raw-approval", [output(calls(untyped)[0], text)])

    assert (status, error["code"]) == (400, "invalid_interrupt_answer")
    assert "approve" in error["message"]
    assert await effects_of(api, typed) == []
    assert said["output"][0]["content"][0]["text"] == "raw: feedback"
    assert await effects_of(api, untyped) == []
