"""What an interrupt asks, recognised; LangChain's own middleware takes what we resume it with."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from gateway.errors import InvalidInterruptAnswer, RunFailed
from gateway.human.ask import MARK
from gateway.runs.questions import question_of
from gateway.wire.answers import read_text
from gateway.wire.questions import Action, Question

ran: list[str] = []


@dataclass(frozen=True)
class Pending:
    value: Any
    response_schema: Any = None


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


# --- by mark, schema and shape ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("Go on?", "Go on?"),
        ({"question": "Go on?", "n": 1}, "Go on?"),
        (5, None),
        (None, None),
        ({"action_requests": [], "review_configs": []}, None),
        ({"action_requests": [{"name": "a", "args": {}}], "review_configs": []}, None),
        ({"action_requests": [{"name": "a", "args": 5}], "review_configs": [{}]}, None),
        ({"action_requests": "a", "review_configs": "b"}, None),
        ({"type": "tool_approval", "name": "a", "args": {}}, None),
        ({MARK: "a field of theirs"}, None),
    ],
)
def test_all_else_is_raw(value: Any, text: str | None) -> None:
    assert question_of(Pending(value), "interrupt") == Question(
        "any", value, text, name="interrupt"
    )


def test_a_config_for_each_name_is_enough() -> None:
    requests = [{"name": "a", "args": {}}, {"name": "b", "args": {}}, {"name": "a", "args": {}}]
    configs = [
        {"action_name": "b", "allowed_decisions": ["reject"]},
        {"action_name": "a", "allowed_decisions": ["respond", "approve"]},
    ]
    value = {"action_requests": requests, "review_configs": configs}
    question = question_of(Pending(value), "interrupt")
    a = Action("a", {}, ("approve", "respond"))
    assert question.actions == (a, Action("b", {}, ("reject",)), a)
    assert question.allowed == ("approve", "reject", "respond")


@pytest.mark.parametrize(
    ("marked", "message"),
    [
        ({MARK: 1}, "is no question"),
        ({MARK: 1, "expects": "text", "payload": None}, "cannot name"),
        ({MARK: 1, "expects": "text", "payload": None, "name": "a b"}, "cannot name"),
    ],
)
def test_a_mark_without_a_question_fails_the_run(marked: Any, message: str) -> None:
    with pytest.raises(RunFailed, match=message):
        question_of(Pending(marked), "interrupt")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("not a schema", "is not a JSON Schema object"),
        ({"type": "whatever"}, "is not JSON Schema"),
        ({"$ref": "https://example.org/s.json"}, "never fetched"),
        ({"maximum": float("nan")}, "response_schema.maximum is NaN"),
    ],
)
def test_a_schema_that_is_none_fails_the_run(schema: Any, message: str) -> None:
    with pytest.raises(RunFailed, match=message):
        question_of(Pending("?", schema), "interrupt")


# --- response_schema --------------------------------------------------------------------------


class Limits(BaseModel):
    low: int
    by: Literal["day", "week"]


class State(TypedDict, total=False):
    answer: Any


def asking(schema: Any) -> Any:
    graph = StateGraph(State)
    graph.add_node("node", lambda state: {"answer": interrupt("Limits?", response_schema=schema)})
    graph.add_edge(START, "node")
    return graph.compile(checkpointer=InMemorySaver())


@pytest.mark.parametrize("schema", [Limits, Limits.model_json_schema()])
def test_C13_an_answer_that_breaks_the_schema_never_reaches_the_graph(schema: Any) -> None:
    run = Run(asking(schema))
    question = run.start({})
    assert question.expects == "value"
    assert question.question == "Limits?"
    assert question.schema == Limits.model_json_schema()
    for text in ("yes", '{"low": "a", "by": "day"}', '{"low": 1, "by": "year"}', "null"):
        with pytest.raises(InvalidInterruptAnswer, match="fits the question's schema"):
            read_text(question, text)
    answer = run.answer('{"low": 1, "by": "day"}')["answer"]
    assert answer == (Limits(low=1, by="day") if schema is Limits else {"low": 1, "by": "day"})


# --- LangChain's middleware -------------------------------------------------------------------


@tool
def mail(to: str, times: int = 1) -> str:
    """Send mail."""
    ran.append(f"mail {to} {times}")
    return "sent"


@tool
def wipe(path: str) -> str:
    """Delete."""
    ran.append(f"wipe {path}")
    return "deleted"


@tool
def look(path: str) -> str:
    """Look."""
    ran.append(f"look {path}")
    return "seen"


class Caller(BaseChatModel):
    """Calls its tools once, then says done."""

    calls: list[dict[str, Any]]

    @property
    def _llm_type(self) -> str:
        return "caller"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        called = any(isinstance(message, ToolMessage) for message in messages)
        reply = AIMessage("done") if called else AIMessage("", tool_calls=self.calls)
        return ChatResult(generations=[ChatGeneration(message=reply)])


class Run:
    """A graph on a thread, answered through our reader alone."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.config = {"configurable": {"thread_id": str(uuid.uuid4())}}

    def start(self, value: Any) -> Question:
        self.graph.invoke(value, self.config)
        (question,) = self.questions().values()
        return question

    def questions(self) -> dict[str, Question]:
        pending = self.graph.get_state(self.config).interrupts
        return {one.id: question_of(one, "interrupt") for one in pending}

    def answer(self, *texts: str) -> Any:
        asked = self.questions()
        resume = {}
        for (id, question), text in zip(asked.items(), texts, strict=True):
            stored = Question.of_stored(question.stored())
            assert stored == question
            resume[id] = read_text(stored, text).resume_value(stored, reviewer="eve")
        return self.graph.invoke(Command(resume=json.loads(json.dumps(resume))), self.config)


