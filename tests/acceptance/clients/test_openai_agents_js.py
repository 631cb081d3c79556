"""The OpenAI Agents SDK for JavaScript, unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.clients import nodejs
from tests.acceptance.clients.orders import Order
from tests.acceptance.server import Server

MODES = pytest.mark.parametrize("mode", ["json", "stream"])

Told = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def told(node_clients: Path, server: Server) -> Told:
    """What agents.mjs printed, by the names of its cases."""
    lines = nodejs.told(node_clients, "agents.mjs", BASE_URL=server.base_url)
    return {one["name"]: one for one in lines}


def order(server: Server, name: str) -> Order:
    return Order(f"ORDER-JS-{name}".upper(), server)


@MODES
def test_an_ordinary_turn_and_the_next(told: Told, mode: str) -> None:
    assert told[f"{mode} turns"]["texts"] == ["Good morning", "And goodbye"]


@MODES
def test_a_tool_is_called_and_its_output_quoted(told: Told, mode: str) -> None:
    assert told[f"{mode} tools"]["text"] == "get_weather says: 18 degrees in Paris"


@MODES
def test_an_approved_tool_of_the_questions_name_approves(
    told: Told, server: Server, mode: str
) -> None:
    mine = order(server, f"{mode}-true")

    assert told[f"{mode} approve true"]["text"] == mine.executed
    assert mine.paid() == 1


@MODES
def test_a_denial_in_the_sdks_words_is_not_a_decision(
    told: Told, server: Server, mode: str
) -> None:
    assert "not a person's answer" in told[f"{mode} approve false"]["error"]
    assert order(server, f"{mode}-false").paid() == 0


@MODES
def test_an_agent_without_the_tool_pays_nothing(told: Told, server: Server, mode: str) -> None:
    assert "review_refund" in told[f"{mode} unknown"]["error"]
    assert order(server, f"{mode}-unknown").paid() == 0
