"""`ChatOpenAI` of langchain-openai, unchanged, in both ways that it keeps a conversation."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from openai import BadRequestError
from pydantic import BaseModel, SecretStr

from tests.acceptance.clients.orders import Order
from tests.acceptance.server import Server

REFUND = "interruptible-approval"
MODES = pytest.mark.parametrize("named", [False, True], ids=["resends", "previous_response_id"])


class City(BaseModel):
    city: str


@tool
def get_weather(location: str) -> str:
    """The weather in a place."""
    return f"18 degrees in {location}"


def chat(server: Server, model: str, named: bool) -> ChatOpenAI:
    return ChatOpenAI(
        model=model,
        base_url=server.base_url,
        api_key=SecretStr("unused"),
        max_retries=0,
        use_responses_api=True,
        use_previous_response_id=named,
    )


@MODES
def test_an_ordinary_turn_and_the_next(server: Server, named: bool) -> None:
    model = chat(server, "echo", named)
    first = model.invoke("Good morning")
    second = model.invoke([HumanMessage("Good morning"), first, HumanMessage("And goodbye")])
    usage = first.usage_metadata

    assert (first.text, second.text) == ("Good morning", "And goodbye")
    assert usage is not None
    assert usage["total_tokens"] == 4


@MODES
def test_a_stream(server: Server, named: bool) -> None:
    pieces = list(chat(server, "echo", named).stream("One two three"))

    assert [piece.text for piece in pieces if piece.text] == ["One ", "two ", "three"]


@MODES
def test_structured_output(server: Server, named: bool) -> None:
    model = chat(server, "echo", named).with_structured_output(City)

    assert model.invoke("Where is Vienna?") == City(city="Vienna")


@MODES
def test_an_agent_calls_a_tool(server: Server, named: bool) -> None:
    agent: Any = create_agent(chat(server, "echo", named), [get_weather])
    done = agent.invoke({"messages": [("user", "What is the weather in Paris?")]})

    assert done["messages"][-1].text == "get_weather says: 18 degrees in Paris"


@MODES
@pytest.mark.parametrize(("answer", "paid"), [("approve", 1), ("reject", 0)])
def test_a_question_is_answered_by_a_tool_message(
    server: Server, order: Order, named: bool, answer: str, paid: int
) -> None:
    model = chat(server, REFUND, named)
    said = HumanMessage(f"Refund order {order.id}")
    paused = model.invoke([said])
    (call,) = paused.tool_calls
    reply = ToolMessage(answer, tool_call_id=call["id"])
    done = model.invoke([said, paused, reply])
    # The answered pair comes back for ever; it is history.
    after = model.invoke([said, paused, reply, done, HumanMessage("Thanks!")])

    assert call["name"] == "review_refund"
    assert done.text == (order.executed if paid else order.rejected)
    assert "Which order" in after.text
    assert order.paid() == paid


@MODES
def test_an_agent_without_the_tool_answers_by_itself_and_decides_nothing(
    server: Server, order: Order, named: bool
) -> None:
    """`create_agent` sends `Error: review_refund is not a valid tool`; a person may still say."""
    model = chat(server, REFUND, named)
    agent: Any = create_agent(model, [get_weather], checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    with pytest.raises(BadRequestError, match="not a person's answer"):
        agent.invoke({"messages": [("user", f"Refund order {order.id}")]}, thread)
    messages = agent.get_state(thread).values["messages"]
    paused, refusal = messages[1:]
    assert isinstance(paused, AIMessage)
    assert "not a valid tool" in refusal.text
    assert order.paid() == 0

    reply = ToolMessage("approve", tool_call_id=paused.tool_calls[0]["id"])
    assert model.invoke([messages[0], paused, reply]).text == order.executed
    assert order.paid() == 1