def calling(*names: str, **middleware: Any) -> Run:
    args = {"mail": {"to": "a"}, "wipe": {"path": "/"}, "look": {"path": "/"}}
    calls = [
        {"name": name, "args": args[name], "id": f"c{n}", "type": "tool_call"}
        for n, name in enumerate(names)
    ]
    gates = {"mail": True, "wipe": {"allowed_decisions": ["approve", "reject"]}}
    agent = create_agent(
        Caller(calls=calls),
        tools=[mail, wipe, look],
        middleware=[HumanInTheLoopMiddleware(interrupt_on=gates, **middleware)],
        checkpointer=InMemorySaver(),
    )
    return Run(agent)


def told(result: Any) -> list[str]:
    return [m.content for m in result["messages"] if isinstance(m, ToolMessage)]


ASK = {"messages": [("user", "go")]}


def js(value: Any) -> str:
    return json.dumps(value)


def test_a_turn_s_actions_are_one_question() -> None:
    question = calling("mail", "look", "wipe").start(ASK)
    assert question.expects == "approval"
    assert question.form == "hitl"
    assert [action.name for action in question.actions] == ["mail", "wipe"]
    assert question.actions[1].allowed == ("approve", "reject")
    assert question.payload["action_requests"][0]["args"] == {"to": "a"}
    assert "Tool: mail" in str(question.question)


@pytest.mark.parametrize("text", ["yes", js({"action": "approve"}), js({"type": "approve"})])
def test_one_action_may_be_approved_in_any_form(text: str) -> None:
    run = calling("mail")
    run.start(ASK)
    assert told(run.answer(text)) == ["sent"]
    assert ran == ["mail a 1"]


def test_each_decision_meets_its_action() -> None:
    run = calling("mail", "look", "wipe")
    run.start(ASK)
    run.answer(js({"decisions": [{"type": "reject", "message": "late"}, {"type": "approve"}]}))
    assert sorted(ran) == ["look /", "wipe /"]


def test_an_edit_may_turn_to_another_tool() -> None:
    run = calling("mail")
    run.start(ASK)
    edited = {"name": "wipe", "args": {"path": "/tmp"}}
    run.answer(js({"decisions": [{"type": "edit", "edited_action": edited}]}))
    assert ran == ["wipe /tmp"]


def test_an_edit_in_our_words_stays_with_its_tool() -> None:
    run = calling("mail")
    run.start(ASK)
    run.answer(js({"action": "edit", "value": {"to": "b", "times": 2}}))
    assert ran == ["mail b 2"]


