"""What people decided in a run, read from the record: which action, about what, yes or no.

By the form of the question, because each form has its own answers:

    ours           {"action": …, "value": …}; an edit approves its value instead of the payload
    LangChain's    one decision for each action, in order
    all others     free text or a value, in which only the graph can tell yes from no
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.human.ledger import Decided
from gateway.wire.encoding import Json
from gateway.wire.questions import Question

_APPROVING = ("approve", "edit")


def decided(name: str, question: Question, answer: Json) -> Iterator[Decided]:
    """The decisions of one answered question; `answer` is what LangGraph is resumed with."""
    if question.form in ("hitl", "hitl_call"):
        yield from _by_action(name, question, _decisions(answer))
        return
    names = frozenset(one for one in (name, question.action) if one)
    if question.form == "fermata" and isinstance(answer, Mapping):
        action = answer.get("action")
        about = answer.get("value") if action == "edit" else question.payload
        yield Decided(names, about, question.expects == "approval" and action in _APPROVING)
        return
    yield Decided(names, question.payload, approved=False, clear=False)


def _decisions(answer: Json) -> list[Json]:
    if not isinstance(answer, Mapping):
        return []
    several = answer.get("decisions")
    return list(several) if isinstance(several, list) else [answer]


def _by_action(name: str, question: Question, given: list[Json]) -> Iterator[Decided]:
    for action, decision in zip(question.actions, given, strict=False):
        kind = decision.get("type") if isinstance(decision, Mapping) else None
        names, about = {name, action.name}, action.arguments
        if kind == "edit":
            edited = decision.get("edited_action") or {}
            names, about = {name, str(edited.get("name"))}, edited.get("args")
        yield Decided(frozenset(names), about, kind in _APPROVING)
