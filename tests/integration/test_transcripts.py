"""What the demonstration graphs promise in their docstrings, held word for word."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import psycopg
import pytest
from openai import AsyncOpenAI

from graphs import GRAPHS, echo, expense, index_advisor, refund, service_desk, survey
from graphs.index_advisor import advisor, agent
from tests.integration.transcripts import play, transcript

MODULES: dict[str, ModuleType] = {
    "echo": echo,
    "interruptible-approval": refund,
    "expense-approval": expense,
    "index-advisor": advisor,
    "index-agent": agent,
    "index-agent-alone": index_advisor,
    "service-desk": service_desk,
    "survey": survey,
}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
    },
}
DECLARED: dict[str, Any] = {"echo": {"tools": [WEATHER]}}


@pytest.fixture(autouse=True)
def _new_shop(module_database_url: str) -> None:
    """The indexes of one conversation are not there in the next."""
    with psycopg.connect(module_database_url) as connection:
        connection.execute("DROP SCHEMA IF EXISTS index_advisor_demo CASCADE")


def test_every_graph_that_is_served_has_a_transcript() -> None:
    # The assistant has it in test_assistant.py, where it has a model.
    assert GRAPHS.keys() - {"assistant"} == MODULES.keys()


@pytest.mark.parametrize("model", MODULES)
async def test_transcript(demos: AsyncOpenAI, model: str) -> None:
    turns = transcript(MODULES[model])
    assert turns
    await play(demos, model, turns, **DECLARED.get(model, {}))


@pytest.mark.parametrize(
    ("docstring", "reason"),
    [
        ("    user       Hello\n    assistant  Good day", "told:"),
        ("    user       Hello", "nobody answers"),
        ("    assistant  Hello", "nobody asked"),
    ],
)
async def test_a_transcript_that_is_wrong_fails(
    demos: AsyncOpenAI, docstring: str, reason: str
) -> None:
    module = ModuleType("wrong", f"A graph.\n\n{docstring}\n\nThat is all.\n")
    with pytest.raises(AssertionError, match=reason):
        await play(demos, "echo", transcript(module))
