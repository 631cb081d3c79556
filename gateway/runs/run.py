"""A run's states, and the plan for a request: pure, no I/O.

A run is one LangGraph thread. `TRANSITIONS` is the one table of its life; the CHECK in
`store/sql/migrations/0001_foundation.sql` holds the same names, and the diagram in the docs is
made from it.

`plan` decides what a request does, from the request and from what is known of the run it names.
It follows the table "previous_response_id" of the wire's design row by row; every refusal of that
table is raised here, before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from gateway.errors import (
    InterruptAlreadyAnswered,
    InterruptClosed,
    InterruptExpired,
    InvalidInterruptAnswer,
    InvalidRequest,
    ResponseInProgress,
)
from gateway.runs.principal import Principal
from gateway.runs.review import may_answer
from gateway.wire import answers
from gateway.wire.encoding import dumps
from gateway.wire.history import FunctionCall, FunctionCallOutput, Item, Message, unfolded
from gateway.wire.request import CreateResponse


class RunStatus(StrEnum):
    """Where a run is. `stalled`: it failed after an accepted answer, which may be sent again."""

    RUNNING = "running"
    WAITING = "waiting"
    STALLED = "stalled"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


TRANSITIONS: Mapping[RunStatus, Mapping[RunStatus, str]] = {
    RunStatus.RUNNING: {
        RunStatus.WAITING: "the graph interrupts",
        RunStatus.COMPLETED: "the graph ends",
        RunStatus.STALLED: "a node raises after an answer",
        RunStatus.FAILED: "it cannot go on",
        RunStatus.CANCELLED: "it is cancelled",
    },
    RunStatus.WAITING: {
        RunStatus.RUNNING: "every question is answered",
        RunStatus.EXPIRED: "its TTL is over",
        RunStatus.CANCELLED: "it is withdrawn",
    },
    RunStatus.STALLED: {
        RunStatus.RUNNING: "the same answers are sent again",
        RunStatus.EXPIRED: "its TTL is over",
        RunStatus.CANCELLED: "it is withdrawn",
    },
    RunStatus.COMPLETED: {},
    RunStatus.FAILED: {},
    RunStatus.CANCELLED: {},
    RunStatus.EXPIRED: {},
}


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question as it stands in the database. `answer` is the accepted value as JSON text."""

    call_id: str
    interrupt_id: str
    question: answers.Question
    status: str
    answer: str | None = None
    answered_by: str | None = None
    reviewer: str | None = None
    answered_at: datetime | None = None
    card: str | None = None

    @property
    def told_as(self) -> str:
        """The call id that the client knows: the card's, if a card asks it."""
        return self.card or self.call_id


@dataclass(frozen=True, slots=True)
class KnownRun:
    """The run behind a response that asked something.

    `expired` is judged by the database's clock; `settings` is JSON text."""

    id: str
    requester: str
    status: RunStatus
    response_id: str
    settings: str
    expires_at: datetime | None
    expired: bool


