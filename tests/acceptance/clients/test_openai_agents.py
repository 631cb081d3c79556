"""The OpenAI Agents SDK for Python, unchanged, in both ways that it keeps a conversation."""

from __future__ import annotations

from typing import Any

import pytest
from agents import (
    Agent,
    ModelBehaviorError,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    RunResult,
    function_tool,
)
from openai import AsyncOpenAI, BadRequestError

from tests.acceptance.clients.orders import Order
from tests.acceptance.server import Server

REFUND = "interruptible-approval"
QUIET = RunConfig(tracing_disabled=True)  # traces would be sent to OpenAI

MODES: list[Any] = [
    pytest.param({}, id="resends"),
    pytest.param({"auto_previous_response_id": True}, id="previous_response_id"),
]


@pytest.fixture
async def openai(server: Server) -> Any:
    async with server.async_client() as client:
        yield client


@function_tool
def get_weather(location: str) -> str:
    """The weather in a place."""
    return f"18 degrees in {location}"


@function_tool(needs_approval=True, strict_mode=False)
def review_refund(question: str, payload: dict[str, Any], expects: str) -> str:
    """A person reviews a refund."""
    return "approve"


def agent(client: AsyncOpenAI, model: str, *tools: Any) -> Agent[Any]:
    return Agent(
        name="clerk",
        instructions="Be brief.",
        tools=list(tools),
        model=OpenAIResponsesModel(model, client),
    )


async def run(clerk: Agent[Any], said: Any, **mode: Any) -> RunResult:
    return await Runner.run(clerk, said, run_config=QUIET, **mode)


@pytest.mark.parametrize("mode", MODES)
async def test_an_ordinary_turn_and_the_next(openai: AsyncOpenAI, mode: dict[str, Any]) -> None:
    clerk = agent(openai, "echo")
    first = await run(clerk, "Good morning", **mode)
    again = [*first.to_input_list(), {"role": "user", "content": "And goodbye"}]
    second = await run(clerk, again, **mode)

    assert first.final_output == "Good morning"
    assert second.final_output == "And goodbye"


@pytest.mark.parametrize("mode", MODES)
async def test_a_tool_is_called_and_its_output_quoted(
    openai: AsyncOpenAI, mode: dict[str, Any]
) -> None:
    clerk = agent(openai, "echo", get_weather)
    done = await run(clerk, "What is the weather in Paris?", **mode)
    streamed = Runner.run_streamed(clerk, "What is the weather in Rome?", run_config=QUIET, **mode)
    async for _ in streamed.stream_events():
        pass

    assert done.final_output == "get_weather says: 18 degrees in Paris"
    assert streamed.final_output == "get_weather says: 18 degrees in Rome"


@pytest.mark.parametrize("mode", MODES)
async def test_an_approved_tool_of_the_questions_name_approves(
    openai: AsyncOpenAI, order: Order, mode: dict[str, Any]
) -> None:
    """The SDK's own pause: its state holds the question until somebody approves the tool."""
    clerk = agent(openai, REFUND, review_refund)
    paused = await run(clerk, f"Refund order {order.id}", **mode)
    (asked,) = paused.interruptions
    assert order.paid() == 0
    state = paused.to_state()
    state.approve(asked)
    done = await run(clerk, state, **mode)

    assert done.final_output == order.executed
    assert order.paid() == 1


@pytest.mark.parametrize("mode", MODES)
async def test_a_denial_says_no_only_in_words_that_mean_it(
    openai: AsyncOpenAI, order: Order, mode: dict[str, Any]
) -> None:
    """Without a message of its own a denied tool tells `Tool execution was not approved.`, which
    is what the SDK says, not a person: refused, and the question stays open."""
    clerk = agent(openai, REFUND, review_refund)
    paused = await run(clerk, f"Refund order {order.id}", **mode)
    (asked,) = paused.interruptions
    by_itself, in_words = paused.to_state(), paused.to_state()
    by_itself.reject(asked)
    in_words.reject(asked, rejection_message="reject")
    with pytest.raises(BadRequestError) as refused:
        await run(clerk, by_itself, **mode)
    done = await run(clerk, in_words, **mode)

    assert refused.value.code == "invalid_interrupt_answer"
    assert done.final_output == order.rejected
    assert order.paid() == 0


async def test_an_agent_without_the_tool_says_so_and_nothing_is_paid(
    openai: AsyncOpenAI, order: Order
) -> None:
    clerk = agent(openai, REFUND, get_weather)
    with pytest.raises(ModelBehaviorError, match="review_refund"):
        await run(clerk, f"Refund order {order.id}")

    assert order.paid() == 0


async def test_a_failed_run_raises(openai: AsyncOpenAI) -> None:
    streamed = Runner.run_streamed(agent(openai, "failing"), "hi", run_config=QUIET)
    with pytest.raises(Exception, match="ValueError"):
        async for _ in streamed.stream_events():
            pass
