"""Typed questions across the wire: the graph asks, a client answers, LangGraph takes it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt
from pydantic import BaseModel, field_validator

from gateway import Graph, ask_always, ask_approval, ask_choice, ask_text, ask_value, guard
from tests.integration.api import Api, serving
from tests.integration.small_graphs import EFFECTS, chain, done

HOUR = timedelta(hours=1)


class Limits(BaseModel):
    """What `limits` asks for; odd numbers pass the schema and fail the model."""

    top: int

    @field_validator("top")
    @classmethod
    def even(cls, top: int) -> int:
        if top % 2:
            raise ValueError("must be even")
        return top


def said(text: str) -> dict[str, Any]:
    return {"messages": [AIMessage(text)]}


async def review(state: MessagesState) -> dict[str, Any]:
    answer = ask_approval("review", question="Pay 10?", payload={"top": 10}, editable=Limits)
    if answer.approved or answer.edited:
        done("paid")
    return said(f"{answer.action} {answer.value}")


async def impatient(state: MessagesState) -> dict[str, Any]:
    answer = ask_approval("review", question="Now?", expires_in=HOUR, on_expiry="reject")
    return said(f"{answer.action} by {answer.reviewer}")


async def strict(state: MessagesState) -> dict[str, Any]:
    ask_approval("review", question="Now?", expires_in=HOUR)
    return said("never")


async def many(state: MessagesState) -> dict[str, Any]:
    plan = ask_choice("plan", question="Which?", options=["small", {"value": "l", "label": "Big"}])
    reason = ask_text("reason", question="Why?")
    limits = ask_value("limits", question="How much?", schema=Limits)
    return said(f"{plan.value}, {reason.value}, {limits.value}")


async def native(state: MessagesState) -> dict[str, Any]:
    return said(f"top {interrupt('How much?', response_schema=Limits).top}")


@tool
def delete(path: str) -> str:
    """Delete a file."""
    done(f"deleted {path}")
    return f"deleted {path}"


@tool
def look(path: str) -> str:
    """Look at a file."""
    return f"looked at {path}"


class Careless(BaseChatModel):
    """Wants to delete, and says what came of it."""

    @property
    def _llm_type(self) -> str:
        return "careless"

    def bind_tools(self, tools: Any, **settings: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **more: Any) -> ChatResult:
        results = [one.text for one in messages if isinstance(one, ToolMessage)]
        wish = {"name": "delete", "args": {"path": "a"}, "id": "1"}
        answer = AIMessage("; ".join(results)) if results else AIMessage("", tool_calls=[wish])
        return ChatResult(generations=[ChatGeneration(message=answer)])


class Scripted(BaseChatModel):
    """Calls both tools once, then says what came of it."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **settings: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **more: Any) -> ChatResult:
        results = [one.text for one in messages if isinstance(one, ToolMessage)]
        calls = [
            {"name": "delete", "args": {"path": "a"}, "id": "1"},
            {"name": "look", "args": {"path": "b"}, "id": "2"},
        ]
        answer = AIMessage("; ".join(results)) if results else AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=answer)])


SENT: dict[str, str] = {}
"""What `send` sent, by business key: the ledger that a graph keeps of its own effects."""


def send(to: str) -> str:
    """Send a parcel, after a person said how. LangGraph runs the first tool's code after its
    question again when the second is answered, so the effect has a key."""
    how = interrupt({"question": f"How to send to {to}?", "to": to})
    if to not in SENT:
        SENT[to] = str(how)
        done(f"sent to {to}")
    return f"{to} by {how}"


async def call_twice(state: MessagesState) -> dict[str, Any]:
    calls = [{"name": "send", "args": {"to": to}, "id": to} for to in ("anna", "bert")]
    return {"messages": [AIMessage("", tool_calls=calls)]}


async def report(state: MessagesState) -> dict[str, Any]:
    results = [one for one in state["messages"] if isinstance(one, ToolMessage)]
    return said("; ".join(f"{one.tool_call_id}: {one.text}" for one in results))


def two_asking_tools() -> Any:
    graph: Any = StateGraph(MessagesState)
    graph.add_node("call_twice", call_twice)
    graph.add_node("tools", ToolNode([tool(send)]))
    graph.add_node("report", report)
    for start, end in (("__start__", "call_twice"), ("call_twice", "tools"), ("tools", "report")):
        graph.add_edge(start, end)
    return graph


