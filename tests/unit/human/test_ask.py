"""The typed questions in plain LangGraph: nodes, tools, subgraphs, the functional API."""

from __future__ import annotations

import datetime as dt
import json
import re
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import is_invalid_resume
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send
from pydantic import BaseModel, field_validator

from gateway.errors import RunFailed
from gateway.human.ask import (
    MARK,
    Answer,
    ask_approval,
    ask_choice,
    ask_text,
    ask_value,
    question_in,
)
from gateway.wire.questions import Question


class Limits(BaseModel):
    low: int
    high: int
    by: Literal["day", "week"] = "day"

    @field_validator("high")
    @classmethod
    def above_zero(cls, value: int) -> int:
        if value % 10:
            raise ValueError("in tens, please")
        return value


class State(TypedDict, total=False):
    answers: list[Any]


class Graph:
    """A compiled graph on a thread of its own."""

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled
        self.config = {"configurable": {"thread_id": str(uuid.uuid4())}}

    def start(self, value: Any = None) -> list[Any]:
        self.compiled.invoke({} if value is None else value, self.config)
        return self.pending()

    def pending(self) -> list[Any]:
        return list(self.compiled.get_state(self.config).interrupts)

    def answer(self, *resumed: Any) -> Any:
        ids = [interrupt.id for interrupt in self.pending()]
        command = Command(resume=dict(zip(ids, resumed, strict=True)))
        return self.compiled.invoke(command, self.config)


def one_node(ask: Callable[[], Any]) -> Graph:
    def node(state: State) -> State:
        return {"answers": [ask()]}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return Graph(graph.compile(checkpointer=InMemorySaver()))


def asked(graph: Graph) -> Question:
    (interrupt,) = graph.start()
    question = question_in(interrupt.value)
    assert question is not None
    return question


def approval() -> Answer:
    return ask_approval("pay", question="Pay?", payload={"amount": Decimal("49.90")})


def test_the_question_is_on_the_interrupt_as_plain_json() -> None:
    graph = one_node(
        lambda: ask_approval(
            "review_refund",
            question="Refund?",
            payload={"amount": Decimal("49.90"), "at": dt.date(2026, 12, 1)},
            editable=Limits,
            respond=True,
            roles={"manager", "boss"},
            four_eyes=True,
            expires_in=dt.timedelta(hours=1),
            on_expiry="reject",
            action="refund",
            tier="money",
        )
    )
    (interrupt,) = graph.start()
    assert json.loads(json.dumps(interrupt.value)) == interrupt.value
    assert interrupt.value[MARK] == 1
    assert question_in(interrupt.value) == Question(
        expects="approval",
        payload={"amount": "49.90", "at": "2026-12-01"},
        question="Refund?",
        allowed=("approve", "reject", "edit", "respond"),
        schema=Limits.model_json_schema(),
        name="review_refund",
        roles=frozenset({"manager", "boss"}),
        four_eyes=True,
        expires_in=3600.0,
        on_expiry="reject",
        form="fermata",
        action="refund",
        tier="money",
    )


@pytest.mark.parametrize(
    ("resumed", "answer"),
    [
        ("approve", Answer("approve")),
        (" YES ", Answer("approve")),
        ("n", Answer("reject")),
        ({"action": "reject", "note": "late"}, Answer("reject", note="late")),
        ('{"action": "reject", "note": "late"}', Answer("reject", note="late")),
        ({"type": "approve"}, Answer("approve")),
        (
            {"action": "approve", "value": None, "note": None, "reviewer": "eve"},
            Answer("approve", reviewer="eve"),
        ),
    ],
)
def test_an_approval(resumed: Any, answer: Answer) -> None:
    graph = one_node(approval)
    graph.start()
    assert graph.answer(resumed) == {"answers": [answer]}
    assert answer.approved == (answer.action == "approve")


@pytest.mark.parametrize(
    "resumed",
    ["ok", "", "1", 1, True, [], {}, {"approved": True}, {"action": "approve", "value": 1}, "edit"],
)
def test_a_wrong_answer_is_a_value_error_and_the_question_stays(resumed: Any) -> None:
    graph = one_node(approval)
    graph.start()
    with pytest.raises(ValueError, match="Answer with approve or reject") as caught:
        graph.answer(resumed)
    assert is_invalid_resume(caught.value)
    assert len(graph.pending()) == 1
    assert graph.answer("no")["answers"] == [Answer("reject")]


