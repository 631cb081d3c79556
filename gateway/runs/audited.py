"""What the audit says of a question, an answer and an ending: pure.

It holds what was asked and decided: the question as people saw it, the proposed action with its
arguments, the decision, and after an edit the arguments before and after it. It holds nothing of
the conversation that led there: no input, no instructions, no output, no credentials.

Each function gives the `details` of one event, as JSON text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gateway.runs.principal import Principal
from gateway.runs.run import AskedQuestion
from gateway.wire.encoding import Json, dumps, loads
from gateway.wire.questions import Action, Question


@dataclass(frozen=True, slots=True)
class Recorded:
    """A row of the audit about an ending. `details` is JSON text; `actor` who wanted it, if that
    was somebody."""

    event: str
    details: str
    actor: str | None = None


def asked(question: Question, name: str, card: str | None = None) -> str:
    """A question that is put to people; `card` is the client's call that puts it."""
    fields: dict[str, Json] = {
        "name": name,
        "question": question.question,
        "action": question.action,
        "tier": question.tier,
        **_proposed(question),
        "expects": question.expects,
        "allowed": list(question.allowed),
        "options": list(question.options),
        "roles": sorted(question.roles),
        "four_eyes": question.four_eyes,
        "expires_at": question.told().get("expires_at"),
        "card": card,
    }
    said = {key: value for key, value in fields.items() if value not in (None, [], False)}
    return dumps(said if question.on_expiry is None else said | {"on_expiry": question.on_expiry})


def answered(question: Question, answer: str, roles: frozenset[str] = frozenset()) -> str:
    """An accepted answer. `answer` is the stored JSON text; `roles` are the reviewer's."""
    value = loads(answer)
    decided = {"decisions": list(_decisions(question, value))} if question.actions else None
    if decided is None and question.form == "fermata":
        decided = _decision(question, value)
    said = {"value": value} if decided is None else decided
    return dumps({**said, "roles": sorted(roles)} if roles else said)


def accepted(
    questions: Sequence[AskedQuestion],
    answers: Mapping[str, str],
    accepts: Sequence[str],
    principal: Principal,
    *,
    again: bool,
) -> dict[str, object]:
    """The parameters of `accept_answers` that say which answers are taken, and its audit: a row for
    each of them, or one that says that they were sent `again` after the run had failed."""
    columns: dict[str, object] = {
        "call_ids": list(accepts),
        "answers": [answers[call_id] for call_id in accepts],
        "from_status": "answered" if again else "pending",
    }
    if again:
        held = dumps({"roles": sorted(principal.roles)} if principal.roles else {})
        return columns | {"event": "retried", "told": [None], "audits": [held]}
    asked_by_id = {one.call_id: one.question for one in questions}
    audits = [answered(asked_by_id[id], answers[id], principal.roles) for id in accepts]
    return columns | {"event": "answered", "told": list(accepts), "audits": audits}


def failure(code: str, message: str) -> str:
    """A run that failed, as its client is told."""
    return dumps({"code": code, "message": message})


def incomplete(reason: str) -> str:
    """A run that completed, its output cut short."""
    return dumps({"incomplete": reason})


def _proposed(question: Question) -> dict[str, Json]:
    """The arguments that are to be approved; of LangChain's middleware, those of each call."""
    if not question.actions:
        return {"payload": question.payload}
    calls = [{"name": one.name, "arguments": one.arguments} for one in question.actions]
    return {"actions": calls}


def _decision(question: Question, value: Mapping[str, Json]) -> dict[str, Json]:
    """An answer to one of our own questions. Who gave it is the row's actor."""
    said: dict[str, Json] = {"decision": value["action"]}
    if value.get("note") is not None:
        said["note"] = value["note"]
    if value["action"] == "edit":
        return {**said, "before": question.payload, "after": value["value"]}
    return said if value.get("value") is None else {**said, "value": value["value"]}


def _decisions(question: Question, value: Json) -> Iterator[dict[str, Json]]:
    """Answers in LangChain's words, an action each."""
    decided: Sequence[Mapping[str, Json]] = (
        [value] if question.form == "hitl_call" else value["decisions"]
    )
    for action, one in zip(question.actions, decided, strict=True):
        yield _langchain(action, one)


def _langchain(action: Action, decided: Mapping[str, Json]) -> dict[str, Json]:
    said: dict[str, Json] = {"name": action.name, "decision": decided["type"]}
    if "message" in decided:
        said["note"] = decided["message"]
    if decided["type"] == "edit":
        edited = decided["edited_action"]
        said |= {"before": action.arguments, "after": edited["args"]}
        if edited["name"] != action.name:
            said["became"] = edited["name"]
    return said
