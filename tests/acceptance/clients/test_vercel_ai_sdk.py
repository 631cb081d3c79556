"""The Vercel AI SDK, unchanged, in both majors that people have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.clients import nodejs
from tests.acceptance.clients.orders import Order
from tests.acceptance.server import Server

MODES = pytest.mark.parametrize("mode", ["generate", "stream"])
VERSIONS = {"V6": ("ai-6", "ai-sdk-openai-3"), "V7": ("ai", "@ai-sdk/openai")}

Told = dict[str, dict[str, Any]]


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def told(version: str, node_clients: Path, server: Server) -> Told:
    """What vercel.mjs printed, by the names of its cases."""
    ai, provider = VERSIONS[version]
    environ = {"BASE_URL": server.base_url, "PREFIX": version, "AI": ai, "PROVIDER": provider}
    return {one["name"]: one for one in nodejs.told(node_clients, "vercel.mjs", **environ)}


def order(server: Server, version: str, name: str) -> Order:
    return Order(f"ORDER-{version}-{name}".upper(), server)


@MODES
def test_an_ordinary_turn(told: Told, mode: str) -> None:
    case = told[f"{mode} talk"]

    assert (case["text"], case["reason"]) == ("Good morning everybody", "stop")
    if mode == "stream":
        assert case["pieces"] == ["Good ", "morning ", "everybody"]


@MODES
@pytest.mark.parametrize("stored", ["turns", "turns unstored"])
def test_the_next_turn_with_references_and_without(told: Told, mode: str, stored: str) -> None:
    assert told[f"{mode} {stored}"]["text"] == "And goodbye"


@MODES
def test_a_tool_is_called_and_its_output_quoted(told: Told, mode: str) -> None:
    case = told[f"{mode} tools"]

    assert (case["text"], case["steps"]) == ("get_weather says: 18 degrees in Paris", 2)


@MODES
def test_output_of_a_schema(told: Told, mode: str) -> None:
    assert told[f"{mode} object"]["object"] == {"city": "Vienna"}


@MODES
def test_a_tool_of_the_questions_name_answers_it(
    told: Told, server: Server, version: str, mode: str
) -> None:
    mine = order(server, version, f"{mode}-answers")

    assert told[f"{mode} answers"]["text"] == mine.executed
    assert mine.paid() == 1


@MODES
@pytest.mark.parametrize(("answer", "paid"), [("approve", 1), ("reject", 0)])
def test_a_question_left_open_is_answered_by_a_tool_result(
    told: Told, server: Server, version: str, mode: str, answer: str, paid: int
) -> None:
    case, mine = told[f"{mode} {answer}"], order(server, version, f"{mode}-{answer}")

    assert case["reason"] == "tool-calls"
    assert case["text"] == (mine.executed if paid else mine.rejected)
    assert "Which order" in case["after"]
    assert mine.paid() == paid


@MODES
@pytest.mark.parametrize("approved", [True, False])
def test_needs_approval(
    told: Told, server: Server, version: str, mode: str, approved: bool
) -> None:
    """Its denial is the SDK's own text, which is no person's answer: refused, nothing is paid."""
    case = told[f"{mode} needsApproval {str(approved).lower()}"]
    mine = order(server, version, f"{mode}-needs-{approved}")

    assert mine.paid() == approved
    if approved:
        assert case["text"] == mine.executed
    else:
        assert (case["kind"], case["status"]) == ("AI_APICallError", 400)
        assert "not a person's answer" in case["error"]


@MODES
def test_a_call_that_it_does_not_know_decides_nothing(
    told: Told, server: Server, version: str, mode: str
) -> None:
    """In its multi-step loop the SDK answers the call with an error of its own."""
    case = told[f"{mode} unknown"]

    assert "not a person's answer" in case["error"]
    assert order(server, version, f"{mode}-unknown").paid() == 0


@MODES
def test_a_failed_run_is_an_error(told: Told, mode: str) -> None:
    assert "ValueError" in told[f"{mode} failed"]["error"]
