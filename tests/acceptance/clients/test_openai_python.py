"""The OpenAI SDK for Python, unchanged: what `test_refund.py` does not show."""

from __future__ import annotations

import json

import pytest
from openai import OpenAI, pydantic_function_tool
from openai.types.responses import ParsedResponseFunctionToolCall
from pydantic import BaseModel

from tests.acceptance.clients.orders import Order


class City(BaseModel):
    city: str


class GetWeather(BaseModel):
    """The weather in a place."""

    location: str


def tool() -> dict[str, object]:
    function = pydantic_function_tool(GetWeather, name="get_weather")["function"]
    return {"type": "function", **function}


def test_parse_gives_the_model(client: OpenAI) -> None:
    done = client.responses.parse(model="echo", input="Where is Vienna?", text_format=City)

    assert done.output_parsed == City(city="Vienna")


def test_the_stream_helper_parses_too(client: OpenAI) -> None:
    with client.responses.stream(
        model="echo", input="Where is Vienna?", text_format=City
    ) as stream:
        kinds = [event.type for event in stream]
        done = stream.get_final_response()

    assert done.output_parsed == City(city="Vienna")
    assert kinds[-1] == "response.completed"


@pytest.mark.parametrize("named", [True, False], ids=["previous_response_id", "resends"])
def test_a_tool_is_called_parsed_and_its_output_quoted(client: OpenAI, named: bool) -> None:
    question = {"role": "user", "content": "What is the weather in Paris?"}
    asked = client.responses.parse(model="echo", input=[question], tools=[tool()])  # type: ignore[list-item]
    (call,) = asked.output
    assert isinstance(call, ParsedResponseFunctionToolCall)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}
    done = client.responses.create(
        model="echo",
        input=[output] if named else [question, *asked.output, output],  # type: ignore[list-item]
        previous_response_id=asked.id if named else None,
    )

    assert json.loads(call.arguments) == {"location": "Paris"}
    assert done.output_text == "get_weather says: 18 degrees"


def test_items_are_resent_as_they_came(client: OpenAI, order: Order) -> None:
    """The SDK's own objects, dumped with all their fields, are taken back."""
    asked = client.responses.create(
        model="interruptible-approval", input=f"Refund order {order.id}", store=False
    )
    (call,) = [item for item in asked.output if item.type == "function_call"]
    history = [
        {"role": "user", "content": f"Refund order {order.id}"},
        *[item.model_dump() for item in asked.output],
        {"type": "function_call_output", "call_id": call.call_id, "output": "approve"},
    ]
    done = client.responses.create(model="interruptible-approval", input=history, store=False)  # type: ignore[arg-type]
    history += [*[item.model_dump() for item in done.output], {"role": "user", "content": "Thanks"}]
    after = client.responses.create(model="interruptible-approval", input=history, store=False)  # type: ignore[arg-type]

    assert done.output_text == order.executed
    assert "Which order" in after.output_text
    assert order.paid() == 1


def test_a_broken_background_stream_is_resumed_where_it_broke(client: OpenAI) -> None:
    seen = []
    with client.responses.create(
        model="sleepy", input="0.5", background=True, stream=True
    ) as stream:
        for event in stream:
            seen.append(event)
            if event.type == "response.in_progress":
                break  # the connection is closed, the run goes on
    created = seen[0]
    assert created.type == "response.created"
    assert created.response.status == "queued"
    last_seen = seen[-1].sequence_number
    with client.responses.retrieve(
        created.response.id, stream=True, starting_after=last_seen
    ) as stream:
        seen += list(stream)
    last = seen[-1]

    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert last.type == "response.completed"
    assert last.response.output_text == "slept 0.5"
    assert client.responses.retrieve(created.response.id).output_text == "slept 0.5"


def test_the_stream_helper_resumes_too(client: OpenAI) -> None:
    queued = client.responses.create(model="sleepy", input="0.2", background=True)
    assert queued.status in ("queued", "in_progress")
    with client.responses.stream(response_id=queued.id) as stream:
        done = stream.get_final_response()

    assert done.output_text == "slept 0.2"


def test_a_background_response_is_polled(client: OpenAI) -> None:
    response = client.responses.create(model="echo", input="Good morning", background=True)
    while response.status in ("queued", "in_progress"):
        response = client.responses.retrieve(response.id)

    assert (response.status, response.output_text) == ("completed", "Good morning")


def test_a_background_response_is_cancelled(client: OpenAI) -> None:
    response = client.responses.create(model="sleepy", input="60", background=True)
    response = client.responses.cancel(response.id)
    while response.status in ("queued", "in_progress"):
        response = client.responses.retrieve(response.id)

    assert response.status == "cancelled"
