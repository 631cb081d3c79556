"""The client's own question tool: Open WebUI's card, and tools of the question's name.

Tools and outputs are those of recorded requests.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gateway.errors import InvalidInterruptAnswer
from gateway.wire.answers import Answer, read_text
from gateway.wire.dialects import StillOpen, in_dialect, own_arguments, read_dialect
from gateway.wire.questions import Action, Question
from gateway.wire.request import Tool, parse_create

ASK_USER = {
    "type": "function",
    "name": "ask_user",
    "description": "…",
    "parameters": {
        "properties": {
            "questions": {
                "description": "…",
                "items": {"additionalProperties": True, "type": "object"},
                "type": "array",
            },
            "allow_other": {"default": True, "description": "…", "type": "boolean"},
            "timeout_ms": {"default": 120000, "description": "…", "type": "integer"},
        },
        "required": ["questions"],
        "type": "object",
    },
    "strict": False,
}
CLOCK = {"type": "function", "name": "get_current_timestamp", "parameters": {"type": "object"}}

APPROVAL = Question(
    "approval",
    {"order": "A-1042", "amount": 19.99},
    "Refund EUR 19.99?",
    ("approve", "reject"),
    name="review_refund",
    form="fermata",
)
WITH_WORDS = replace(APPROVAL, allowed=("approve", "reject", "edit", "respond"))
CHOICE = Question(
    "choice",
    None,
    "Which plan?",
    ("respond",),
    ("basic", {"value": 2, "label": "Pro", "description": "More of it"}),
    name="pick-plan",
    form="fermata",
)
BOTH = ("approve", "reject")
BATCH = Question(
    "approval",
    {},
    "two",
    BOTH,
    name="interrupt",
    form="hitl",
    actions=(
        Action("mail", {"to": "a"}, BOTH, "Tool: mail\nArgs: {'to': 'a'}"),
        Action("wipe_disk", {"path": "/"}, BOTH),
    ),
)


def tools(*declared: Any) -> tuple[Tool, ...]:
    return parse_create({"model": "m", "input": "hi", "tools": list(declared)}).tools


OPEN_WEBUI = tools(CLOCK, ASK_USER)


def card(*questions: Question) -> Any:
    call = in_dialect(OPEN_WEBUI, [(f"key {n}", one) for n, one in enumerate(questions)])
    return None if call is None else json.loads(call.arguments)


def answered(**answers: Any) -> str:
    return json.dumps({"status": "answered", "answers": answers})


def option(label: str, index: int = 0) -> dict[str, Any]:
    return {"type": "option", "option_index": index, "label": label, "description": "…"}


def read(questions: list[Question], output: str) -> list[Answer] | StillOpen:
    found = read_dialect(questions, output, "input[1].output")
    if isinstance(found, StillOpen):
        return found
    return [read_text(one, text) for one, text in zip(questions, found, strict=True)]


# --- asking -----------------------------------------------------------------------------------


def test_an_approval_is_a_card_with_the_safe_option_first() -> None:
    call = in_dialect(OPEN_WEBUI, [("key", APPROVAL)])
    assert call is not None
    assert (call.name, call.keys) == ("ask_user", ("key",))
    assert json.loads(call.arguments) == {
        "questions": [
            {
                "id": "q1",
                "header": "Review refund",
                "question": "Refund EUR 19.99?\norder: A-1042\namount: 19.99",
                "options": [
                    {"label": "Reject", "description": "Do not do it."},
                    {"label": "Approve", "description": "Do it as it is shown."},
                ],
                "allow_other": False,
            }
        ],
        "allow_other": False,
    }


def test_words_of_one_s_own_are_offered_where_they_are_allowed() -> None:
    found = card(APPROVAL, WITH_WORDS)
    assert [one["allow_other"] for one in found["questions"]] == [False, True]
    assert found["allow_other"] is True


def test_a_choice_shows_its_labels() -> None:
    (shown,) = card(CHOICE)["questions"]
    assert shown["header"] == "Pick plan"
    assert shown["options"] == [
        {"label": "basic", "description": "basic"},
        {"label": "Pro", "description": "More of it"},
    ]


def test_a_batch_is_a_question_for_each_action() -> None:
    first, second, third = card(BATCH, CHOICE)["questions"]
    assert [first["id"], second["id"], third["id"]] == ["q1", "q2", "q3"]
    assert first["question"] == "Tool: mail\nArgs: {'to': 'a'}"
    assert second["question"] == "May wipe_disk run?\npath: /"
    assert second["header"] == "Wipe disk"


@pytest.mark.parametrize(
    "questions",
    [
        [],
        [APPROVAL] * 4,
        [BATCH, BATCH],
        [replace(APPROVAL, payload={"note": "x" * 500})],
        [replace(APPROVAL, question="x" * 501, payload=None)],
        [replace(APPROVAL, question="", payload=None)],
        [replace(APPROVAL, question="  ", payload={})],
        [replace(APPROVAL, allowed=("approve",))],
        [replace(CHOICE, options=("one",))],
        [replace(CHOICE, options=("a", "b", "c", "d"))],
        [replace(CHOICE, options=("a", "x" * 81))],
        [replace(CHOICE, options=("a", {"value": 1, "label": "b", "description": "x" * 241}))],
        [Question("text", None, "Why?", name="why", form="fermata")],
        [Question("value", None, "Why?", schema={}, name="why", form="fermata")],
        [Question.raw("Go on?")],
        [APPROVAL, Question.raw("Go on?")],
    ],
)
def test_what_does_not_fit_goes_out_in_our_own_form(questions: list[Question]) -> None:
    assert card(*questions) is None


def test_the_longest_texts_that_fit() -> None:
    found = card(
        replace(APPROVAL, name="n" * 64, question="x" * 500, payload=None),
        replace(CHOICE, options=("a" * 80, {"value": 1, "label": "b", "description": "x" * 240})),
    )
    assert len(found["questions"][0]["header"]) == 48


@pytest.mark.parametrize(
    "declared",
    [
        (),
        (CLOCK,),
        ({"type": "function", "name": "ask_user"},),
        ({"type": "function", "name": "ask_user", "parameters": {}},),
        (
            {
                "type": "function",
                "name": "ask_user",
                "parameters": {"properties": {"questions": {"type": "string"}}},
            },
        ),
        ({"type": "function", "name": "ask_user", "parameters": {"properties": []}},),
        ({**ASK_USER, "parameters": {**ASK_USER["parameters"], "required": ["channel"]}},),  # type: ignore[dict-item]
        ({**ASK_USER, "name": "ask_users"},),
    ],
)
def test_another_tool_is_no_card(declared: Any) -> None:
    assert in_dialect(tools(*declared), [("key", APPROVAL)]) is None


# --- reading ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "output", "answer"),
    [
        (APPROVAL, answered(q1=option("Approve", 1)), Answer(None, "approve")),
        (APPROVAL, answered(q1=option("Reject")), Answer(None, "reject")),
        # the label is what the person read, wherever it stood
        (APPROVAL, answered(q1=option("Approve", 0)), Answer(None, "approve")),
        (
            WITH_WORDS,
            answered(q1={"type": "other", "text": "Only 10 EUR please"}),
            Answer("Only 10 EUR please", "respond"),
        ),
        (CHOICE, answered(q1=option("Pro")), Answer(2)),
        (CHOICE, answered(q1=option("basic")), Answer("basic")),
        # not the card's form, but an answer all the same
        (APPROVAL, "approve", Answer(None, "approve")),
        (APPROVAL, '{"action": "reject", "note": "x"}', Answer(None, "reject", "x")),
    ],
)
def test_a_card_s_answer(question: Question, output: str, answer: Answer) -> None:
    assert read([question], output) == [answer]


def test_several_questions_of_one_card() -> None:
    output = answered(
        q1=option("Reject"), q2=option("Approve"), q3={"type": "option", "label": "Pro"}
    )
    assert read([BATCH, CHOICE], output) == [
        Answer({"decisions": [{"type": "reject"}, {"type": "approve"}]}, "decide"),
        Answer(2),
    ]


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("Error: tool call rejected by user.", "cancelled"),
        (" Error: tool call rejected by user.\n", "cancelled"),
        ('{"status":"timed_out"}', "timed_out"),
        ('{"status":"timed_out","answers":{}}', "timed_out"),
        (json.dumps({"status": "timed_out", "answers": {"q1": option("Approve")}}), "timed_out"),
        (answered(), "incomplete"),
        (answered(q1=None), "incomplete"),
        (answered(q1={"type": "timed_out"}), "incomplete"),
        (answered(q1={"type": "skipped"}), "incomplete"),
    ],
)
def test_a_card_that_nobody_answered_is_still_open(output: str, reason: str) -> None:
    found = read([APPROVAL], output)
    assert isinstance(found, StillOpen)
    assert found.reason == reason
    assert found.message.endswith("The question is still open. Send any message to see it again.")


def test_half_a_card_answers_nothing() -> None:
    found = read([APPROVAL, CHOICE], answered(q1=option("Approve")))
    assert isinstance(found, StillOpen)
    assert "The questions are still open." in found.message


@pytest.mark.parametrize(
    ("questions", "output"),
    [
        ([APPROVAL], answered(q1=option("approve"))),
        ([APPROVAL], answered(q1=option("Yes"))),
        ([APPROVAL], answered(q1={"type": "option", "option_index": 1})),
        ([APPROVAL], answered(q1={"type": "other", "text": "approve"})),
        ([APPROVAL], answered(q1=option("Approve"), q2=option("Approve"))),
        ([APPROVAL], answered(decision=option("Approve"))),
        ([WITH_WORDS], answered(q1={"type": "other"})),
        ([WITH_WORDS], answered(q1={"type": "other", "text": " "})),
        ([CHOICE], answered(q1=option("Gold"))),
        ([CHOICE], answered(q1={"type": "other", "text": "Gold"})),
        ([CHOICE], answered(q1={"type": "option"})),
        ([APPROVAL], 'Error: Tool "ask_user" not found.'),
        ([APPROVAL], '{"status":"answered"}'),
        ([APPROVAL], '{"status":"answered","answers":["q1"]}'),
        ([APPROVAL], "ok"),
        ([APPROVAL, APPROVAL], "approve"),
        ([APPROVAL, APPROVAL], '{"action": "approve"}'),
    ],
)
def test_what_is_no_answer_of_a_card_is_refused(questions: list[Question], output: str) -> None:
    with pytest.raises(InvalidInterruptAnswer):
        read(questions, output)


# --- a tool of the question's own name --------------------------------------------------------

FIELDS = {
    "order_id": {"type": "string"},
    "amount_cents": {"type": "integer"},
    "currency": {"type": "string"},
    "reason": {"type": "string"},
}
REFUND = replace(
    APPROVAL,
    payload={
        "order_id": "A-1042",
        "amount_cents": 1999,
        "currency": "EUR",
        "reason": "damaged item",
        "internal": True,
    },
)
EXACT = {key: REFUND.payload[key] for key in FIELDS}
OURS = REFUND.told()


def declaring(**parameters: Any) -> tuple[Tool, ...]:
    schema = {"type": "object", **parameters}
    return tools({"type": "function", "name": "review_refund", "parameters": schema})


@pytest.mark.parametrize(
    ("declared", "arguments"),
    [
        # the Agents SDK, strict; Open WebUI and llm: Python functions with these parameters
        (
            declaring(properties=FIELDS, required=list(FIELDS), additionalProperties=False),
            EXACT,
        ),
        (declaring(properties=FIELDS, required=list(FIELDS)), EXACT),
        # the Agents SDK in JavaScript: any fields
        (
            declaring(
                properties={"order_id": {"type": "string"}},
                required=[],
                additionalProperties=True,
            ),
            {"order_id": "A-1042", **OURS},
        ),
        # the Vercel AI SDK: these, and nothing said about others
        (declaring(properties={"order_id": {"type": "string"}}), {"order_id": "A-1042"}),
        (
            declaring(properties={"order_id": {"type": "string"}, "ticket": {"type": "string"}}),
            {"order_id": "A-1042", **OURS},
        ),
        # our own fields may be declared
        (
            declaring(
                properties={"question": {"type": "string"}, "payload": {}},
                additionalProperties=False,
            ),
            {"question": OURS["question"], "payload": OURS["payload"]},
        ),
        (declaring(properties={}), OURS),
        (tools({"type": "function", "name": "review_refund"}), OURS),
        (tools({"type": "function", "name": "another"}), OURS),
        ((), OURS),
        # it cannot be made to fit
        (declaring(properties={"ticket": {"type": "string"}}, required=["ticket"]), OURS),
        (
            declaring(
                properties={"order_id": {"type": "integer"}},
                required=["order_id"],
                additionalProperties=False,
            ),
            OURS,
        ),
        (declaring(properties=5, required=7), OURS),
        (declaring(properties={"internal": {"type": "integer"}}, required=["internal"]), OURS),
    ],
)
def test_a_tool_of_the_question_s_own_name_gets_what_it_declares(
    declared: tuple[Tool, ...], arguments: Any
) -> None:
    assert json.loads(own_arguments(declared, "review_refund", REFUND)) == arguments


def test_a_call_of_langchain_s_offers_its_arguments() -> None:
    declared = tools(
        {"type": "function", "name": "approve", "parameters": {"properties": {"to": {}}}}
    )
    call = replace(BATCH, actions=BATCH.actions[:1])
    assert json.loads(own_arguments(declared, "approve", call)) == {"to": "a"}
