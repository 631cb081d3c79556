"""`llm`, as its users set it up: a model in extra-openai-models.yaml that speaks Responses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llm
import pytest
from click.testing import CliRunner
from llm.cli import cli
from openai import BadRequestError

from tests.acceptance.clients.orders import Order
from tests.acceptance.server import Server


@pytest.fixture
def user_path(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """llm's own configuration folder; JSON is YAML."""
    models = [
        {
            "model_id": name,
            "model_name": name,
            "api_base": server.base_url,
            "responses": True,
            "supports_tools": True,
            "supports_schema": True,
        }
        for name in ("echo", "interruptible-approval")
    ]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    return tmp_path


@pytest.fixture
def model(user_path: Path) -> Callable[[str], Any]:
    return llm.get_model


def get_weather(location: str) -> str:
    """The weather in a place."""
    return f"18 degrees in {location}"


def review_refund(question: str, payload: dict[str, Any], expects: str) -> str:
    """A person reviews a refund."""
    return "approve"


@pytest.mark.usefixtures("user_path")
def test_the_command_line() -> None:
    done = CliRunner().invoke(cli, ["-m", "echo", "Good morning"])

    assert (done.exit_code, done.output) == (0, "Good morning\n")


@pytest.mark.parametrize("stream", [True, False])
def test_a_conversation(model: Callable[[str], Any], stream: bool) -> None:
    conversation = model("echo").conversation()
    said = [conversation.prompt(text, stream=stream).text() for text in ("one", "two")]

    assert said == ["one", "two"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_tool_is_called_and_its_output_quoted(model: Callable[[str], Any], stream: bool) -> None:
    chain = model("echo").chain("What is the weather in Paris?", tools=[get_weather], stream=stream)

    assert chain.text() == "get_weather says: 18 degrees in Paris"


def test_a_schema(model: Callable[[str], Any]) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    said = model("echo").prompt("Where is Vienna?", schema=schema).text()

    assert json.loads(said) == {"city": "Vienna"}


def test_a_tool_of_the_questions_name_answers_it(model: Callable[[str], Any], order: Order) -> None:
    chain = model("interruptible-approval").chain(f"Refund order {order.id}", tools=[review_refund])

    assert chain.text().endswith(order.executed)
    assert order.paid() == 1


def test_without_the_tool_it_answers_by_itself_and_decides_nothing(
    model: Callable[[str], Any], order: Order
) -> None:
    chain = model("interruptible-approval").chain(f"Refund order {order.id}", tools=[get_weather])
    with pytest.raises(BadRequestError, match="not a person's answer"):
        chain.text()

    assert order.paid() == 0


def test_a_cancelled_tool_pays_nothing(model: Callable[[str], Any], order: Order) -> None:
    def cancel(tool: Any, call: Any) -> None:
        raise llm.CancelToolCall("not today")

    chain = model("interruptible-approval").chain(
        f"Refund order {order.id}", tools=[review_refund], before_call=cancel
    )

    assert "nothing was executed" in chain.text()
    assert order.paid() == 0
