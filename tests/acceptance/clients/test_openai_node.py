"""The OpenAI SDK for Node, unchanged, in both majors that people have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.clients import nodejs
from tests.acceptance.server import Server
from tests.acceptance.test_refund import NOTICE, OUTCOMES


@pytest.fixture(scope="module", params=["openai-6", "openai"])
def told(
    node_clients: Path, server: Server, request: pytest.FixtureRequest
) -> list[dict[str, Any]]:
    """What openai.mjs printed."""
    return nodejs.told(node_clients, "openai.mjs", BASE_URL=server.base_url, SDK=request.param)


def case_of(told: list[dict[str, Any]], **wanted: str) -> dict[str, Any]:
    (case,) = [one for one in told if wanted.items() <= one.items()]
    return case


@pytest.mark.parametrize("reply", OUTCOMES)
@pytest.mark.parametrize("mode", ["json", "stream", "helper"])
def test_refund(told: list[dict[str, Any]], mode: str, reply: str) -> None:
    case = case_of(told, mode=mode, reply=reply)

    assert case["statuses"] == ["completed", "completed"]
    assert (case["call"]["name"], case["call"]["status"]) == ("review_refund", "completed")
    assert case["call"]["arguments"]["payload"]["order"] == "ORDER-123"
    assert case["final"] == OUTCOMES[reply]
    if mode == "json":
        assert case["types"] == ["function_call"]
    else:
        assert case["types"] == ["message", "function_call"]
        assert case["notice"] == NOTICE
        assert case["deltas"] == OUTCOMES[reply]
        assert case["last"] == ["response.completed", "response.completed"]


@pytest.mark.parametrize("mode", ["json", "stream", "helper"])
def test_tools(told: list[dict[str, Any]], mode: str) -> None:
    case = case_of(told, mode=f"tools {mode}")

    assert case["arguments"] == {"location": "Paris"}
    assert case["final"] == "get_weather says: 18 degrees"


def test_parse_gives_the_object(told: list[dict[str, Any]]) -> None:
    assert case_of(told, mode="parse")["parsed"] == {"city": "Vienna"}


@pytest.mark.parametrize("mode", ["json", "stream", "helper"])
def test_a_failed_run_can_be_told(told: list[dict[str, Any]], mode: str) -> None:
    case = case_of(told, mode=f"failed {mode}")

    assert case["status"] == "failed"
    assert case["error"] == "run_failed"


def test_a_broken_background_stream_is_resumed_where_it_broke(told: list[dict[str, Any]]) -> None:
    case = case_of(told, mode="resumed")

    assert case["numbers"] == list(range(len(case["numbers"])))
    assert case["last"] == "response.completed"
    assert case["final"] == case["helper"] == case["polled"] == "slept 0.5"


def test_errors_are_the_sdks_own(told: list[dict[str, Any]]) -> None:
    assert case_of(told, mode="error") == {
        "mode": "error",
        "status": 404,
        "code": "model_not_found",
        "name": "NotFoundError",
    }
