"""Chat Completions by clients that know nothing of Responses, unchanged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from langchain.agents import create_agent
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, InternalServerError
from pydantic import BaseModel, SecretStr

from tests.acceptance.clients import nodejs
from tests.acceptance.clients.orders import Order
from tests.acceptance.server import Server

REFUND = "interruptible-approval"
WEATHER = "get_weather says: 18 degrees in Paris"


class City(BaseModel):
    city: str


@tool
def get_weather(location: str) -> str:
    """The weather in a place."""
    return f"18 degrees in {location}"


def chat(server: Server, model: str) -> ChatOpenAI:
    return ChatOpenAI(
        model=model,
        base_url=server.base_url,
        api_key=SecretStr("unused"),
        max_retries=0,
        use_responses_api=False,
        stream_usage=True,
    )


# --- langchain-openai ------------------------------------------------------------------------


def test_langchain_talks_and_counts(server: Server) -> None:
    model = chat(server, "echo")
    first = model.invoke("Good morning")
    pieces = list(model.stream([HumanMessage("Good morning"), first, HumanMessage("And goodbye")]))
    usages = [piece.usage_metadata for piece in pieces if isinstance(piece, AIMessageChunk)]

    assert first.text == "Good morning"
    assert first.usage_metadata is not None
    assert first.usage_metadata["total_tokens"] == 4
    assert [piece.text for piece in pieces if piece.text] == ["And ", "goodbye"]
    assert [usage["output_tokens"] for usage in usages if usage is not None] == [2]


def test_langchain_gets_structured_output(server: Server) -> None:
    model = chat(server, "echo").with_structured_output(City)

    assert model.invoke("Where is Vienna?") == City(city="Vienna")


def test_a_langchain_agent_calls_a_tool(server: Server) -> None:
    agent: Any = create_agent(chat(server, "echo"), [get_weather])
    done = agent.invoke({"messages": [("user", "What is the weather in Paris?")]})

    assert done["messages"][-1].text == WEATHER


@pytest.mark.parametrize("stream", [False, True], ids=["invoke", "stream"])
@pytest.mark.parametrize(("answer", "paid"), [("approve", 1), ("reject", 0)])
def test_langchain_answers_by_a_tool_message(
    server: Server, order: Order, stream: bool, answer: str, paid: int
) -> None:
    model = chat(server, REFUND)

    def told(messages: list[Any]) -> Any:
        if not stream:
            return model.invoke(messages)
        first, *rest = model.stream(messages)
        for piece in rest:
            first += piece  # type: ignore[operator]  # chunks add up
        return first

    said = HumanMessage(f"Refund order {order.id}")
    paused = told([said])
    (call,) = paused.tool_calls
    reply = ToolMessage(answer, tool_call_id=call["id"])
    done = told([said, paused, reply])
    again = told([said, paused, reply])

    assert call["name"] == "review_refund"
    assert call["args"]["payload"]["order"] == order.id
    assert done.text == again.text == (order.executed if paid else order.rejected)
    assert order.paid() == paid


# --- openai-agents ---------------------------------------------------------------------------


@pytest.fixture
async def openai(server: Server) -> AsyncIterator[AsyncOpenAI]:
    async with server.async_client() as client:
        yield client


@function_tool(name_override="get_weather")
def agent_weather(location: str) -> str:
    """The weather in a place."""
    return f"18 degrees in {location}"


@function_tool(needs_approval=True, strict_mode=False)
def review_refund(question: str, payload: dict[str, Any], expects: str) -> str:
    """A person reviews a refund."""
    return "approve"


def clerk(client: AsyncOpenAI, model: str, *tools: Any) -> Agent[Any]:
    return Agent("clerk", tools=list(tools), model=OpenAIChatCompletionsModel(model, client))


QUIET = RunConfig(tracing_disabled=True)  # traces would be sent to OpenAI


async def test_an_openai_agent_calls_a_tool(openai: AsyncOpenAI) -> None:
    done = await Runner.run(
        clerk(openai, "echo", agent_weather), "What is the weather in Paris?", run_config=QUIET
    )

    assert done.final_output == WEATHER


async def test_an_openai_agent_approves(openai: AsyncOpenAI, order: Order) -> None:
    agent = clerk(openai, REFUND, review_refund)
    paused = await Runner.run(agent, f"Refund order {order.id}", run_config=QUIET)
    (interruption,) = paused.interruptions
    assert order.paid() == 0
    state = paused.to_state()
    state.approve(interruption)
    done = await Runner.run(agent, state, run_config=QUIET)

    assert done.final_output == order.executed
    assert order.paid() == 1


async def test_a_failed_run_raises(openai: AsyncOpenAI) -> None:
    with pytest.raises(InternalServerError):
        await Runner.run(clerk(openai, "failing"), "x", run_config=QUIET)


# --- Node ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told(node_clients: Path, server: Server) -> dict[str, dict[str, Any]]:
    """What chat.mjs printed, by name."""
    lines = nodejs.told(node_clients, "chat.mjs", BASE_URL=server.base_url, ORDER="ORDER-CHAT")
    return {line["name"]: line for line in lines}


@pytest.mark.parametrize("mode", ["json", "helper"])
def test_the_node_sdk(told: dict[str, dict[str, Any]], mode: str) -> None:
    case = told[f"refund {mode}"]

    assert case["call"] == "review_refund"
    assert case["reasons"] == ["tool_calls", "stop"]
    assert "was executed" in case["final"]
    failed = told[f"failed {mode}"]
    assert failed["code"] == "run_failed"
    assert "failed" in failed["error"]


@pytest.mark.parametrize("mode", ["generate", "stream"])
def test_the_vercel_ai_sdk(told: dict[str, dict[str, Any]], mode: str) -> None:
    case = told[f"vercel {mode}"]

    assert (case["text"], case["steps"]) == (WEATHER, 2)