GRAPHS = {
    "tools": Graph(two_asking_tools()),
    "review": Graph(chain(review)),
    "impatient": Graph(chain(impatient)),
    "strict": Graph(chain(strict)),
    "many": Graph(chain(many)),
    "native": Graph(chain(native), interrupt_name="limits"),
    "guarded": Graph(
        create_agent(
            Careless(),
            tools=[delete, guard(look, ask_always)],
            middleware=[HumanInTheLoopMiddleware(interrupt_on={"delete": True})],
        )
    ),
    "agent": Graph(
        create_agent(
            Scripted(),
            tools=[delete, look],
            middleware=[HumanInTheLoopMiddleware(interrupt_on={"delete": True})],
        )
    ),
}


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with serving(database_url, GRAPHS, LEASE_TTL="5s") as running:
        yield running


def call_of(response: Any) -> Any:
    (call,) = [item for item in response["output"] if item["type"] == "function_call"]
    return call


def text_of(response: Any) -> str:
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )


def output(call: Any, text: str) -> Any:
    return [{"type": "function_call_output", "call_id": call["call_id"], "output": text}]


async def answer(api: Api, model: str, asked: Any, text: str) -> Any:
    return await api.create(model, output(call_of(asked), text), previous_response_id=asked["id"])


async def refusal(api: Api, model: str, asked: Any, text: str) -> Any:
    status, error = await api.refused(
        {
            "model": model,
            "previous_response_id": asked["id"],
            "input": output(call_of(asked), text),
        }
    )
    assert (status, error["code"]) == (400, "invalid_interrupt_answer")
    return error


async def test_an_approval_is_told_with_its_contract(api: Api) -> None:
    call = call_of(await api.create("review", "hi"))
    told = json.loads(call["arguments"])
    assert call["name"] == "review"
    assert (told["expects"], told["question"]) == ("approval", "Pay 10?")
    assert {"approve", "reject", "edit"} <= set(told["allowed"])
    assert told["schema"]["properties"]["top"]["type"] == "integer"


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("Yes", "approve None"),
        ('{"action": "reject", "note": "no"}', "reject None"),
        ('{"action": "edit", "value": {"top": 4}}', "edit top=4"),
        ('{"type": "approve"}', "approve None"),
    ],
)
async def test_answers_reach_the_graph_as_they_were_given(
    api: Api, text: str, outcome: str
) -> None:
    asked = await api.create("review", "hi")
    assert text_of(await answer(api, "review", asked, text)) == outcome


@pytest.mark.parametrize(
    "text",
    [
        "ok",
        "sure",
        "1",
        "true",
        "Tool execution was not approved.",
        'Error: Tool "review" not found.',
        '{"submitted": false}',
        '{"action": "approve", "value": {"top": 1000000}}',
        '{"action": "edit", "value": {"top": "much"}}',
    ],
)
async def test_C10_what_is_no_answer_leaves_the_question_open(api: Api, text: str) -> None:
    asked = await api.create("review", "hi")
    error = await refusal(api, "review", asked, text)
    assert error["param"] == "input[0].output"
    assert "approve" in error["message"]
    assert text_of(await answer(api, "review", asked, "no")) == "reject None"


async def test_every_kind_of_question_in_one_node(api: Api) -> None:
    step = await api.create("many", "hi")
    await refusal(api, "many", step, "medium")
    step = await answer(api, "many", step, "Big")
    step = await answer(api, "many", step, "because")
    await refusal(api, "many", step, '{"top": "a lot"}')
    assert text_of(await answer(api, "many", step, '{"top": 2}')) == "l, because, top=2"


async def test_C13_what_only_the_model_refuses_leaves_the_question_open(api: Api) -> None:
    step = await api.create("native", "hi")
    await refusal(api, "native", step, '{"top": "much"}')
    failed = await answer(api, "native", step, '{"top": 3}')
    assert failed["status"] == "failed"
    assert failed["error"]["code"] == "invalid_interrupt_answer"
    assert "even" in failed["error"]["message"]
    final = await answer(api, "native", step, '{"top": 4}')
    assert (final["status"], text_of(final)) == ("completed", "top 4")


async def test_our_own_question_asks_again_for_what_only_its_model_refuses(api: Api) -> None:
    step = await api.create("many", "hi")
    for text in ("small", "because", '{"top": 3}'):
        step = await answer(api, "many", step, text)
    assert "must be even" in json.loads(call_of(step)["arguments"])["question"]
    assert text_of(await answer(api, "many", step, '{"top": 4}')).endswith("top=4")


async def test_a_plain_text_answers_a_text_or_names_a_choice_and_never_approves(api: Api) -> None:
    step = await api.create("many", "hi")
    status, error = await api.refused(
        {"model": "many", "previous_response_id": step["id"], "input": "whatever you like"}
    )
    assert (status, error["param"]) == (400, "input")
    step = await api.create("many", "small", previous_response_id=step["id"])
    step = await api.create("many", "because I say so", previous_response_id=step["id"])
    final = await answer(api, "many", step, '{"top": 2}')
    assert text_of(final) == "small, because I say so, top=2"
    asked = await api.create("review", "hi")
    status, error = await api.refused(
        {"model": "review", "previous_response_id": asked["id"], "input": "yes"}
    )
    assert (status, call_of(asked)["call_id"] in error["message"]) == (400, True)