def test_an_edit_is_no_approval_and_its_value_is_the_model_s() -> None:
    graph = one_node(lambda: ask_approval("pay", question="Pay?", editable=Limits))
    graph.start()
    (answer,) = graph.answer({"action": "edit", "value": {"low": 1, "high": 20}})["answers"]
    assert answer == Answer("edit", Limits(low=1, high=20))
    assert answer.edited
    assert not answer.approved


def test_words_beside_an_approval_are_words() -> None:
    graph = one_node(lambda: ask_approval("pay", question="Pay?", editable=Limits, respond=True))
    graph.start()
    assert graph.answer({"type": "respond", "message": "half"})["answers"] == [
        Answer("respond", "half")
    ]


def test_a_choice_gives_the_option_s_value() -> None:
    graph = one_node(
        lambda: ask_choice("plan", question="?", options=["basic", {"value": 2, "label": "Pro"}])
    )
    question = asked(graph)
    assert question.expects == "choice"
    assert question.options == ("basic", {"value": 2, "label": "Pro"})
    assert graph.answer("Pro")["answers"] == [Answer("respond", 2)]


def test_a_text_is_the_text() -> None:
    graph = one_node(lambda: ask_text("reason", question="Why?"))
    assert asked(graph).expects == "text"
    assert graph.answer("because")["answers"] == [Answer("respond", "because")]


def test_a_value_is_an_instance_of_its_model_or_plain_json() -> None:
    graph = one_node(lambda: ask_value("limits", question="?", schema=Limits))
    assert asked(graph).schema == Limits.model_json_schema()
    assert graph.answer({"low": 1, "high": 20})["answers"] == [
        Answer("respond", Limits(low=1, high=20))
    ]
    plain = one_node(lambda: ask_value("n", question="?", schema={"type": "integer"}))
    plain.start()
    assert plain.answer("7")["answers"] == [Answer("respond", 7)]


def test_what_only_the_model_knows_to_be_wrong_is_asked_again() -> None:
    graph = one_node(lambda: ask_value("limits", question="Which?", schema=Limits))
    graph.start()
    graph.answer({"low": 1, "high": 25})
    (again,) = graph.pending()
    question = question_in(again.value)
    assert question is not None
    assert question.question is not None
    assert question.question.startswith("Which?\n")
    assert "in tens, please" in question.question
    (answer,) = graph.answer({"low": 1, "high": 30})["answers"]
    assert answer.value == Limits(low=1, high=30)


async def test_an_async_node() -> None:
    async def node(state: State) -> State:
        return {"answers": [ask_text("reason", question="Why?")]}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    compiled = graph.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    await compiled.ainvoke({}, config)
    result = await compiled.ainvoke(Command(resume="so"), config)
    assert result == {"answers": [Answer("respond", "so")]}


def test_two_questions_of_one_node_and_a_loop_of_three() -> None:
    def both() -> list[Any]:
        first = ask_approval("first", question="1?")
        return [first.action, *(ask_text(f"t{n}", question="?").value for n in range(3))]

    graph = one_node(both)
    assert asked(graph).name == "first"
    for text in ("yes", "a", "b"):
        graph.answer(text)
    assert graph.answer("c")["answers"] == [["approve", "a", "b", "c"]]


@tool
def pay(amount: int) -> str:
    """Pay."""
    answer = ask_approval("pay", question="Pay?", payload={"amount": amount})
    return f"paid {amount}" if answer.approved else "not paid"


def test_inside_a_tool() -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode([pay]))
    graph.add_edge(START, "tools")
    running = Graph(graph.compile(checkpointer=InMemorySaver()))
    call = {"name": "pay", "args": {"amount": 5}, "id": "c1", "type": "tool_call"}
    (interrupt,) = running.start({"messages": [AIMessage("", tool_calls=[call])]})
    assert interrupt.value["payload"] == {"amount": 5}
    assert running.answer("approve")["messages"][-1].content == "paid 5"


