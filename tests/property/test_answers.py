"""Nothing outside the listed words and forms is ever an approval."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import InvalidInterruptAnswer
from gateway.wire.answers import Answer, Question, read_text
from gateway.wire.questions import Action

ALLOWED = ("approve", "reject", "edit", "respond")
ASKED = Question("approval", name="pay", allowed=ALLOWED, form="fermata")
BATCH = Question(
    "approval", form="hitl", allowed=ALLOWED, actions=(Action("pay", {"amount": 1}, ALLOWED),)
)
CALL = replace(BATCH, form="hitl_call")

YES = ["approve", "approved", "yes", "y"]
NO = ["reject", "rejected", "no", "n", "deny"]

words = st.sampled_from([*YES, *NO, *ALLOWED, "ok", "apply", "sure", "true", "1"])
near_words = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", " ", "\n", "!", '"', "\u200b", "un", "not "]),
    words | words.map(str.upper) | words.map(str.title),
    st.sampled_from(["", " ", ".", '"', "\0", "d", " please", "\ud800"]),
)
scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | words
fields = st.sampled_from(
    ["action", "type", "value", "note", "message", "decisions", "edited_action", "decision", "x"]
)
objects = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(fields, inner, max_size=4),
    max_leaves=8,
)
outputs = st.text() | near_words | objects.map(json.dumps)


def is_listed(text: str) -> bool:
    """The specification's list of approvals, written down once more."""
    if text.strip().casefold() in YES:
        return True
    try:
        value = json.loads(text)
    except ValueError:
        return False
    if isinstance(value, dict) and isinstance(value.get("decisions"), list):
        rest = [one for key, one in value.items() if key != "decisions"]
        return (
            all(one is None for one in rest)
            and len(value["decisions"]) == 1
            and _approves(value["decisions"][0])
        )
    return _approves(value)


def _approves(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    said = {key: one for key, one in value.items() if one is not None}
    if "action" in value:
        action, note = said.pop("action", None), said.pop("note", "")
        return _is_approve(action) and isinstance(note, str) and not said
    return _is_approve(said.pop("type", None)) and not said


def _is_approve(action: Any) -> bool:
    return isinstance(action, str) and action.strip().casefold() == "approve"


def read(question: Question, text: str) -> Answer | None:
    try:
        return read_text(question, text)
    except InvalidInterruptAnswer:
        return None


@given(outputs)
@example('{"action": "approve", "note": null}')
@example('{"decisions": [{"type": "approve"}]}')
@example('"approve"')
@example(" YES\n")
def test_only_what_is_listed_approves(text: str) -> None:
    for question in (ASKED, BATCH, CALL):
        answer = read(question, text)
        assert (answer is not None and answer.action == "approve") == is_listed(text)


@given(outputs)
def test_what_is_not_allowed_is_never_read(text: str) -> None:
    for action in ALLOWED:
        others = tuple(one for one in ALLOWED if one != action)
        answer = read(replace(ASKED, allowed=others), text)
        assert answer is None or answer.action != action


@given(outputs)
def test_an_approval_s_resume_value_is_bare(text: str) -> None:
    answer = read(ASKED, text)
    if answer is not None and answer.action in {"approve", "reject"}:
        assert answer.value is None
        resumed = answer.resume_value(ASKED)
        assert read_text(ASKED, json.dumps(resumed)) == answer