async def test_C04_each_answer_reaches_its_tool_and_each_effect_is_done_once(api: Api) -> None:
    """ToolNode runs its calls at once and lets one question out a pass."""
    SENT.clear()
    step, given = await api.create("tools", "hi"), {}
    while not text_of(step):
        to = json.loads(call_of(step)["arguments"])["payload"]["to"]
        assert to not in given, "asked twice"
        given[to] = f"mail to {to}"
        step = await answer(api, "tools", step, given[to])
    assert given.keys() == {"anna", "bert"}
    assert text_of(step) == "anna: anna by mail to anna; bert: bert by mail to bert"
    effects = EFFECTS[await api.run_of(step)]
    assert sorted(effects) == ["sent to anna", "sent to bert"]


# --- expiry ----------------------------------------------------------------------------------


async def eventually(api: Api, response_id: str) -> Any:
    """The response, once it says something: recovery looks several times a second here."""
    async with asyncio.timeout(20):
        while not text_of(shown := (await api.get(response_id)).json()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return shown


async def time_is_over(api: Api) -> None:
    await api.sql("UPDATE fermata.runs SET expires_at = expires_at - interval '2 hours'")
    await api.sql("UPDATE fermata.interrupts SET expires_at = expires_at - interval '2 hours'")


async def test_silence_is_the_answer_that_the_author_chose(api: Api) -> None:
    asked = await api.create("impatient", "hi")
    assert "expires_at" in json.loads(call_of(asked)["arguments"])
    await time_is_over(api)
    shown = await eventually(api, asked["id"])
    assert text_of(shown) == "reject by system:expiry"
    assert await api.checkpoint_rows(await api.run_of(asked)) == 0


async def test_without_a_default_the_run_expires_and_the_answer_comes_too_late(api: Api) -> None:
    asked = await api.create("strict", "hi")
    await time_is_over(api)
    status, error = await api.refused(
        {
            "model": "strict",
            "previous_response_id": asked["id"],
            "input": output(call_of(asked), "yes"),
        }
    )
    assert (status, error["code"]) == (410, "interrupt_expired")


# --- LangChain's middleware, unchanged -------------------------------------------------------


async def test_the_middleware_asks_about_the_gated_tool_only(api: Api) -> None:
    told = json.loads(call_of(await api.create("agent", "hi"))["arguments"])
    assert told["expects"] == "approval"
    (request,) = told["payload"]["action_requests"]
    assert (request["name"], request["args"]) == ("delete", {"path": "a"})


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("approve", "deleted a; looked at b"),
        ('{"decisions": [{"type": "approve"}]}', "deleted a; looked at b"),
        ('{"decisions": [{"type": "reject", "message": "not that"}]}', "not that"),
        (
            '{"decisions": [{"type": "edit", "edited_action":'
            ' {"name": "delete", "args": {"path": "c"}}}]}',
            "deleted c",
        ),
    ],
)
async def test_the_middleware_gets_its_decisions(api: Api, text: str, outcome: str) -> None:
    asked = await api.create("agent", "hi")
    assert outcome in text_of(await answer(api, "agent", asked, text))


async def test_an_edit_to_another_tool_is_asked_about_by_that_tool_s_policy(api: Api) -> None:
    asked = await api.create("guarded", "hi")
    edit = {"type": "edit", "edited_action": {"name": "look", "args": {"path": "b"}}}
    again = await answer(api, "guarded", asked, json.dumps({"decisions": [edit]}))
    told = json.loads(call_of(again)["arguments"])
    assert (told["expects"], told["payload"]) == ("approval", {"path": "b"})
    assert text_of(await answer(api, "guarded", again, "approve")).endswith("looked at b")


async def test_the_middleware_takes_a_response_instead_of_running_the_tool(api: Api) -> None:
    asked = await api.create("agent", "hi")
    reply = '{"decisions": [{"type": "respond", "message": "it is gone already"}]}'
    final = await answer(api, "agent", asked, reply)
    assert text_of(final) == "it is gone already; looked at b"
    assert await api.run_of(final) not in EFFECTS


async def test_C11_a_wrong_count_is_refused_before_anything_ran(api: Api) -> None:
    asked = await api.create("agent", "hi")
    two = '{"decisions": [{"type": "approve"}, {"type": "approve"}]}'
    await refusal(api, "agent", asked, two)
    assert "deleted a" in text_of(await answer(api, "agent", asked, "approve"))
