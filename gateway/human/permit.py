"""Asking for leave: what a policy decides about an action, with a person's answer where it asks.

`permit` is the one way from a policy to a person: hand-written nodes call it, and so does a guarded
tool. So the same policy puts the same question, whoever wrote the step.

    permit_ = permit(policy, "reset_password", {"user": "user-123"}, editable=Reset)
    if not permit_:
        return {"messages": [AIMessage(permit_.refusal)]}
    accounts.reset(**permit_.arguments)

A node runs again from its start when it resumes, so the policy is judged again with the answer in
hand: what it denies by then stays undone, whatever the reviewer said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from pydantic import BaseModel

from gateway.human.ask import Answer, ask_approval
from gateway.human.policy import Policy
from gateway.human.rules import Arguments, Decision
from gateway.wire.encoding import Json, dumps, to_jsonable

Editable: TypeAlias = type[BaseModel] | Mapping[str, Json] | None
"""What edited arguments must fit: a model, or a JSON Schema."""

Reader: TypeAlias = Callable[[Mapping[str, Json]], Arguments]


@dataclass(frozen=True, slots=True)
class Permit:
    """Whether an action may run, and with which arguments; true if it may.

    `arguments` are the reviewed ones: after an edit those that the reviewer wrote, read. `edit` is
    what they wrote, None if they changed nothing. `note` and `reviewer` are the last answer's,
    `answered` its action (None if nobody was asked), `decision` the policy's last.
    """

    granted: bool
    action: str
    arguments: Arguments
    decision: Decision
    answered: str | None = None
    note: str = ""
    reviewer: str | None = None
    edit: Mapping[str, Json] | None = None

    def __bool__(self) -> bool:
        return self.granted

    @property
    def refusal(self) -> str:
        """Why it may not run, for the model or the user to read."""
        if self.decision.verdict == "deny":
            what = "This call" if self.edit is None else "What the reviewer made of this call"
            return _sentence(f"{what} of {self.action} is denied by policy", self.decision.reason)
        if self.answered is None:
            return f"{self.action} needs a person's approval, which cannot be asked for here."
        if self.answered == "respond":
            return _sentence(f"The reviewer did not approve {self.action}, but said", self.note)
        return _sentence(f"The reviewer rejected this call of {self.action}", self.note)


def permit(
    policy: Policy,
    action: str,
    arguments: Arguments,
    *,
    editable: Editable = None,
    read: Reader | None = None,
    may_ask: bool = True,
) -> Permit:
    """The policy's leave for the action; where it asks, this interrupts until a person answers.

    `editable` is what edited arguments must fit, unless the policy names a model; without either,
    edits are not offered. `read` makes of an edit the arguments that are judged (default: the
    model's fields); a ValueError of it puts the question again. `may_ask` False refuses what a
    person would have to be asked about.

    An edit is judged like the first arguments. Whoever made it has approved it if the policy asks
    for the same approval again; for any other a person is asked anew.
    """
    now = Permit(False, action, arguments, policy.judge(action, arguments))
    problem = ""
    while may_ask and now.decision.verdict == "ask":
        asked, fits = now.decision, _editable(now.decision, editable)
        answer = _ask(now, fits, problem)
        now = replace(now, answered=answer.action, note=_words(answer), reviewer=answer.reviewer)
        if not answer.edited:
            return replace(now, granted=answer.approved)
        try:
            edited = _read(answer.value, fits, read)
        except ValueError as error:
            problem = f"The last edit was not valid: {error}"
            continue
        judged = policy.judge(action, edited)
        now = replace(now, arguments=edited, edit=answer.value, decision=judged)
        if judged == asked:
            return replace(now, granted=True)
        problem = "A reviewer edited the arguments; as they are now, they need another approval."
    return replace(now, granted=now.decision.verdict == "allow")


def _ask(now: Permit, fits: Editable, problem: str) -> Answer:
    decision = now.decision
    arguments = to_jsonable(now.arguments, "arguments")
    text = _text(decision.question, now.action, arguments)
    return ask_approval(
        _call_name(now.action),
        question="\n".join(part for part in (text, problem, decision.note) if part),
        payload=arguments,
        editable=_schema(fits),
        respond=True,
        roles=decision.roles,
        four_eyes=decision.four_eyes,
        expires_in=decision.expires_in,
        on_expiry=decision.on_expiry,
        action=now.action,
        tier=decision.tier,
    )


def _text(template: str | None, action: str, arguments: Mapping[str, Json]) -> str:
    """The author's question with the arguments in it, or ours."""
    if template is None:
        return f"May {action} run with these arguments?"
    try:
        return template.format_map(arguments)
    except (LookupError, ValueError, AttributeError, TypeError):
        return template  # it names an argument that was not given; the payload shows those that are


def _call_name(action: str) -> str:
    """A name that a function call may have: 64 of a-z, A-Z, 0-9, _ and - at most."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", f"approve_{action}")[:64]


def _editable(decision: Decision, editable: Editable) -> Editable:
    if isinstance(decision.editable, bool):
        return editable if decision.editable else None
    return decision.editable


def _schema(fits: Editable) -> Mapping[str, Json] | None:
    return fits.model_json_schema() if isinstance(fits, type) else fits


def _read(edit: Mapping[str, Json], fits: Editable, read: Reader | None) -> Arguments:
    """The edit as arguments. It fits the schema; the model's own validators are asked here."""
    fields = dict(edit)
    if isinstance(fits, type):
        fields = fits.model_validate_json(dumps(edit)).model_dump()
    return fields if read is None else read(edit)


def _words(answer: Answer) -> str:
    """What the reviewer said to it: the note, or the text instead of a decision."""
    return str(answer.value) if answer.action == "respond" else answer.note or ""


def _sentence(text: str, reason: str) -> str:
    return f"{text}: {reason}" if reason else f"{text}."
