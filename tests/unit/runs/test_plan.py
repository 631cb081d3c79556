"""The table "previous_response_id" of the wire's design, row by row, on hand-made runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.errors import (
    FermataError,
    InterruptAlreadyAnswered,
    InterruptClosed,
    InterruptExpired,
    InvalidInterruptAnswer,
    InvalidRequest,
    ResponseInProgress,
)
from gateway.runs.principal import Principal
from gateway.runs.run import (
    AskedQuestion,
    KnownRun,
    Previous,
    Repeat,
    Resume,
    RunStatus,
    Start,
    answer_call_ids,
    plan,
)
from gateway.wire.answers import Question
from gateway.wire.encoding import dumps
from gateway.wire.request import CreateResponse, parse_create

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
ANYBODY = "anna"
IMAGE = {"type": "input_image", "image_url": "https://example.com/a.png"}


def request(*items: Any, previous: str | None = "resp_1", model: str = "m") -> CreateResponse:
    body = {"model": model, "input": list(items), "previous_response_id": previous}
    return parse_create(body)


def output(call_id: str, value: Any = "yes") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def call(call_id: str, arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "ask", "arguments": arguments}


def text(said: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": said}


def pending(call_id: str) -> AskedQuestion:
    return AskedQuestion(call_id, f"interrupt of {call_id}", Question.raw("Go on?"), "pending")


def answered(
    call_id: str, value: Any = "yes", by: str = "resp_2", reviewer: str = ANYBODY
) -> AskedQuestion:
    return AskedQuestion(
        call_id,
        f"interrupt of {call_id}",
        Question.raw("Go on?"),
        "answered",
        answer=dumps(value),
        answered_by=by,
        reviewer=reviewer,
        answered_at=NOON,
    )


def closed(call_id: str, status: str) -> AskedQuestion:
    return AskedQuestion(call_id, "interrupt", Question.raw("Go on?"), status)


def asking(
    *questions: AskedQuestion,
    status: RunStatus = RunStatus.WAITING,
    expired: bool = False,
    moved_by: str = "resp_1",
) -> Previous:
    """What is known of `resp_1`, which asked `questions`; its run was started by `ANYBODY`."""
    waits = status in (RunStatus.WAITING, RunStatus.STALLED)
    run = KnownRun("run_1", ANYBODY, status, moved_by, "{}", NOON if waits else None, expired)
    return Previous("resp_1", "m", "completed", run, tuple(questions))


def refusal(wanted: CreateResponse, previous: Previous, subject: str = ANYBODY) -> FermataError:
    with pytest.raises(FermataError) as caught:
        plan(wanted, previous, Principal("t", subject))
    assert len(caught.value.message.splitlines()) == 1
    return caught.value


# --- no question is open ---------------------------------------------------------------------


def test_nothing_known_starts_a_run() -> None:
    assert plan(request(text("hi"), previous=None), None, Principal("t", ANYBODY)) == Start(None)


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed", "cancelled"])
def test_an_ended_response_is_the_context_of_a_new_run(status: str) -> None:
    previous = Previous("resp_1", "m", status)
    assert plan(request(text("go on")), previous, Principal("t", ANYBODY)) == Start("resp_1")


@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_a_response_in_progress_is_a_409(status: str) -> None:
    error = refusal(request(text("hi")), Previous("resp_1", "m", status))
    assert isinstance(error, ResponseInProgress)
    assert (error.status, error.error_code) == (409, "response_in_progress")
    assert error.retry_after is not None
    assert "resp_1" in error.message


@pytest.mark.parametrize(
    "previous", [Previous("resp_1", "m", "completed"), asking(pending("call_a"))]
)
def test_another_model_cannot_continue_it(previous: Previous) -> None:
    error = refusal(request(output("call_a"), model="other"), previous)
    assert (error.status, error.param) == (400, "model")


# --- it waits --------------------------------------------------------------------------------


def test_an_output_for_every_pending_call_resumes() -> None:
    step = plan(
        request(output("call_a", '{"n": 1}')), asking(pending("call_a")), Principal("t", ANYBODY)
    )
    assert step == Resume({"call_a": '{"n":1}'}, ("call_a",), again=False)


@pytest.mark.parametrize("order", [("call_a", "call_b", "call_c"), ("call_c", "call_b", "call_a")])
def test_outputs_are_bound_by_call_id_in_any_order(order: Sequence[str]) -> None:
    batch = asking(pending("call_a"), pending("call_b"), pending("call_c"))
    step = plan(
        request(*(output(one, one.upper()) for one in order)), batch, Principal("t", ANYBODY)
    )
    assert isinstance(step, Resume)
    assert step.answers == {
        "call_a": '"CALL_A"',
        "call_b": '"CALL_B"',
        "call_c": '"CALL_C"',
    }


def test_a_person_who_is_not_the_requester_may_answer() -> None:
    step = plan(
        request(output("call_a")), asking(pending("call_a")), Principal("t", "somebody else")
    )
    assert isinstance(step, Resume)


@pytest.mark.parametrize(
    "said",
    [
        [text("please hurry")],
        [text("yes")],
        [text("approve")],
        [],
        [text("a"), text("b", "assistant"), text("c", "developer")],
    ],
)
def test_C01_text_is_never_an_answer(said: list[dict[str, Any]]) -> None:
    error = refusal(request(*said), asking(pending("call_a")))
    assert type(error) is InvalidRequest
    assert error.message == "No tool output found for function call call_a."
    assert (error.status, error.param) == (400, "input")


def test_C06_a_missing_output_is_named() -> None:
    batch = asking(pending("call_a"), pending("call_b"), pending("call_c"))
    error = refusal(request(output("call_c"), output("call_a")), batch)
    assert error.message == "No tool output found for function call call_b."
    assert error.param == "input"


def test_an_unknown_call_is_named() -> None:
    error = refusal(request(output("call_x")), asking(pending("call_a")))
    assert error.message == "No tool call found for function call output with call_id call_x."
    assert (error.status, error.param) == (400, "input")


def test_C08_the_call_of_another_run_is_unknown_here() -> None:
    error = refusal(request(output("call_a"), output("call_of_b")), asking(pending("call_a")))
    assert "call_of_b" in error.message
    assert error.param == "input"


def test_an_answer_that_breaks_the_contract_names_its_place() -> None:
    batch = asking(pending("call_a"), pending("call_b"))
    error = refusal(request(output("call_a"), output("call_b", [IMAGE])), batch)
    assert isinstance(error, InvalidInterruptAnswer)
    assert error.error_code == "invalid_interrupt_answer"
    assert error.param == "input[1].output[0]"


def test_a_message_after_the_answer_would_be_lost_and_is_refused() -> None:
    error = refusal(request(output("call_a"), text("and hurry")), asking(pending("call_a")))
    assert (error.status, error.param) == (400, "input[1]")


def test_the_history_may_be_sent_along() -> None:
    history = [
        text("refund"),
        call("call_old"),
        output("call_old", "Error: unknown tool"),
        text("I see", "assistant"),
        call("call_a", '{"rewritten": true}'),
        output("call_a", "no"),
    ]
    step = plan(request(*history), asking(pending("call_a")), Principal("t", ANYBODY))
    assert step == Resume({"call_a": '"no"'}, ("call_a",), again=False)


# --- it was answered -------------------------------------------------------------------------


@pytest.mark.parametrize("status", [RunStatus.RUNNING, RunStatus.WAITING, RunStatus.COMPLETED])
def test_C02_the_same_outputs_again_are_a_repeat(status: RunStatus) -> None:
    known = asking(answered("call_a"), status=status, moved_by="resp_2")
    assert plan(request(output("call_a", "yes")), known, Principal("t", ANYBODY)) == Repeat(
        "resp_2"
    )


@pytest.mark.parametrize(
    "again",
    ['{"b":[1,2],"a":1}', '{ "b": [1, 2], "a": 1 }', [{"type": "input_text", "text": "{}"}]],
)
def test_the_same_value_in_another_spelling_is_a_repeat(again: Any) -> None:
    value = {} if isinstance(again, list) else {"b": [1, 2], "a": 1}
    known = asking(answered("call_a", value), status=RunStatus.COMPLETED)
    assert plan(request(output("call_a", again)), known, Principal("t", ANYBODY)) == Repeat(
        "resp_2"
    )


def test_C02_another_output_is_told_when_and_by_whom() -> None:
    known = asking(answered("call_a", "yes"), status=RunStatus.COMPLETED)
    error = refusal(request(output("call_a", "no")), known)
    assert isinstance(error, InterruptAlreadyAnswered)
    assert (error.status, error.error_code) == (400, "interrupt_already_answered")
    assert error.param == "input"
    assert "call_a" in error.message
    assert "2026-12-01T12:00:00Z" in error.message
    assert "the requester" in error.message
    assert ANYBODY not in error.message
    assert error.retry_after is None


def test_the_same_outputs_of_somebody_else_are_no_repeat() -> None:
    known = asking(answered("call_a", "yes", reviewer="berta"), status=RunStatus.COMPLETED)
    error = refusal(request(output("call_a", "yes")), known)
    assert isinstance(error, InterruptAlreadyAnswered)
    assert "another reviewer" in error.message
    assert "berta" not in error.message


def test_a_repeat_may_bring_its_own_half_of_what_several_people_answered() -> None:
    known = asking(answered("call_a"), answered("call_b"), status=RunStatus.RUNNING)
    wanted = request(output("call_a", "yes"))
    assert plan(wanted, known, Principal("t", ANYBODY)) == Repeat("resp_2")


def test_only_what_no_reviewer_answered_yet_is_needed() -> None:
    known = asking(answered("call_a", reviewer="rita"), pending("call_b"))
    step = plan(request(output("call_b", "no")), known, Principal("t", ANYBODY))
    assert step == Resume({"call_a": '"yes"', "call_b": '"no"'}, ("call_b",), again=False)


def test_one_of_two_outputs_differs() -> None:
    known = asking(answered("call_a"), answered("call_b"), status=RunStatus.COMPLETED)
    error = refusal(request(output("call_a"), output("call_b", "no")), known)
    assert isinstance(error, InterruptAlreadyAnswered)
    assert "call_b" in error.message


def test_a_message_to_an_answered_response_is_pointed_to_the_next() -> None:
    error = refusal(request(text("hi")), asking(answered("call_a"), status=RunStatus.COMPLETED))
    assert isinstance(error, InterruptAlreadyAnswered)
    assert "the response that followed" in error.message


def test_C03_an_old_answer_never_meets_the_second_question() -> None:
    first = asking(answered("call_1", "yes", by="resp_2"), moved_by="resp_2")
    assert plan(request(output("call_1", "yes")), first, Principal("t", ANYBODY)) == Repeat(
        "resp_2"
    )
    run = KnownRun("run_1", ANYBODY, RunStatus.WAITING, "resp_2", "{}", NOON, False)
    second = Previous("resp_2", "m", "completed", run, (pending("call_2"),))
    error = refusal(request(output("call_1", "yes"), previous="resp_2"), second)
    assert error.message == "No tool call found for function call output with call_id call_1."


# --- it failed after an answer ---------------------------------------------------------------


def test_C12_the_same_answer_after_a_failure_tries_again() -> None:
    known = asking(answered("call_a"), status=RunStatus.STALLED, moved_by="resp_2")
    step = plan(request(output("call_a", "yes")), known, Principal("t", ANYBODY))
    assert step == Resume({"call_a": '"yes"'}, ("call_a",), again=True)


def test_C12_another_answer_after_a_failure_is_refused() -> None:
    known = asking(answered("call_a"), status=RunStatus.STALLED, moved_by="resp_2")
    assert isinstance(refusal(request(output("call_a", "no")), known), InterruptAlreadyAnswered)


@pytest.mark.parametrize(
    ("status", "expired"),
    [
        (RunStatus.STALLED, False),
        (RunStatus.STALLED, True),
        (RunStatus.WAITING, True),
        (RunStatus.EXPIRED, False),
    ],
)
@pytest.mark.parametrize("moved_by", ["resp_2", "resp_3"])
def test_an_answer_that_was_followed_is_repeated_whatever_became_of_the_run(
    status: RunStatus, expired: bool, moved_by: str
) -> None:
    """It asked again, waited too long or failed after a later answer: none of it undoes this."""
    if status is RunStatus.STALLED:
        moved_by = "resp_3"  # else it is the answer that may be sent again
    known = asking(answered("call_a"), status=status, expired=expired, moved_by=moved_by)
    step = plan(request(output("call_a", "yes")), known, Principal("t", ANYBODY))
    assert step == Repeat("resp_2")


# --- it is over ------------------------------------------------------------------------------

OVER: list[tuple[str, Previous, type[FermataError]]] = [
    ("not swept yet", asking(pending("call_a"), expired=True), InterruptExpired),
    (
        "stalled",
        asking(answered("call_a"), status=RunStatus.STALLED, expired=True, moved_by="resp_2"),
        InterruptExpired,
    ),
    ("swept", asking(closed("call_a", "expired"), status=RunStatus.EXPIRED), InterruptExpired),
    (
        "withdrawn",
        asking(closed("call_a", "cancelled"), status=RunStatus.CANCELLED),
        InterruptClosed,
    ),
]


@pytest.mark.parametrize("said", [[output("call_a")], [text("hi")], [output("call_x")]])
@pytest.mark.parametrize(("name", "known", "kind"), OVER, ids=[name for name, _, _ in OVER])
def test_what_is_over_is_a_410_whatever_is_said(
    name: str, known: Previous, kind: type[FermataError], said: list[dict[str, Any]]
) -> None:
    error = refusal(request(*said), known)
    assert type(error) is kind
    assert error.status == 410
    assert error.retry_after is None
    assert "call_a" in error.message


def test_an_expired_wait_says_since_when() -> None:
    error = refusal(request(output("call_a")), asking(pending("call_a"), expired=True))
    assert "2026-12-01T12:00:00Z" in error.message
    assert error.error_code == "interrupt_expired"


# --- which outputs may be answers ------------------------------------------------------------

INPUTS: list[tuple[str, list[dict[str, Any]], tuple[str, ...]]] = [
    ("nothing", [], ()),
    ("text", [text("hi")], ()),
    ("one output", [output("a")], ("a",)),
    ("a batch", [output("b"), output("a")], ("b", "a")),
    ("the whole history", [text("hi"), call("a"), output("a")], ("a",)),
    ("an answered pair in the middle", [text("x"), call("a"), output("a"), text("y")], ()),
    (
        "an answered pair and an answer",
        [call("a"), output("a"), text("so", "assistant"), call("b"), output("b")],
        ("b",),
    ),
]


@pytest.mark.parametrize(("name", "items", "ids"), INPUTS, ids=[name for name, _, _ in INPUTS])
def test_without_previous_response_id_the_end_of_the_input_answers(
    name: str, items: list[dict[str, Any]], ids: tuple[str, ...]
) -> None:
    assert answer_call_ids(request(*items, previous=None)) == ids


def test_with_previous_response_id_every_output_counts() -> None:
    wanted = request(call("a"), output("a"), text("x"), output("b"))
    assert answer_call_ids(wanted) == ("a", "b")
