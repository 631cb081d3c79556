"""The WebSocket transport through a server process and the official client's `connect()`."""

from __future__ import annotations

import asyncio

import pytest
from openai import AsyncOpenAI
from openai.resources.responses.responses import AsyncResponsesConnection
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from tests.acceptance.server import Server

REFUND = "interruptible-approval"


async def test_a_question_is_asked_and_answered_over_one_connection(server: Server) -> None:
    async with (
        AsyncOpenAI(base_url=server.base_url, api_key="unused") as client,
        client.responses.connect() as connection,
        asyncio.timeout(20),
    ):
        await connection.response.create(model=REFUND, input="Refund order ORDER-123", store=False)
        async for event in connection:
            if event.type == "response.completed":
                break
        asked = event.response
        (call,) = [item for item in asked.output if item.type == "function_call"]
        answer = {"type": "function_call_output", "call_id": call.call_id, "output": "approve"}
        await connection.response.create(
            model=REFUND,
            store=False,
            previous_response_id=asked.id,
            input=[answer],  # type: ignore[list-item]  # a dict is what it takes
        )
        async for event in connection:
            if event.type == "response.completed":
                break
        assert "was executed" in event.response.output_text


async def test_a_page_of_another_site_is_kept_out(server: Server) -> None:
    async with AsyncOpenAI(base_url=server.base_url, api_key="unused") as client:
        headers = {"Origin": "https://elsewhere.example"}
        with pytest.raises(InvalidStatus, match="403"):
            await client.responses.connect(extra_headers=headers).enter()


async def test_a_message_that_is_too_long_closes_the_connection(server: Server) -> None:
    async with (
        AsyncOpenAI(base_url=server.base_url, api_key="unused") as client,
        client.responses.connect() as connection,
        asyncio.timeout(20),
    ):
        with pytest.raises(ConnectionClosedError, match="1009"):
            await say_too_much(connection)


async def say_too_much(connection: AsyncResponsesConnection) -> None:
    """Closed while it is sent, or afterwards."""
    await connection.response.create(model=REFUND, input="x" * (21 * 2**20))
    await connection.recv()
