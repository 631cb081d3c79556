"""Open WebUI, unchanged: its own `ask_user` card asks for an approval, its answers resume it.

The requests are recorded ones (`tests/cases/client_requests.json`); only the model's name, the
texts and the call ids are put in.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send

from gateway import Graph, ask_approval
from tests.integration.api import Api, serving
from tests.integration.small_graphs import Fan, chain, done, gather

RECORDED = [
    entry["body"]
    for entry in json.loads(
        (Path(__file__).parents[1] / "cases" / "client_requests.json").read_text()
    )
    if entry["client"].startswith("Open WebUI")
]
FIRST = next(body for body in RECORDED if "tools" in body)
CANCELLED = "Error: tool call rejected by user."
TIMED_OUT = '{"status":"timed_out"}'


async def review(state: MessagesState) -> dict[str, Any]:
    answer = ask_approval("review", question="Refund EUR 19.99?", payload={"order": "A-1042"})
    if answer.approved:
        done("refunded")
    return {"messages": [AIMessage(f"It was {answer.action}.")]}


async def both(state: MessagesState) -> dict[str, Any]:
    first = ask_approval("first", question="The first?")
    second = ask_approval("second", question="The second?")
    return {"messages": [AIMessage(f"{first.action} {second.action}")]}


async def each(item: Any) -> dict[str, Any]:
    return {"answers": [ask_approval(item, question=f"Is {item} right?").action]}


def fan_out() -> StateGraph[Any, Any, Any, Any]:
    graph: Any = StateGraph(Fan)
    graph.add_node("each", each)
    graph.add_node("gather", gather)
    graph.add_conditional_edges(
        START, lambda state: [Send("each", one) for one in ("one", "two")], ["each"]
    )
    graph.add_edge("each", "gather")
    return graph


GRAPHS = {
    "review": Graph(chain(review)),
    "both": Graph(chain(both)),
    "fan": Graph(fan_out()),
}


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with serving(database_url, GRAPHS) as running:
        yield running


def user(text: str) -> Any:
    return {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": text}],
    }


async def turn(api: Api, history: list[Any], model: str = "review") -> Any:
    """One request of Open WebUI, which resends everything; what came back joins the history."""
    body = {key: value for key, value in FIRST.items() if key not in ("model", "input", "stream")}
    _, response = await api.stream(model, history, **body)
    history += response["output"]
    return response


def card_of(response: Any) -> Any:
    (call,) = [item for item in response["output"] if item["type"] == "function_call"]
    assert call["name"] == "ask_user"
    return call


def output(call: Any, text: str) -> Any:
    return {"type": "function_call_output", "call_id": call["call_id"], "output": text}


def chosen(call: Any, label: str) -> Any:
    """What the card sends when somebody presses the button, in the recorded form."""
    (question,) = json.loads(call["arguments"])["questions"]
    labels = [option["label"] for option in question["options"]]
    picked = {"type": "option", "option_index": labels.index(label), "label": label}
    text = json.dumps({"status": "answered", "answers": {question["id"]: picked}})
    return output(call, text)


def text_of(response: Any) -> str:
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )


async def test_an_approval_is_a_card_with_the_safe_option_first(api: Api) -> None:
    card = card_of(await turn(api, [user("refund")]))
    (question,) = json.loads(card["arguments"])["questions"]
    assert [option["label"] for option in question["options"]] == ["Reject", "Approve"]
    assert "A-1042" in question["question"]


@pytest.mark.parametrize(("label", "word"), [("Approve", "approve"), ("Reject", "reject")])
async def test_the_recorded_answer_resumes_it(api: Api, label: str, word: str) -> None:
    history = [user("refund")]
    card = card_of(await turn(api, history))
    history.append(chosen(card, label))
    assert text_of(await turn(api, history)) == f"It was {word}."
    again = await turn(api, [*history[:-1]])
    assert text_of(again) == f"It was {word}."


@pytest.mark.parametrize("came_back", [CANCELLED, TIMED_OUT])
async def test_cancel_and_time_out_leave_it_open(api: Api, came_back: str) -> None:
    history = [user("refund")]
    card = card_of(await turn(api, history))
    history.append(output(card, came_back))
    assert "still open" in text_of(await turn(api, history))
    history.append(user("show me again"))
    card = card_of(await turn(api, history))
    history.append(chosen(card, "Approve"))
    assert text_of(await turn(api, history)) == "It was approve."
    history.append(user("thanks"))
    assert card_of(await turn(api, history))["call_id"] not in json.dumps(history[:-1])
    runs = await api.sql("SELECT status FROM fermata.runs ORDER BY created_at")
    assert [row["status"] for row in runs] == ["completed", "waiting"]


async def test_an_error_that_the_client_makes_up_decides_nothing(api: Api) -> None:
    history = [user("refund")]
    card = card_of(await turn(api, history))
    body = {key: value for key, value in FIRST.items() if key not in ("model", "input")}
    made_up = output(card, 'Error: Tool "ask_user" not found.')
    status, error = await api.refused({**body, "model": "review", "input": [*history, made_up]})
    assert (status, error["code"]) == (400, "invalid_interrupt_answer")
    history.append(chosen(card, "Reject"))
    assert text_of(await turn(api, history)) == "It was reject."


@pytest.mark.parametrize("model", ["review", "fan"])
async def test_a_card_that_reviewers_answered_is_history(api: Api, model: str) -> None:
    """The card's call has one output then, of one question or of several, and the talk goes on."""
    paused = await api.create(model, "hi", tools=FIRST["tools"])
    (card,) = [item for item in paused["output"] if item["type"] == "function_call"]
    assert card["name"] == "ask_user"
    rows = await api.sql(
        "SELECT call_id FROM fermata.interrupts WHERE card = %s ORDER BY position", card["call_id"]
    )
    assert len(rows) == (1 if model == "review" else 2)
    for row in rows:
        path = f"/v1/interrupts/{row['call_id']}/answer"
        answer = await api.http.post(path, json={"action": "approve"})
        assert answer.status_code == 200, answer.text
    await api.until(
        "SELECT 1 FROM fermata.responses WHERE follows = %s AND status = 'completed'", paused["id"]
    )
    shown = (await api.get(paused["id"])).json()
    answers = [item for item in shown["output"] if item["type"] == "function_call_output"]
    assert [item["call_id"] for item in answers] == [card["call_id"]]
    told = await api.create(
        model, "and?", previous_response_id=shown["fermata"]["continued_by"], tools=FIRST["tools"]
    )
    assert told["status"] == "completed"


async def test_two_questions_of_one_node_are_two_cards(api: Api) -> None:
    history = [user("go")]
    for label in ("Approve", "Reject"):
        card = card_of(await turn(api, history, "both"))
        history.append(chosen(card, label))
    assert text_of(await turn(api, history, "both")) == "approve reject"
