"""The survey through the unchanged SDK: a batch is answered as a whole, in any order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError
from openai.types.responses import Response

from graphs import survey

GIVEN = {"pace": "too fast", "again": "no", "wish": "yes"}
THANKS = "Thank you. pace: too fast; again: no; wish: yes"


async def asked(client: AsyncOpenAI) -> tuple[Response, dict[str, str]]:
    """The pause, and the call ids by the names of their questions."""
    paused = await client.responses.create(model="survey", input="Ask me.")
    calls = {item.name: item.call_id for item in paused.output if item.type == "function_call"}
    return paused, calls


async def answer(
    client: AsyncOpenAI, paused: Response, calls: Mapping[str, str], given: Mapping[str, str]
) -> Response:
    outputs: Any = [
        {"type": "function_call_output", "call_id": calls[name], "output": output}
        for name, output in given.items()
    ]
    return await client.responses.create(
        model="survey", previous_response_id=paused.id, input=outputs
    )


async def test_all_questions_are_asked_at_once_and_say_what_they_expect(
    demos: AsyncOpenAI,
) -> None:
    paused, _ = await asked(demos)
    told = {item.name: json.loads(item.arguments) for item in paused.output}  # type: ignore[union-attr]

    assert list(told) == ["pace", "again", "wish"]
    assert [one["expects"] for one in told.values()] == ["choice", "choice", "text"]
    assert told["again"]["options"] == ["yes", "no"]


async def test_the_order_of_the_answers_does_not_matter(demos: AsyncOpenAI) -> None:
    paused, calls = await asked(demos)
    done = await answer(demos, paused, calls, dict(reversed(GIVEN.items())))
    assert done.output_text == THANKS


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"pace": "too fast", "again": "no"}, "invalid_value"),
        ({**GIVEN, "again": "perhaps"}, "invalid_interrupt_answer"),
        ({**GIVEN, "pace": "TOO FAST"}, "invalid_interrupt_answer"),
        ({**GIVEN, "wish": " "}, "invalid_interrupt_answer"),
    ],
)
async def test_a_batch_that_is_not_right_is_refused_as_a_whole(
    demos: AsyncOpenAI, given: dict[str, str], code: str
) -> None:
    paused, calls = await asked(demos)

    with pytest.raises(BadRequestError) as refused:
        await answer(demos, paused, calls, given)
    assert refused.value.code == code

    done = await answer(demos, paused, calls, GIVEN)
    assert done.output_text == THANKS, "nothing was taken of the refused batch"


def test_topology_is_the_story() -> None:
    edges = {(edge.source, edge.target) for edge in survey.build().compile().get_graph().edges}
    assert edges == {("__start__", "ask"), ("ask", "thank"), ("thank", "__end__")}
