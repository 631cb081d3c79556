"""C17: `interrupt_before` and `interrupt_after` ask whether the nodes that come next may run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph

from gateway import Graph
from tests.integration.api import Api, calls, output, serving, texts
from tests.integration.small_graphs import EFFECTS, ask, chain, done, fail_once
from tests.openresponses import Json

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])


async def prepare(state: MessagesState) -> dict[str, Any]:
    done("prepared")
    return {"messages": [AIMessage("prepared")]}


async def pay(state: MessagesState) -> dict[str, Any]:
    done("paid")
    return {"messages": [AIMessage("paid")]}


async def tell(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage("told")]}


async def count(state: dict[str, Any]) -> dict[str, Any]:
    return {"total": 2}


async def double(state: dict[str, Any]) -> dict[str, Any]:
    return {"total": state["total"] * 2}


class Sum(dict[str, Any]):
    """A state without messages."""

    __annotations__ = {"text": str, "total": int}


def looping() -> Any:
    graph: Any = StateGraph(MessagesState)
    graph.add_node("pay", pay)
    graph.add_edge(START, "pay")
    graph.add_conditional_edges(
        "pay", lambda state: "pay" if len(state["messages"]) < 3 else "__end__"
    )
    return graph.compile(interrupt_before=["pay"])


def fork() -> Any:
    graph: Any = StateGraph(MessagesState)
    for node in (prepare, pay, tell):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "prepare")
    graph.add_edge("prepare", "pay")
    graph.add_edge("prepare", "tell")
    return graph.compile(interrupt_after=["prepare"])


def nested() -> Any:
    graph: Any = StateGraph(MessagesState)
    graph.add_node("prepare", prepare)
    graph.add_node("inner", chain(pay, tell).compile(interrupt_before=["tell"]))
    graph.add_edge(START, "prepare")
    graph.add_edge("prepare", "inner")
    return graph.compile()


@entrypoint()
async def plain(said: str) -> str:
    return f"plain {said}"


GRAPHS = {
    "before": Graph(chain(prepare, pay, tell).compile(interrupt_before=["pay"])),
    "after": Graph(chain(prepare, pay).compile(interrupt_after="*"), interrupt_name="go_on"),
    "asking": Graph(chain(prepare, ask, pay).compile(interrupt_before=["ask", "pay"])),
    "flaky": Graph(chain(pay, fail_once).compile(interrupt_before=["pay"])),
    "loop": Graph(looping()),
    "fork": Graph(fork()),
    "nested": Graph(nested()),
    "sum": Graph(
        chain(count, double, state=Sum).compile(interrupt_before=["double"]),
        input=lambda messages: {"text": "", "total": 0},
    ),
    "plain": Graph(plain),
}


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with serving(database_url, GRAPHS) as running:
        yield running


def question(response: Json) -> Json:
    (call,) = calls(response)
    return dict(json.loads(call["arguments"]))


async def answer(api: Api, model: str, asked: Json, said: str, stream: bool = False) -> Json:
    outputs = [output(calls(asked)[0], said)]
    return await api.told(model, outputs, stream=stream, previous_response_id=asked["id"])


@BOTH
async def test_C17_a_breakpoint_asks_whether_the_node_may_run(api: Api, stream: bool) -> None:
    asked = await api.told("before", "hi", stream=stream)
    run_id = await api.run_of(asked)
    assert question(asked) == {
        "expects": "approval",
        "question": "Run pay?",
        "payload": {"next": ["pay"]},
        "allowed": ["approve", "reject"],
    }
    assert EFFECTS[run_id] == ["prepared"]
    told = await answer(api, "before", asked, "approve", stream)
    assert texts(told) == ["paid", "told"]
    assert EFFECTS[run_id] == ["prepared", "paid"]
    assert await api.checkpoint_rows(run_id) == 0


@BOTH
@pytest.mark.parametrize("said", ["reject", "no", '{"action": "reject", "note": "too much"}'])
async def test_C17_what_is_rejected_is_not_run(api: Api, said: str, stream: bool) -> None:
    asked = await api.create("before", "hi")
    run_id = await api.run_of(asked)
    told = await answer(api, "before", asked, said, stream)
    assert told["status"] == "completed"
    assert texts(told) == ["pay was not approved; nothing more was run."]
    assert EFFECTS[run_id] == ["prepared"]
    assert await api.checkpoint_rows(run_id) == 0
    assert await answer(api, "before", asked, said, stream) == told


@pytest.mark.parametrize("said", ["ok", "sure", "", "true", '{"action": "edit", "value": {}}'])
async def test_C17_what_is_no_decision_approves_nothing(api: Api, said: str) -> None:
    asked = await api.create("before", "hi")
    body = {"model": "before", "input": [output(calls(asked)[0], said)]}
    status, error = await api.refused(body)
    assert (status, error["code"]) == (400, "invalid_interrupt_answer")
    assert EFFECTS[await api.run_of(asked)] == ["prepared"]
    assert texts(await answer(api, "before", asked, "yes")) == ["paid", "told"]


async def test_C17_after_the_last_node_there_is_nothing_to_ask(api: Api) -> None:
    asked = await api.create("after", "hi")
    assert calls(asked)[0]["name"] == "go_on"
    assert question(asked)["payload"] == {"next": ["pay"]}
    told = await answer(api, "after", asked, "approve")
    assert (told["status"], calls(told), texts(told)) == ("completed", [], ["paid"])


async def test_C17_interrupts_and_breakpoints_take_turns(api: Api) -> None:
    first = await api.create("asking", "hi")
    run_id = await api.run_of(first)
    assert question(first)["payload"] == {"next": ["ask"]}
    second = await answer(api, "asking", first, "approve")
    assert question(second) == {
        "expects": "any",
        "question": "Go on?",
        "payload": {"question": "Go on?"},
    }
    third = await answer(api, "asking", second, "well")
    assert question(third)["payload"] == {"next": ["pay"]}
    assert EFFECTS[run_id] == ["prepared", "answered"]
    assert texts(await answer(api, "asking", third, "approve")) == ["paid"]
    assert EFFECTS[run_id] == ["prepared", "answered", "paid"]


async def test_C17_a_loop_asks_anew_at_every_turn(api: Api) -> None:
    asked = await api.create("loop", "hi")
    run_id = await api.run_of(asked)
    again = await answer(api, "loop", asked, "approve")
    assert question(again) == question(asked)
    assert calls(again)[0]["call_id"] != calls(asked)[0]["call_id"]
    assert EFFECTS[run_id] == ["paid"]
    told = await answer(api, "loop", again, "reject")
    assert texts(told) == ["pay was not approved; nothing more was run."]
    assert EFFECTS[run_id] == ["paid"]


async def test_C17_one_question_for_all_that_runs_next(api: Api) -> None:
    asked = await api.create("fork", "hi")
    assert question(asked)["question"] == "Run pay, tell?"
    assert sorted(texts(await answer(api, "fork", asked, "approve"))) == ["paid", "told"]


async def test_C17_a_subgraphs_breakpoint_asks_for_its_node(api: Api) -> None:
    asked = await api.create("nested", "hi")
    run_id = await api.run_of(asked)
    assert question(asked)["payload"] == {"next": ["inner"]}
    assert EFFECTS[run_id] == ["prepared", "paid"]
    assert "told" in texts(await answer(api, "nested", asked, "approve"))
    assert EFFECTS[run_id] == ["prepared", "paid"]


async def test_C17_a_state_without_messages_says_its_result_at_the_end_only(api: Api) -> None:
    _, asked = await api.stream("sum", "hi")
    assert texts(asked) == []
    told = await answer(api, "sum", asked, "approve")
    assert json.loads(texts(told)[0])["total"] == 4
    refused = await answer(api, "sum", await api.create("sum", "hi"), "reject")
    assert texts(refused) == ["double was not approved; nothing more was run."]


async def test_C17_a_failure_after_an_approval_is_tried_again(api: Api) -> None:
    asked = await api.create("flaky", "hi")
    run_id = await api.run_of(asked)
    failed = await answer(api, "flaky", asked, "approve")
    assert failed["status"] == "failed"
    assert texts(await answer(api, "flaky", asked, "approve"))[-1] == "through"
    assert EFFECTS[run_id] == ["paid", "attempt", "attempt"]


@pytest.mark.parametrize("said", ["approve", "reject"])
async def test_C17_a_takeover_knows_the_decision(api: Api, said: str, database_url: str) -> None:
    """A process died right after it had accepted the decision: another one goes on."""
    asked = await api.create("before", "hi")
    run_id = await api.run_of(asked)
    (call,) = calls(asked)
    kept = json.dumps({"action": said, "value": None, "note": None, "reviewer": "anonymous"})
    await api.sql(
        "WITH moved AS (UPDATE fermata.runs SET status = 'running', response_id = 'resp_died',"
        " expires_at = NULL WHERE id = %s), told AS (UPDATE fermata.interrupts"
        " SET status = 'answered', answer = %s, answered_by = 'resp_died', answered_at = now()"
        " WHERE call_id = %s) INSERT INTO fermata.responses (id, tenant, run_id, model, status,"
        " stored, lease_id, resumes, input, body) SELECT 'resp_died', tenant, run_id, model,"
        " 'in_progress', true, run_id, true, '[]', replace(replace(body::text,"
        " '\"completed\"', '\"in_progress\"'), id, 'resp_died')::json"
        " FROM fermata.responses WHERE id = %s",
        *(run_id, kept, call["call_id"], asked["id"]),
    )
    async with serving(database_url, GRAPHS, LEASE_TTL="1s") as other:
        told = await ended(other, "resp_died")
    paid = said == "approve"
    expected = ["paid", "told"] if paid else ["pay was not approved; nothing more was run."]
    assert texts(told)[-len(expected) :] == expected
    assert EFFECTS[run_id].count("paid") == paid


async def ended(api: Api, response_id: str) -> Json:
    async with asyncio.timeout(10):
        while True:
            told = (await api.get(response_id)).json()
            if told["status"] != "in_progress":
                return dict(told)
            await asyncio.sleep(0.1)


async def test_C17_a_graph_without_breakpoints_is_as_before(api: Api) -> None:
    assert texts(await api.create("plain", "hi")) == ["plain hi"]
