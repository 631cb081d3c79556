"""Questions as arguments, and raw answers."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest

from gateway.errors import InvalidInterruptAnswer, RunFailed
from gateway.wire.answers import Answer, Question, output_text, read, read_raw
from gateway.wire.history import FunctionCallOutput, parse_input


def answered(output: Any) -> FunctionCallOutput:
    (item,) = parse_input([{"type": "function_call_output", "call_id": "c", "output": output}])
    assert isinstance(item, FunctionCallOutput)
    return item


@pytest.mark.parametrize(
    ("value", "arguments"),
    [
        ("Refund?", {"expects": "any", "question": "Refund?", "payload": "Refund?"}),
        (
            {"question": "Refund?", "amount": Decimal("1.10")},
            {
                "expects": "any",
                "question": "Refund?",
                "payload": {"question": "Refund?", "amount": "1.10"},
            },
        ),
        ({"question": 5}, {"expects": "any", "payload": {"question": 5}}),
        (None, {"expects": "any", "payload": None}),
        (2**70, {"expects": "any", "payload": 2**70}),
        (["\ud800"], {"expects": "any", "payload": ["\ud800"]}),
    ],
)
def test_C15_a_raw_interrupt_as_arguments(value: Any, arguments: Any) -> None:
    question = Question.raw(value)
    assert json.loads(question.arguments()) == arguments
    assert Question.of_arguments(question.arguments()) == question


def test_C15_a_payload_that_json_cannot_hold() -> None:
    with pytest.raises(RunFailed, match=r"payload\.price is NaN"):
        Question.raw({"price": float("nan")})


def test_a_typed_question_has_its_room() -> None:
    question = Question(
        expects="approval",
        payload={"order": "A"},
        question="Refund?",
        allowed=("approve", "reject"),
        options=({"value": "a", "label": "A"},),
        schema={"type": "object"},
        expires_at=dt.datetime(2026, 12, 1, 10, tzinfo=dt.timezone(dt.timedelta(hours=1))),
    )
    arguments = json.loads(question.arguments())
    assert list(arguments) == [
        "expects",
        "question",
        "payload",
        "allowed",
        "options",
        "schema",
        "expires_at",
    ]
    assert arguments["expires_at"] == "2026-12-01T09:00:00Z"
    assert Question.of_arguments(question.arguments()) == question


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", ""),
        ("approve", "approve"),
        ("0", 0),
        ("false", False),
        ("[]", []),
        ("null", None),
        ('"quoted"', "quoted"),
        ('{"a": 1', '{"a": 1'),
        (' {"a": 1} ', {"a": 1}),
        ("18446744073709551615", 2**64 - 1),
        ("NaN", "NaN"),
        ("[Infinity]", "[Infinity]"),
        ("1e400", "1e400"),
        ("a\ud800", "a\ud800"),
        ('"\\ud800"', "\ud800"),
        ("[" * 5000, "[" * 5000),
        ("x" * 1_000_000, "x" * 1_000_000),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_C09_C14_a_raw_answer_is_json_or_the_text(text: str, value: Any) -> None:
    found = read_raw(text)
    assert found == value
    assert type(found) is type(value)
    assert read(Question("any"), answered(text), "input[0].output") == Answer(value)


def test_what_langgraph_could_not_store_is_refused_before_it_kills_the_run() -> None:
    assert read_raw("1180591620717411303424") == 2**70
    for text in ("1180591620717411303424", '{"a": [-9223372036854775809]}'):
        with pytest.raises(InvalidInterruptAnswer, match="beyond 64 bits"):
            read(Question("any"), answered(text), "input[0].output")


def test_C09_parts_of_text_are_one_answer() -> None:
    parts = [{"type": "input_text", "text": '{"a":'}, {"type": "input_text", "text": "1}"}]
    assert read(Question("any"), answered(parts), "input[0].output") == Answer({"a": 1})


def test_C09_an_image_is_no_answer() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "u"}]
    with pytest.raises(InvalidInterruptAnswer) as caught:
        output_text(answered(parts), "input[2].output")
    assert caught.value.param == "input[2].output[1]"