@pytest.mark.parametrize(
    "text",
    [js({"action": "reject", "note": "not now"}), js({"type": "reject", "message": "not now"})],
)
def test_a_rejection_brings_its_message(text: str) -> None:
    run = calling("mail")
    run.start(ASK)
    (content,) = told(run.answer(text))
    assert content.endswith("with reason: not now")
    assert ran == []


def test_a_response_stands_for_the_tool_s_result() -> None:
    run = calling("mail")
    run.start(ASK)
    assert told(run.answer(js({"type": "respond", "message": "I called"}))) == ["I called"]
    assert ran == []


@pytest.mark.parametrize(
    "decisions",
    [
        [{"type": "approve"}, {"type": "approve"}],
        [],
        [{"type": "respond"}],
        [{"type": "edit", "edited_action": {"name": "mail"}}],
        [{"type": "ok"}],
    ],
)
def test_C11_what_langchain_would_die_of_is_refused_before_the_resume(decisions: Any) -> None:
    run = calling("mail", "look")
    question = run.start(ASK)
    with pytest.raises(InvalidInterruptAnswer):
        read_text(question, js({"decisions": decisions}))
    assert ran == []
    run.answer(js({"decisions": [{"type": "approve"}]}))
    assert sorted(ran) == ["look /", "mail a 1"]


def test_C11_a_decision_that_one_of_them_does_not_allow() -> None:
    question = calling("mail", "wipe").start(ASK)
    with pytest.raises(InvalidInterruptAnswer, match=r"wipe: approve, reject"):
        read_text(question, js({"decisions": [{"type": "approve"}, {"type": "respond"}]}))


def test_per_call_each_call_is_a_question_with_the_tool_s_schema() -> None:
    run = calling("mail", interrupt_mode="per_call")
    question = run.start(ASK)
    assert question.form == "hitl_call"
    assert question.allowed == ("approve", "reject", "edit", "respond")
    assert question.schema is not None
    assert "$ref" in question.schema
    with pytest.raises(InvalidInterruptAnswer, match=r"value.times"):
        read_text(question, js({"action": "edit", "value": {"to": "b", "times": "x"}}))
    edited = {"name": "wipe", "args": {"path": "/"}}
    with pytest.raises(InvalidInterruptAnswer, match="cannot turn this into 'wipe'"):
        read_text(question, js({"type": "edit", "edited_action": edited}))
    run.answer(js({"action": "edit", "value": {"to": "b", "times": 2}}))
    assert ran == ["mail b 2"]


@pytest.mark.parametrize(
    ("text", "results", "effects"),
    [
        ("approve", ["sent"], ["mail a 1"]),
        (js({"type": "respond", "message": "done"}), ["done"], []),
        (js({"decisions": [{"type": "reject", "message": "x"}]}), None, []),
    ],
)
def test_per_call_takes_one_decision(
    text: str, results: list[str] | None, effects: list[str]
) -> None:
    run = calling("mail", interrupt_mode="per_call")
    run.start(ASK)
    found = told(run.answer(text))
    assert ran == effects
    assert results is None or found == results


def test_per_call_a_tool_with_fewer_decisions() -> None:
    run = calling("wipe", interrupt_mode="per_call")
    question = run.start(ASK)
    assert question.allowed == ("approve", "reject")
    assert question.schema is None
    with pytest.raises(InvalidInterruptAnswer, match="'respond' is not allowed"):
        read_text(question, js({"type": "respond", "message": "x"}))
    run.answer("no")
    assert ran == []


def test_per_call_two_calls_are_two_questions() -> None:
    run = calling("mail", "wipe", "look", interrupt_mode="per_call")
    run.graph.invoke(ASK, run.config)
    asked = run.questions()
    assert sorted(question.actions[0].name for question in asked.values()) == ["mail", "wipe"]
    texts = {"mail": "yes", "wipe": "no"}
    run.answer(*(texts[question.actions[0].name] for question in asked.values()))
    assert sorted(ran) == ["look /", "mail a 1"]
