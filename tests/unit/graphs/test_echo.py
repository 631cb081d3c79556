"""What echo says and calls, decided by pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from graphs.echo import EchoChat, choose_tool, fill


@dataclass(frozen=True)
class Tool:
    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None


WEATHER = Tool(
    "get_weather",
    "Get the current weather for a location",
    {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
)
STOCKS = Tool("stockPrice", None, {"type": "object", "properties": {"symbol": {"type": "string"}}})
QUESTION = "What is the weather in Paris?"


@pytest.mark.parametrize(
    ("text", "choice", "called"),
    [
        (QUESTION, "auto", WEATHER),
        ("And the price of ACME?", "auto", STOCKS),
        ("Tell me a joke", "auto", None),
        ("What can you do for the user?", "auto", None),
        (QUESTION, "none", None),
        ("Tell me a joke", "required", STOCKS),
        (QUESTION, "required", WEATHER),
        (QUESTION, {"type": "function", "name": "stockPrice"}, STOCKS),
        (QUESTION, {"type": "function", "name": "unknown"}, None),
        (QUESTION, {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "other"}]}, None),
        ("Joke", {"type": "allowed_tools", "mode": "required", "tools": [{"name": "get_weather"}]},
         WEATHER),
    ],
)  # fmt: skip
def test_which_tool_is_called(text: str, choice: Any, called: Tool | None) -> None:
    assert choose_tool(text, (STOCKS, WEATHER), choice) is called


def test_no_tools_no_call() -> None:
    assert choose_tool(QUESTION, (), "required") is None


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({}, {}),
        (WEATHER.parameters, {"location": "Paris"}),
        ({"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
         {"city": "Paris", "days": 1}),
        ({"properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["b"]},
         {"b": "Paris"}),
        ({"properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
         {"a": "Paris", "b": QUESTION}),
        ({"properties": {"unit": {"enum": ["celsius", "kelvin"]}, "now": {"type": "boolean"},
                         "x": {"type": ["number", "null"]}, "none": {"type": "null"}}},
         {"unit": "celsius", "now": True, "x": 1, "none": None}),
        ({"properties": {"stops": {"type": "array", "items": {"type": "string"}},
                         "at": {"type": "object", "properties": {"zip": {"type": "integer"}}}}},
         {"stops": ["Paris"], "at": {"zip": 1}}),
        ({"properties": {"place": {"$ref": "#/$defs/Place"}, "b": {"anyOf": [{"const": 7}, {}]}},
          "$defs": {"Place": {"type": "object", "properties": {"name": {"type": "string"}}}}},
         {"place": {"name": "Paris"}, "b": 7}),
    ],
)  # fmt: skip
def test_arguments_come_from_the_schema(schema: Any, arguments: dict[str, Any]) -> None:
    assert fill(schema, QUESTION) == arguments


def test_a_schema_that_refers_to_itself_ends() -> None:
    tree = {"type": "object", "properties": {"child": {"$ref": "#/$defs/T"}}}
    loop = {"$ref": "#/$defs/L"}
    schema = {"properties": {"t": tree, "l": loop}, "$defs": {"T": tree, "L": loop}}

    assert fill(schema, "")["l"] == ""


async def test_says_the_last_user_text() -> None:
    reply = await EchoChat().ainvoke([HumanMessage("one"), AIMessage("two"), HumanMessage("three")])
    assert reply.content == "three"


async def test_an_empty_conversation_is_answered_too() -> None:
    assert (await EchoChat().ainvoke([])).text == "Nothing was said."


async def test_answers_in_the_schema_that_is_asked_for() -> None:
    form = {"type": "json_schema", "name": "place", "schema": WEATHER.parameters}
    reply = await EchoChat().bind(text_format=form).ainvoke([HumanMessage(QUESTION)])

    assert reply.content == '{"location": "Paris"}'


async def test_calls_the_tool_and_then_quotes_its_output() -> None:
    model = EchoChat().bind(tools=(WEATHER,), tool_choice="auto")
    question = HumanMessage(QUESTION)
    call = await model.ainvoke([question])

    assert isinstance(call, AIMessage)
    assert [(made["name"], made["args"]) for made in call.tool_calls] == [
        ("get_weather", {"location": "Paris"})
    ]
    output = ToolMessage("18 degrees", tool_call_id=call.tool_calls[0]["id"])
    assert (await model.ainvoke([question, call, output])).content == "get_weather says: 18 degrees"


async def test_quotes_every_output_at_the_end() -> None:
    outputs = [ToolMessage("old", tool_call_id="0"), HumanMessage("again?")]
    outputs += [ToolMessage("one", tool_call_id="1"), ToolMessage("two", tool_call_id="2")]

    assert (await EchoChat().ainvoke(outputs)).content == "The tool says: one\nThe tool says: two"