def test_inside_a_subgraph() -> None:
    inner = StateGraph(State)
    inner.add_node("node", lambda state: {"answers": [approval().action]})
    inner.add_edge(START, "node")
    outer = StateGraph(State)
    outer.add_node("inner", inner.compile())
    outer.add_edge(START, "inner")
    graph = Graph(outer.compile(checkpointer=InMemorySaver()))
    graph.start()
    assert graph.answer("deny") == {"answers": ["reject"]}


def test_in_a_fan_out_each_answer_finds_its_question() -> None:
    done: list[Any] = []

    def node(state: Any) -> State:
        done.append((state["n"], ask_text(f"q{state['n']}", question="?").value))
        return {}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_conditional_edges(START, lambda state: [Send("node", {"n": n}) for n in range(3)])
    running = Graph(graph.compile(checkpointer=InMemorySaver()))
    names = [interrupt.value["name"] for interrupt in running.start()]
    running.answer(*(name.upper() for name in names))
    assert sorted(done) == [(0, "Q0"), (1, "Q1"), (2, "Q2")]


def test_in_the_functional_api() -> None:
    @task
    def reviewed(amount: int) -> str:
        return ask_approval("pay", question="Pay?", payload=amount).action

    @entrypoint(checkpointer=InMemorySaver())
    def flow(amount: int) -> list[Any]:
        return [reviewed(amount).result(), ask_text("why", question="Why?").value]

    graph = Graph(flow)
    (interrupt,) = graph.start(5)
    assert interrupt.value["payload"] == 5
    flow.invoke(Command(resume="yes"), graph.config)
    assert flow.invoke(Command(resume="because"), graph.config) == ["approve", "because"]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: ask_approval("no spaces", question="?"), "cannot name a question"),
        (lambda: ask_approval("x" * 65, question="?"), "cannot name a question"),
        (lambda: ask_approval("", question="?"), "cannot name a question"),
        (lambda: ask_approval("a", question="?", on_expiry="approve"), "only 'reject'"),
        (lambda: ask_approval("a", question="?", expires_in=0), "above zero"),
        (lambda: ask_approval("a", question="?", roles="manager"), "a set of names"),
        (lambda: ask_choice("a", question="?", options=[]), "needs options"),
        (lambda: ask_choice("a", question="?", options=["x", "x"]), "two options"),
        (lambda: ask_choice("a", question="?", options=[{"label": "x"}]), "a 'value'"),
        (
            lambda: ask_choice("a", question="?", options=["x", {"value": 1, "label": "x"}]),
            "two options",
        ),
        (lambda: ask_choice("a", question="?", options=["x"], on_expiry="y"), "on_expiry='y'"),
        (
            lambda: ask_value("a", question="?", schema={"type": "integer"}, on_expiry="x"),
            "on_expiry='x'",
        ),
    ],
)
def test_a_question_that_cannot_be_is_refused_before_it_is_asked(
    ask: Callable[[], Any], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        ask()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda: ask_approval("a", question="?", payload={"x": [float("nan")]}),
            r"payload\.x\[0\] is NaN",
        ),
        (lambda: ask_approval("a", question="?", payload=lambda: 1), "which JSON cannot hold"),
        (lambda: ask_value("a", question="?", schema={"type": "int"}), "is not JSON Schema"),
        (
            lambda: ask_value("a", question="?", schema={"$ref": "http://x/y"}),
            "'http://x/y', which is never fetched",
        ),
    ],
)
def test_C15_what_json_cannot_hold_names_its_place(ask: Callable[[], Any], message: str) -> None:
    with pytest.raises(RunFailed, match=message):
        ask()


DOCS = Path(__file__).parents[3] / "docs"


def test_the_how_to_s_code_runs_and_prints_what_it_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (DOCS / "how-to" / "ask-a-person.md").read_text()
    found = re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    scope: dict[str, Any] = {"__name__": "how_to"}
    code = "\n".join(block for kind, block in found if kind == "python")
    exec(compile(code, "ask-a-person.md", "exec"), scope)
    assert [capsys.readouterr().out] == [block for kind, block in found if kind == "text"]
    other = Graph(scope["graph"].compile(checkpointer=InMemorySaver()))
    other.start()
    edited = {"action": "edit", "value": {"order": "ORDER-123", "cents": 1000}}
    assert other.answer(edited)["said"] == "edited: 1000"