@dataclass(frozen=True, slots=True)
class Previous:
    """What is known of the response that a request continues or answers."""

    response_id: str
    model: str
    status: str
    run: KnownRun | None = None
    questions: tuple[AskedQuestion, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """A new run, whose context is the history that ends in `previous_id`, and the input."""

    previous_id: str | None


@dataclass(frozen=True, slots=True)
class Resume:
    """Every question of the batch is answered. `answers` maps call ids to what the graph is resumed
    with, as JSON text; `accepts` are those of them that this request brings.

    `again`: the run failed after these answers; they are on record already.
    """

    answers: Mapping[str, str]
    accepts: tuple[str, ...]
    again: bool


@dataclass(frozen=True, slots=True)
class Repeat:
    """The same answers were accepted before: `response_id` carries what came of them."""

    response_id: str


Plan: TypeAlias = Start | Resume | Repeat
Placed: TypeAlias = tuple[int, FunctionCallOutput]
"""An output and where it stands in the input."""


def plan(request: CreateResponse, previous: Previous | None, principal: Principal) -> Plan:
    """What this request of `principal` does.

    Raises the refusals of the wire's table: `InvalidRequest` and its kinds, `ReviewerNotAllowed`,
    `ResponseInProgress`.
    """
    if previous is None:
        return Start(None)
    if request.model != previous.model:
        raise InvalidRequest(
            f"Response '{previous.response_id}' belongs to the model '{previous.model}'.",
            param="model",
        )
    if previous.run is not None and previous.questions:
        return _plan_answer(request, previous, previous.run, principal)
    if previous.status in ("queued", "in_progress"):
        raise ResponseInProgress(
            f"Response '{previous.response_id}' is still in progress.", param="previous_response_id"
        )
    return Start(previous.response_id)


def answer_call_ids(request: CreateResponse) -> tuple[str, ...]:
    """The call ids whose outputs may be answers, in order of the input.

    With `previous_response_id` or `conversation` every output counts. Without, only those at the
    end of the input: what stands before the last message is history.
    """
    items: Sequence[Item] = request.input
    if not request.continues:
        items = _after_last_message(items)
    return tuple(item.call_id for item in items if isinstance(item, FunctionCallOutput))


def _after_last_message(items: Sequence[Item]) -> Sequence[Item]:
    for index in range(len(items) - 1, -1, -1):
        if isinstance(items[index], Message):
            return items[index + 1 :]
    return items


def _plan_answer(
    request: CreateResponse, previous: Previous, run: KnownRun, principal: Principal
) -> Resume | Repeat:
    """Questions may be answered one by one elsewhere (`runs.reviewing`): only what is still open
    must be answered here, and what was answered must be the same."""
    refuse_closed(previous.questions, run)
    outputs = _outputs(request, previous)
    answered = [question for question in previous.questions if question.status == "answered"]
    pending = [question for question in previous.questions if question.status == "pending"]
    if not outputs and len(pending) == 1:
        outputs = _text_answer(request, pending[0])
    if answered and not pending and not outputs:
        raise already_answered(answered[0], run, "; continue from the response that followed")
    _refuse_missing(pending, outputs)
    for question in previous.questions:
        if question.call_id in outputs:
            with about(question):
                _require_reviewer(question, run, principal)
    for question in answered:
        if question.call_id in outputs:
            with about(question):
                _require_same(question, outputs[question.call_id], run, principal)
    values = {question.call_id: str(question.answer) for question in answered}
    for question in pending:
        with about(question):
            values[question.call_id] = _value(question, outputs[question.call_id], principal)
    if pending:
        return Resume(values, tuple(question.call_id for question in pending), again=False)
    if _to_be_sent_again(answered[0], run):
        return Resume(values, tuple(values), again=True)
    return Repeat(str(answered[0].answered_by))


@contextmanager
def about(question: AskedQuestion) -> Iterator[None]:
    """What the block refuses is about an answer to this question; the audit names it."""
    try:
        yield
    except InvalidRequest as refusal:
        refusal.call_id = question.call_id
        raise


def _text_answer(request: CreateResponse, question: AskedQuestion) -> dict[str, Placed]:
    """A plain text answers the one open question if that asks for text, or for a choice that the
    text names. It never approves anything."""
    last = request.input[-1] if request.input else None
    if not isinstance(last, Message) or last.role != "user":
        return {}
    if question.question.expects not in ("text", "choice"):
        return {}
    output = FunctionCallOutput(question.call_id, last.text, {})
    try:
        answers.read(question.question, output, "input")
    except InvalidInterruptAnswer:
        return {}
    return {question.call_id: (len(request.input) - 1, output)}


def _require_reviewer(question: AskedQuestion, run: KnownRun, principal: Principal) -> None:
    may_answer(
        roles=question.question.roles,
        four_eyes=question.question.four_eyes,
        requester=run.requester,
        principal=principal,
    )


def _require_same(
    question: AskedQuestion, output: Placed, run: KnownRun, principal: Principal
) -> None:
    """An accepted answer stands; only its repeat by the same person passes."""
    stands = already_answered(question, run, "; that answer stands")
    try:
        value = _value(question, output, principal)
    except InvalidInterruptAnswer:
        raise stands from None
    if question.answer != value or question.reviewer != principal.subject:
        raise stands


def refuse_closed(questions: Sequence[AskedQuestion], run: KnownRun) -> None:
    """Raises `InterruptClosed` or `InterruptExpired` if one of them takes no answer any more."""
    when = _at(run.expires_at)
    for question in questions:
        with about(question):
            _refuse_closed(question, run, when)


def _refuse_closed(question: AskedQuestion, run: KnownRun, when: str) -> None:
    if question.status == "answered" and not _to_be_sent_again(question, run):
        return  # what came of it stays on record, whatever became of the run
    if question.status == "cancelled":
        raise InterruptClosed(f"The question {question.call_id} was withdrawn.", param="input")
    if question.status == "expired" or run.status is RunStatus.EXPIRED:
        raise InterruptExpired(f"The question {question.call_id} has expired.", param="input")
    if run.expired and run.status in (RunStatus.WAITING, RunStatus.STALLED):
        raise InterruptExpired(f"The question {question.call_id} expired{when}.", param="input")


def _to_be_sent_again(question: AskedQuestion, run: KnownRun) -> bool:
    """Whether the run failed after this answer, and not after a later one."""
    return run.status is RunStatus.STALLED and question.answered_by == run.response_id


def _outputs(request: CreateResponse, previous: Previous) -> dict[str, Placed]:
    """The outputs that answer this batch, by call id, with their place in the input."""
    asked = {question.call_id for question in previous.questions}
    echoed = {item.call_id for item in unfolded(request.input) if isinstance(item, FunctionCall)}
    found: dict[str, Placed] = {}
    for index, item in enumerate(request.input):
        if not isinstance(item, FunctionCallOutput):
            continue
        if item.call_id not in asked:
            if item.call_id in echoed:
                continue  # an answered pair of the history
            raise InvalidRequest(
                f"No tool call found for function call output with call_id {item.call_id}.",
                param="input",
            )
        found[item.call_id] = (index, item)
    if found:
        _refuse_new_messages(request, asked, max(index for index, _ in found.values()))
    return found


def _refuse_new_messages(request: CreateResponse, asked: set[str], last_output: int) -> None:
    """A resumed graph takes answers and nothing else: to drop what somebody says would be a lie.

    History is what stands before the echoed call; if the context is the client's own, before the
    outputs.
    """
    history_end = last_output
    if request.continues:
        history_end = _last_echo(request, asked)
    for index, item in enumerate(request.input):
        said = isinstance(item, Message) and item.role in ("user", "assistant")
        if said and index > history_end:
            raise InvalidRequest(
                "A run that waits takes answers only; send the message when it is done.",
                param=f"input[{index}]",
            )


def _last_echo(request: CreateResponse, asked: set[str]) -> int:
    echoes = [
        index
        for index, item in enumerate(request.input)
        if isinstance(item, FunctionCall) and item.call_id in asked
    ]
    return max(echoes, default=-1)


def _refuse_missing(pending: Sequence[AskedQuestion], outputs: Mapping[str, Placed]) -> None:
    for question in pending:
        if question.call_id not in outputs:
            raise InvalidRequest(
                f"No tool output found for function call {question.call_id}.", param="input"
            )


def _value(question: AskedQuestion, output: Placed, principal: Principal) -> str:
    """What the graph is resumed with, as JSON text. Raises `InvalidInterruptAnswer`."""
    index, item = output
    answer = answers.read(question.question, item, param=f"input[{index}].output")
    return dumps(answer.resume_value(question.question, principal.subject))


def already_answered(question: AskedQuestion, run: KnownRun, rest: str) -> InterruptAlreadyAnswered:
    """The refusal, for the caller to raise: who answered when, without a name; `rest` ends it."""
    who = "the requester" if question.reviewer == run.requester else "another reviewer"
    when = _at(question.answered_at)
    return InterruptAlreadyAnswered(
        f"The question {question.call_id} was answered{when} by {who}{rest}.", param="input"
    )


def _at(moment: datetime | None) -> str:
    return "" if moment is None else f" at {moment:%Y-%m-%dT%H:%M:%SZ}"
