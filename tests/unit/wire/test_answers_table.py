"""Every output against every kind of question: what it reads as, or that it is refused.

The table is the specification's list ("What a client answers") and what clients really send.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import InvalidInterruptAnswer
from gateway.wire.answers import Answer, allowed_line, expiry_answer, read_text
from gateway.wire.questions import Action, Question

REFUSED = "refused"
EDIT = {
    "type": "object",
    "properties": {"amount": {"type": "integer", "maximum": 100}},
    "required": ["amount"],
    "additionalProperties": False,
}
APPROVAL = Question(
    "approval", {"amount": 5}, "Pay?", ("approve", "reject"), name="pay", form="fermata"
)
EDITABLE = replace(APPROVAL, allowed=("approve", "reject", "edit", "respond"), schema=EDIT)
CHOICE = Question(
    "choice",
    None,
    "Which?",
    ("respond",),
    (
        "basic",
        {"value": "pro", "label": "Pro – für alle", "description": "More"},
        {"value": 3, "label": "Three"},
        {"value": True, "label": "All"},
        {"value": {"a": 1}, "label": "An object"},
    ),
    name="plan",
    form="fermata",
)
TEXT = Question("text", None, "Why?", ("respond",), name="reason", form="fermata")
VALUE = Question("value", None, "How?", ("respond",), schema=EDIT, name="limits", form="fermata")
NULLABLE = replace(VALUE, schema={"type": ["null", "string"]})
RAW = Question("any", "Go on?", "Go on?", name="interrupt")
ONE = Question(
    "approval",
    None,
    "Mail?",
    ("approve", "edit", "reject", "respond"),
    name="interrupt",
    form="hitl",
    actions=(Action("mail", {"to": "a"}, ("approve", "edit", "reject", "respond")),),
)
TWO = replace(
    ONE, actions=(Action("mail", {}, ("approve", "edit")), Action("wipe", {}, ("reject",)))
)
CALL = replace(ONE, form="hitl_call", schema=EDIT)

KINDS = {
    "approval": APPROVAL,
    "editable": EDITABLE,
    "choice": CHOICE,
    "text": TEXT,
    "value": VALUE,
    "nullable": NULLABLE,
    "raw": RAW,
    "one": ONE,
    "two": TWO,
    "call": CALL,
}

YES, NO = Answer(None, "approve"), Answer(None, "reject")


def js(value: Any) -> str:
    return json.dumps(value)


def said(value: Any, note: str | None = None) -> Answer:
    return Answer(value, "respond", note)


def decided(*decisions: Any, action: str, note: str | None = None) -> Answer:
    return Answer({"decisions": list(decisions)}, action, note)


APPROVE, REJECT = {"type": "approve"}, {"type": "reject"}
MAIL = {"name": "mail", "args": {"amount": 7}}
MEGABYTE = "x" * 1_000_000

TABLE: list[tuple[str, str, Answer | str]] = [
    # bare words: the whole list
    *(
        ("approval", text, YES)
        for text in ("approve", "approved", "yes", "y", "YES", " Approve\n", "\tY ", "yEs")
    ),
    *(
        ("approval", text, NO)
        for text in ("reject", "rejected", "no", "n", "deny", "NO", " Deny ", "REJECTED\r\n")
    ),
    *(
        ("approval", text, REFUSED)
        for text in (
            *("ok", "okay", "apply", "sure", "yep", "yes!", "yes.", "yes please", "approve it"),
            *("I approve", "approved by me", "ja", "да", "👍", "1", "0", "true", "false", "null"),
            *('"true"', "true ", '"approve"', "'approve'", "approve approve", "[]", "{}", ""),
            *(" ", "\ud800", "yes\ud800", "not approved", "no way", "nope", "unknown", "edit"),
            *("respond", "approve\u200b", "approve\0", "y" * 100, "NaN", "[" * 5000, MEGABYTE),
            *("approve" + " " * 1_000_000 + "x", '["approve"]', js({"approved": True})),
            *(js({"decision": "approve"}), js({"answer": "yes"}), js({"approve": True})),
        )
    ),
    ("approval", "approve" + " " * 1_000_000, YES),
    # our JSON form
    ("approval", js({"action": "approve"}), YES),
    ("approval", js({"action": "APPROVE"}), YES),
    ("approval", js({"action": "approve", "value": None, "note": None}), YES),
    ("approval", js({"action": "approve", "note": "fine"}), Answer(None, "approve", "fine")),
    ("approval", " " + js({"action": "reject", "note": "nö 🙂"}), Answer(None, "reject", "nö 🙂")),
    ("approval", '{"action":"reject","note":"\\ud800"}', Answer(None, "reject", "\ud800")),
    ("approval", js({"action": "yes"}), REFUSED),
    ("approval", js({"action": "ok"}), REFUSED),
    ("approval", js({"action": True}), REFUSED),
    ("approval", js({"action": None}), REFUSED),
    ("approval", js({"action": ["approve"]}), REFUSED),
    ("approval", js({"action": "approve", "value": {"amount": 1000000}}), REFUSED),  # C10
    ("approval", js({"action": "approve", "value": ""}), REFUSED),
    ("approval", js({"action": "approve", "value": False}), REFUSED),
    ("approval", js({"action": "approve", "amount": 1000000}), REFUSED),
    ("approval", js({"action": "approve", "reviewer": "boss"}), REFUSED),  # C43
    ("approval", js({"action": "approve", "note": 5}), REFUSED),
    ("approval", js({"action": "approve", "type": "approve"}), REFUSED),
    ("approval", js({"action": "edit", "value": {"amount": 1}}), REFUSED),
    ("approval", js({"action": "respond", "value": "hm"}), REFUSED),
    ("approval", '{"action": "reject", "action": "approve"}', REFUSED),
    ("approval", '{"action": "approve"', REFUSED),
    ("approval", '{"action": "approve", "value": NaN}', REFUSED),
    ("approval", '{"action": "approve", "value": 1e400}', REFUSED),
    ("approval", js([{"action": "approve"}]), REFUSED),
    ("approval", js(js({"action": "approve"})), REFUSED),
    # LangChain's words
    ("approval", js({"type": "approve"}), YES),
    ("approval", js({"type": "approve", "message": "do"}), REFUSED),
    ("approval", js({"type": "reject", "message": "late"}), Answer(None, "reject", "late")),
    ("approval", js({"type": "accept"}), REFUSED),
    ("approval", js({"decisions": [{"type": "approve"}]}), YES),
    ("approval", js({"decisions": [{"action": "approve"}]}), YES),
    ("approval", js({"decisions": [APPROVE, APPROVE]}), REFUSED),
    ("approval", js({"decisions": []}), REFUSED),
    ("approval", js({"decisions": ["approve"]}), REFUSED),
    ("approval", js({"decisions": {"type": "approve"}}), REFUSED),
    ("approval", js({"decisions": [APPROVE], "action": "approve"}), REFUSED),
    # edits and words
    ("editable", js({"action": "edit", "value": {"amount": 7}}), Answer({"amount": 7}, "edit")),
    ("editable", js({"type": "edit", "edited_action": {"name": "pay", "args": {"amount": 7}}}),
     Answer({"amount": 7}, "edit")),
    ("editable", js({"type": "edit", "edited_action": {"name": "rm", "args": {"amount": 7}}}),
     REFUSED),
    ("editable", js({"type": "edit", "edited_action": {"name": "pay"}}), REFUSED),
    ("editable", js({"type": "edit", "value": {"amount": 7}}), REFUSED),
    ("editable", js({"action": "edit", "value": {"amount": 101}}), REFUSED),
    ("editable", js({"action": "edit", "value": {"amount": "7"}}), REFUSED),
    ("editable", js({"action": "edit", "value": {"amount": True}}), REFUSED),
    ("editable", js({"action": "edit", "value": {"amount": 7, "to": "me"}}), REFUSED),
    ("editable", js({"action": "edit", "value": '{"amount": 7}'}), REFUSED),
    ("editable", js({"action": "edit"}), REFUSED),
    ("editable", js({"action": "approve", "value": {"amount": 7}}), REFUSED),
    ("editable", js({"action": "reject", "value": {"amount": 7}}), REFUSED),
    ("editable", js({"action": "respond", "value": "Only 10 EUR"}), said("Only 10 EUR")),
    ("editable", js({"type": "respond", "message": "Only 10 EUR"}), said("Only 10 EUR")),
    ("editable", js({"action": "respond", "value": {"amount": 7}}), REFUSED),
    ("editable", js({"action": "respond", "value": "  "}), REFUSED),
    ("editable", js({"action": "respond", "note": "x"}), REFUSED),
    ("editable", "Only 10 EUR", REFUSED),
    # choices
    ("choice", "basic", said("basic")),
    ("choice", " basic\n", said("basic")),
    ("choice", "Pro – für alle", said("pro")),
    ("choice", "pro", said("pro")),
    ("choice", "3", said(3)),
    ("choice", "Three", said(3)),
    ("choice", "true", said(True)),
    ("choice", '{"a": 1}', said({"a": 1})),
    ("choice", '"basic"', said("basic")),
    ("choice", js({"action": "respond", "value": "pro", "note": "!"}), said("pro", "!")),
    ("choice", js({"type": "respond", "message": "Three"}), said(3)),
    *(
        ("choice", text, REFUSED)
        for text in (
            *("BASIC", "bas", "basic pro", "1", "3.0", "false", "null", "", "yes", "approve"),
            *(js({"action": "approve"}), js({"action": "approve", "value": "basic"})),
            *(js({"action": "respond"}), js({"action": "respond", "value": "gold"})),
            *(js(["basic"]), js({"action": "reject"}), MEGABYTE, 'Error: Tool "plan" not found.'),
        )
    ),
    # texts
    ("text", "because", said("because")),
    ("text", "  as it came\n", said("  as it came\n")),
    ("text", "approve", said("approve")),
    ("text", "null", said("null")),
    ("text", "0", said("0")),
    ("text", js({"a": 1}), said(js({"a": 1}))),
    ("text", js({"type": "bug", "action": "none"}), said(js({"type": "bug", "action": "none"}))),
    ("text", "an Error: in the middle", said("an Error: in the middle")),
    ("text", "日本語 🙂 \ud800", said("日本語 🙂 \ud800")),
    ("text", MEGABYTE, said(MEGABYTE)),
    ("text", js({"action": "respond", "value": "Error: full"}), said("Error: full")),
    ("text", js({"action": "respond", "value": ""}), said("")),
    ("text", js({"type": "respond", "message": "words"}), said("words")),
    *(
        ("text", text, REFUSED)
        for text in (
            *("", " \n", js({"action": "approve"}), js({"action": "respond", "value": 5})),
            *(js({"action": "respond"}), js({"decisions": []}), js({"type": "reject"})),
        )
    ),
    # values
    ("value", '{"amount": 7}', said({"amount": 7})),
    ("value", js({"action": "respond", "value": {"amount": 7}, "note": "n"}),
     said({"amount": 7}, "n")),
    ("nullable", "null", said(None)),
    ("nullable", '"text"', said("text")),
    ("nullable", js({"action": "respond", "value": None}), said(None)),
    ("nullable", "text", REFUSED),
    *(
        ("value", text, REFUSED)
        for text in (
            *("", "7", "yes", "approve", "null", '{"amount": 700}', '{"amount": 7, "b": 1}'),
            *('{"amount": 1.5}', '{"amount": NaN}', '{"amount": 1e400}', "{", "[" * 5000),
            *(js({"action": "approve"}), js({"action": "approve", "value": {"amount": 7}})),
            *('"' + MEGABYTE + '"', '{"amount": 1180591620717411303424}'),
        )
    ),
    # raw interrupts: JSON, else the text
    ("raw", "approve", said("approve")),
    ("raw", js({"action": "approve"}), said({"action": "approve"})),
    ("raw", "please hurry", said("please hurry")),
    ("raw", "null", said(None)),
    ("raw", "", said("")),
    ("raw", '"Error: as quoted"', said("Error: as quoted")),
    ("raw", js({"submitted": True}), said({"submitted": True})),
    # LangChain's middleware: one action, several, one a call
    ("one", "yes", decided(APPROVE, action="approve")),
    ("one", "no", decided(REJECT, action="reject")),
    ("one", js({"action": "reject", "note": "late"}),
     decided(REJECT | {"message": "late"}, action="reject", note="late")),
    ("one", js({"decisions": [{"type": "edit", "edited_action": {"name": "fax", "args": {}}}]}),
     decided({"type": "edit", "edited_action": {"name": "fax", "args": {}}}, action="edit")),
    ("one", js({"action": "edit", "value": {"amount": 7}}),
     decided({"type": "edit", "edited_action": MAIL}, action="edit")),
    ("one", js({"type": "respond", "message": "done"}),
     decided({"type": "respond", "message": "done"}, action="respond")),
    ("one", js({"decisions": [APPROVE, APPROVE]}), REFUSED),
    ("one", js({"type": "respond"}), REFUSED),
    ("one", js({"action": "edit", "value": 5}), REFUSED),
    ("two", js({"decisions": [APPROVE, REJECT]}), decided(APPROVE, REJECT, action="decide")),
    ("two", js({"decisions": [REJECT, APPROVE]}), REFUSED),
    ("two", js({"decisions": [APPROVE]}), REFUSED),  # C11
    ("two", js({"decisions": [APPROVE, REJECT, REJECT]}), REFUSED),
    ("two", js([APPROVE, REJECT]), REFUSED),
    ("two", "yes", REFUSED),
    ("two", js({"action": "approve"}), REFUSED),
    ("call", "approve", Answer(APPROVE, "approve")),
    ("call", js({"action": "edit", "value": {"amount": 7}}),
     Answer({"type": "edit", "edited_action": MAIL}, "edit")),
    ("call", js({"type": "edit", "edited_action": {"name": "fax", "args": {"amount": 7}}}),
     REFUSED),
    ("call", js({"action": "edit", "value": {"amount": 700}}), REFUSED),
    ("call", js({"decisions": [APPROVE]}), Answer(APPROVE, "approve")),
]  # fmt: skip

AUTOMATIC = [
    'Error: Tool "review_refund" not found.',
    "Error: review_refund is not a valid tool, try one of [get_weather].",
    "Error: tool call rejected by user.",
    "  Error: anything",
    "Error executing tool review_refund",
    "unsupported call: review_refund",
    "Tool execution was not approved.",
    "Tool execution was not approved",
    "Tool execution denied.",
    "Model tried to call unavailable tool 'review_refund'. No tools are available.",
    "An error occurred while running the tool. Please try again. Error: x",
    "Tool review_refund not found",
    '{"submitted": false}',
    '{"submitted":false}',
    '{"error": "Client session disconnected."}',
    '{"status":"timed_out"}',
]


@pytest.mark.parametrize(
    ("kind", "text", "expected"), TABLE, ids=[f"{kind}-{text[:30]!a}" for kind, text, _ in TABLE]
)
def test_an_output_reads_as(kind: str, text: str, expected: Answer | str) -> None:
    question = KINDS[kind]
    if isinstance(expected, Answer):
        found = read_text(question, text)
        assert found == expected
        assert type(found.value) is type(expected.value)
        return
    with pytest.raises(InvalidInterruptAnswer) as caught:
        read_text(question, text, "input[0].output")
    assert caught.value.param == "input[0].output"
    assert caught.value.message.endswith(allowed_line(question))
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 600


@pytest.mark.parametrize("text", AUTOMATIC)
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_client_says_by_itself_is_nobody_s_answer(kind: str, text: str) -> None:
    with pytest.raises(InvalidInterruptAnswer, match="not a person's answer"):
        read_text(KINDS[kind], text)


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (
            "approval",
            'Answer with approve or reject, or with {"action": "approve|reject", "note": "…"}.',
        ),
        (
            "editable",
            'Answer with approve or reject, or with {"action": "approve|reject|edit|respond",'
            ' "value": …, "note": "…"}.',
        ),
        ("choice", "Answer with one of: 'basic', 'Pro – für alle', 'Three', 'All', 'An object'."),
        ("text", 'Answer with a text, or with {"action": "respond", "value": "…"}.'),
        ("value", "Answer with JSON that fits the question's schema."),
        ("raw", "Answer with JSON or text; put a text that means something else in quotes."),
        (
            "two",
            'Answer with {"decisions": […]}, one for each action in order'
            " (mail: approve, edit; wipe: reject).",
        ),
    ],
)  # fmt: skip
def test_a_refusal_says_what_is_allowed(kind: str, line: str) -> None:
    assert allowed_line(KINDS[kind]) == line


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("approval", "ok", "This is not a decision."),
        ("approval", js({"action": "ok"}), "'ok' is no decision."),
        ("approval", js({"action": "approve", "value": 1}), "'approve' takes no value."),
        ("approval", js({"action": "edit", "value": 1}), "'edit' is not allowed here."),
        ("approval", js({"action": "approve", "reviewer": "x"}), "The field 'reviewer' is not"),
        ("editable", js({"action": "edit", "value": {"amount": 101}}), "value.amount: 101 is"),
        ("choice", "gold", "This is not one of the options."),
        ("value", "{", "This is not JSON: "),
        ("two", js({"decisions": [APPROVE]}), "1 decision for 2 actions."),
    ],
)
def test_a_refusal_says_why(kind: str, text: str, reason: str) -> None:
    with pytest.raises(InvalidInterruptAnswer) as caught:
        read_text(KINDS[kind], text)
    assert caught.value.message.startswith(reason)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [row for row in TABLE if isinstance(row[2], Answer) and KINDS[row[0]].form == "fermata"],
    ids=lambda value: repr(value)[:30],
)
def test_what_the_graph_is_resumed_with_reads_the_same_again(
    kind: str, text: str, expected: Answer
) -> None:
    question = KINDS[kind]
    resumed = read_text(question, text).resume_value(question)
    assert read_text(question, json.dumps(resumed)) == expected


def test_what_the_graph_is_resumed_with() -> None:
    assert YES.resume_value(APPROVAL) == {"action": "approve", "value": None, "note": None}
    assert YES.resume_value(APPROVAL, reviewer="eve")["reviewer"] == "eve"
    assert said({"a": 1}).resume_value(RAW, reviewer="eve") == {"a": 1}
    assert said({"a": 1}).resume_value(replace(VALUE, form="schema")) == {"a": 1}
    both = read_text(TWO, js({"decisions": [APPROVE, REJECT]}))
    assert both.resume_value(TWO, reviewer="eve") == {"decisions": [APPROVE, REJECT]}
    assert read_text(CALL, "no").resume_value(CALL) == REJECT


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (APPROVAL, None),
        (replace(APPROVAL, on_expiry="reject"), NO),
        (replace(CHOICE, on_expiry="basic"), said("basic")),
        (replace(TEXT, on_expiry="no reason"), said("no reason")),
        (replace(VALUE, on_expiry={"amount": 1}), said({"amount": 1})),
    ],
)
def test_what_silence_answers(question: Question, answer: Answer | None) -> None:
    assert expiry_answer(question) == answer


def test_a_deep_value_against_a_recursive_schema() -> None:
    node = {"allOf": [{"allOf": [{"allOf": [{"items": {"$ref": "#/$defs/n"}}]}]}]}
    tree = {"$ref": "#/$defs/n", "$defs": {"n": node}}
    question = replace(VALUE, schema=tree)
    assert read_text(question, "[[[]]]") == said([[[]]])
    with pytest.raises(InvalidInterruptAnswer, match="nested too deeply"):
        read_text(question, "[" * 190 + "]" * 190)


REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "answers.md"


def test_the_reference_s_table_of_approvals_reads_as_it_says() -> None:
    section = REFERENCE.read_text().split("## Approval")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*`) \| (\w+) \|$", section, re.MULTILINE)
    question = replace(
        EDITABLE, name="review_refund", schema={"required": ["cents"], "type": "object"}
    )
    read = dict.fromkeys(("approve", "reject", "edit", "respond"), 0)
    for outputs, action in rows:
        for output in re.findall(r"`([^`]+)`", outputs):
            assert read_text(question, output).action == action
            read[action] += 1
    assert read == {"approve": 7, "reject": 7, "edit": 2, "respond": 2}
