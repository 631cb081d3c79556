"""The refund review, driven by plain LangGraph: what it reads, and where nothing happens."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from gateway import effects_in_memory
from graphs import refund

CONFIG = {"configurable": {"thread_id": "run-1"}}
ASK = {"messages": [{"role": "user", "content": "Refund order ORDER-123"}]}


async def paused() -> Any:
    graph = refund.build().compile(checkpointer=InMemorySaver())
    state = await graph.ainvoke(ASK, CONFIG)
    assert [item.value["order"] for item in state["__interrupt__"]] == ["ORDER-123"]
    return graph


async def outcome(answer: Any) -> str:
    graph = await paused()
    with effects_in_memory() as ledger:
        state = await graph.ainvoke(Command(resume=answer), CONFIG)
    assert "__interrupt__" not in state
    assert ledger.statuses == {}
    return str(state["messages"][-1].text)


async def test_rejection_executes_nothing() -> None:
    text = await outcome("reject")

    assert text == "The refund for ORDER-123 was rejected; nothing was executed."


@pytest.mark.parametrize("answer", ["Only 10 EUR please", {"action": "respond", "value": "Why?"}])
async def test_anything_else_is_feedback_and_executes_nothing(answer: Any) -> None:
    text = await outcome(answer)
    said = answer if isinstance(answer, str) else answer["value"]

    assert text == f"Feedback recorded for ORDER-123: {said}; nothing was executed."


async def test_without_an_order_it_asks_for_one_and_does_not_pause() -> None:
    graph = refund.build().compile(checkpointer=InMemorySaver())
    state = await graph.ainvoke({"messages": [{"role": "user", "content": "Hello"}]}, CONFIG)

    assert "__interrupt__" not in state
    assert "Which order" in state["messages"][-1].text


@pytest.mark.parametrize(
    "answer",
    ["approve", " Approved ", "YES", "y", {"action": "approve"}, {"type": "approve"},
     {"approved": True}, {"action": "approve", "note": "fine", "value": None}],
)  # fmt: skip
def test_the_words_that_approve(answer: Any) -> None:
    assert refund.read_answer(answer).decision == "approved"


@pytest.mark.parametrize(
    "answer",
    ["reject", "rejected", "No", "n", "deny\n", {"action": "reject"}, {"type": "reject"},
     {"approved": False}],
)  # fmt: skip
def test_the_words_that_reject(answer: Any) -> None:
    assert refund.read_answer(answer).decision == "rejected"


@pytest.mark.parametrize(
    "answer",
    ["ok", "sure", "apply", "", "yes, but only 10 EUR", 1, True, 0, False, None, 1.0, [],
     ["approve"], {}, {"approved": 1}, {"approved": "true"}, {"action": "yes"}, {"action": True},
     {"action": ["approve"]},
     {"action": "approve", "type": "reject"}, {"action": "reject", "approved": True},
     {"action": "approve", "value": {"amount": 1000000}}, {"action": "edit"},
     {"decisions": [{"type": "approve"}]}],
)  # fmt: skip
def test_nothing_else_decides(answer: Any) -> None:
    assert refund.read_answer(answer).decision == "feedback"


@pytest.mark.parametrize(
    ("text", "order"),
    [("Refund order ORDER-123", "ORDER-123"), ("please refund order-9.", "ORDER-9"),
     ("ORDER-A-1, quickly", "ORDER-A-1"), ("REORDER-1", ""), ("Refund it", "")],
)  # fmt: skip
def test_order_in_the_last_user_text(text: str, order: str) -> None:
    messages = [HumanMessage("ORDER-0"), HumanMessage(text), AIMessage("ORDER-7?")]
    assert refund.order_in(messages) == order


def test_topology_is_the_story() -> None:
    drawing = refund.build().compile().get_graph()
    edges = {(edge.source, edge.target, edge.conditional) for edge in drawing.edges}

    assert edges == {
        ("__start__", "announce_review", False),
        ("announce_review", "review_refund", False),
        ("review_refund", "execute_refund", True),
        ("review_refund", "__end__", True),
        ("execute_refund", "notify_customer", False),
        ("notify_customer", "__end__", False),
    }
    assert "review_refund -.-> execute_refund" in drawing.draw_mermaid()
