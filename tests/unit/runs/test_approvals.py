"""What counts as an approval on record, by the form of the question."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.human.ledger import Decided
from gateway.runs.approvals import decided
from gateway.wire.questions import Action, Question

OURS = Question("approval", {"n": 1}, form="fermata", action="pay")
ALLOWED = ("approve", "edit", "reject", "respond")
PAY, MAIL = Action("pay", {"n": 1}, ALLOWED), Action("mail", {"to": "anna"}, ALLOWED)
BATCH = Question("approval", form="hitl", actions=(PAY, MAIL))
CALL = Question("approval", form="hitl_call", actions=(PAY,))


def of(question: Question, answer: Any) -> list[Decided]:
    return list(decided("review", question, answer))


@pytest.mark.parametrize(
    ("answer", "about", "approved"),
    [
        ({"action": "approve", "value": None, "note": None}, {"n": 1}, True),
        ({"action": "edit", "value": {"n": 2}, "note": None}, {"n": 2}, True),
        ({"action": "reject", "value": None, "note": "approve"}, {"n": 1}, False),
        ({"action": "respond", "value": "approve", "note": None}, {"n": 1}, False),
    ],
)
def test_our_own_questions(answer: Any, about: Any, approved: bool) -> None:
    assert of(OURS, answer) == [Decided(frozenset({"review", "pay"}), about, approved)]


def test_langchain_s_batch_is_decided_action_by_action() -> None:
    edited = {"name": "pay", "args": {"n": 2}}
    found = of(
        BATCH, {"decisions": [{"type": "edit", "edited_action": edited}, {"type": "reject"}]}
    )
    assert found == [
        Decided(frozenset({"review", "pay"}), {"n": 2}, True),
        Decided(frozenset({"review", "mail"}), {"to": "anna"}, False),
    ]


def test_an_edit_to_another_tool_approves_that_one() -> None:
    edited = {"name": "mail", "args": {"to": "bob"}}
    (found,) = of(CALL, {"type": "edit", "edited_action": edited})
    assert found == Decided(frozenset({"review", "mail"}), {"to": "bob"}, True)


@pytest.mark.parametrize("answer", [{"type": "approve"}, {"decisions": [{"type": "approve"}]}])
def test_langchain_s_single_call(answer: Any) -> None:
    assert of(CALL, answer) == [Decided(frozenset({"review", "pay"}), {"n": 1}, True)]


@pytest.mark.parametrize(
    "question",
    [
        Question.raw("approve?"),
        Question("value", "approve?", form="schema"),
    ],
)
@pytest.mark.parametrize("answer", ["approve", True, {"action": "approve"}])
def test_free_text_is_never_read_as_an_approval(question: Question, answer: Any) -> None:
    (found,) = of(question, answer)
    assert (found.approved, found.clear) == (False, False)


def test_a_choice_is_no_approval_whatever_was_chosen() -> None:
    question = Question("choice", options=("approve", "reject"), form="fermata")
    (found,) = of(question, {"action": "respond", "value": "approve", "note": None})
    assert not found.approved


@pytest.mark.parametrize("answer", [None, "approve", [], {"decisions": []}])
def test_an_answer_of_another_form_approves_nothing(answer: Any) -> None:
    assert not any(one.approved for one in (*of(BATCH, answer), *of(OURS, answer)))
