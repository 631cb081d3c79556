"""Answers out of a `function_call_output`: what is valid, and what the graph gets for it.

What kind of answer is wanted (`expects`) picks its reader from a table, `_READERS`. A reader takes
the question and the text, and gives an `Answer` or raises `Refusal`; every refusal leaves as one
line that ends in what is allowed. Everything is judged here, before anything is resumed: a wrong
answer that reaches LangGraph can kill the run.

A raw `interrupt(value)` expects `any`: its answer is JSON if it parses, else the text itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gateway.errors import InvalidInterruptAnswer
from gateway.wire.checks import shown
from gateway.wire.decisions import (
    Decision,
    Refusal,
    decisions,
    fields_of,
    is_automatic,
    names_decision,
    word,
)
from gateway.wire.encoding import Json, canonical, dumps, is_finite, parse
from gateway.wire.history import FunctionCallOutput
from gateway.wire.questions import Action, Option, Question
from gateway.wire.schema import misfit

__all__ = [
    "Answer",
    "Question",
    "allowed_line",
    "expiry_answer",
    "output_text",
    "read",
    "read_raw",
    "read_text",
]

_AUTOMATIC = "This is what a client says by itself, not a person's answer."


@dataclass(frozen=True, slots=True)
class Answer:
    """A valid answer. For LangChain's middleware, `value` is what it takes, and `action` is
    "decide" if there are several."""

    value: Json
    action: str = "respond"
    note: str | None = None

    def resume_value(self, question: Question, reviewer: str | None = None) -> Json:
        """What LangGraph is resumed with, for the interrupt of this question: plain JSON.

        `reviewer` is the subject who answered; only our own questions take it.
        """
        if question.form != "fermata":
            return self.value
        resumed = {"action": self.action, "value": self.value, "note": self.note}
        return resumed if reviewer is None else resumed | {"reviewer": reviewer}


def output_text(output: FunctionCallOutput, param: str) -> str:
    """The answer as text; parts that are not text cannot be an answer."""
    for n, part in enumerate(output.parts):
        if part.text is None:
            message = f"An answer is text, but part {n} of it is {part.type}."
            raise InvalidInterruptAnswer(message, param=f"{param}[{n}]")
    return output.output


def read(question: Question, output: FunctionCallOutput, param: str) -> Answer:
    """What `output` answers to the question. Raises `InvalidInterruptAnswer` about `param`."""
    return read_text(question, output_text(output, param), param)


def read_text(question: Question, text: str, param: str = "output") -> Answer:
    """What the text answers to the question. Raises `InvalidInterruptAnswer` about `param`."""
    try:
        return _storable(_reader(question)(question, text))
    except Refusal as refusal:
        message = f"{refusal} {allowed_line(question)}"
        raise InvalidInterruptAnswer(message, param=param) from None


def read_raw(text: str) -> Json:
    """JSON if it is JSON that can be given back as it came, else the text itself."""
    try:
        value = parse(text)
    except ValueError:
        return text
    return value if is_finite(value) else text


def expiry_answer(question: Question) -> Answer | None:
    """What silence answers when the question's time is over; None if the run just expires."""
    if question.on_expiry is None:
        return None
    if question.expects == "approval":
        return read_text(question, question.on_expiry)
    said = {"action": "respond", "value": question.on_expiry}
    return read_text(question, dumps(said))


# --- one reader for each kind ----------------------------------------------------------------


def _read_any(question: Question, text: str) -> Answer:
    if is_automatic(text):
        raise Refusal(_AUTOMATIC)
    return Answer(read_raw(text))


def _read_approval(question: Question, text: str) -> Answer:
    decision = _one(_decided(text))
    _require_allowed(decision, question.allowed)
    if decision.action == "edit":
        _judge_edit(question, decision)
    elif decision.action == "respond":
        _require_text(decision)
    else:
        _refuse_value(decision)
    return Answer(decision.value, decision.action, decision.note)


def _read_choice(question: Question, text: str) -> Answer:
    chosen = _option(question, text.strip())
    if chosen is not None:
        return Answer(chosen.value)
    said = _response(text)
    if said is None:
        said = Decision("respond", read_raw(text))
    chosen = _option(question, said.value)
    if chosen is None:
        raise Refusal(_AUTOMATIC if is_automatic(text) else "This is not one of the options.")
    return Answer(chosen.value, note=said.note)


def _read_text_answer(question: Question, text: str) -> Answer:
    said = _response(text)
    if said is not None:
        if not isinstance(said.value, str):
            raise Refusal("The value is a text.")
        return Answer(said.value, note=said.note)
    if is_automatic(text):
        raise Refusal(_AUTOMATIC)
    if not text.strip():
        raise Refusal("The text is empty.")
    return Answer(text)


def _read_value(question: Question, text: str) -> Answer:
    if is_automatic(text):
        raise Refusal(_AUTOMATIC)
    said = _wrapped_value(text)
    if said is None:
        said = Decision("respond", _json(text))
    wrong = None if question.schema is None else misfit(said.value, question.schema)
    if wrong is not None:
        raise Refusal(_sentence(wrong))
    return Answer(said.value, note=said.note)


def _read_actions(question: Question, text: str) -> Answer:
    """LangChain's middleware: a decision for each action, in order, or none at all is taken."""
    found = _decided(text)
    wanted = question.actions
    if len(found) != len(wanted):
        raise Refusal(f"{_counted(len(found))} for {_counted(len(wanted), 'action')}.")
    pairs = zip(wanted, found, strict=True)
    decided = [_for_langchain(question, action, decision) for action, decision in pairs]
    if question.form == "hitl_call":
        return Answer(decided[0], found[0].action, found[0].note)
    action = found[0].action if len(found) == 1 else "decide"
    note = found[0].note if len(found) == 1 else None
    return Answer({"decisions": decided}, action, note)


_READERS: dict[str, Callable[[Question, str], Answer]] = {
    "any": _read_any,
    "approval": _read_approval,
    "choice": _read_choice,
    "text": _read_text_answer,
    "value": _read_value,
}


def _reader(question: Question) -> Callable[[Question, str], Answer]:
    return _read_actions if question.actions else _READERS[question.expects]


# --- decisions --------------------------------------------------------------------------------


def _decided(text: str) -> tuple[Decision, ...]:
    """The decisions in the text; `Refusal` if there are none."""
    bare = word(text)
    if bare is not None:
        return (bare,)
    fields = fields_of(text)
    found = None if fields is None else decisions(text, fields)
    if found is None:
        raise Refusal(_AUTOMATIC if is_automatic(text) else "This is not a decision.")
    return found


def _one(found: Sequence[Decision]) -> Decision:
    if len(found) != 1:
        raise Refusal(f"{_counted(len(found))} for one question.")
    return found[0]


def _response(text: str) -> Decision | None:
    """What `respond` carries, in any of its forms; None if the text is no decision at all."""
    fields = fields_of(text)
    if fields is None or not names_decision(fields):
        return None
    found = decisions(text, fields)
    assert found is not None  # `names_decision` saw the form
    decision = _one(found)
    _require_allowed(decision, ("respond",))
    if not decision.valued:
        raise Refusal("'respond' needs a value.")
    return decision


def _wrapped_value(text: str) -> Decision | None:
    """Our form around a value. Only `respond`: any other object may be the value itself."""
    fields = fields_of(text)
    if fields is None or fields.get("action") != "respond" or "value" not in fields:
        return None
    if not fields.keys() <= {"action", "value", "note"}:
        return None
    return _response(text)


def _require_allowed(decision: Decision, allowed: Sequence[str]) -> None:
    if decision.action not in allowed:
        raise Refusal(f"'{decision.action}' is not allowed here.")


def _refuse_value(decision: Decision) -> None:
    if decision.value is not None:
        raise Refusal(f"'{decision.action}' takes no value.")


def _require_text(decision: Decision) -> None:
    if not isinstance(decision.value, str) or not decision.value.strip():
        raise Refusal("'respond' needs a text.")


def _judge_edit(question: Question, decision: Decision) -> None:
    names = {name for name in (question.action, question.name) if name is not None}
    if decision.tool is not None and decision.tool not in names:
        raise Refusal(f"An edit cannot turn this into {shown(decision.tool)}.")
    _require_edited(question, decision)


def _require_edited(question: Question, decision: Decision) -> None:
    if question.schema is None:
        wrong = None if isinstance(decision.value, dict) else "'edit' needs an object as its value"
    elif decision.value is None:
        wrong = "'edit' needs a value"
    else:
        wrong = misfit(decision.value, question.schema)
    if wrong is not None:
        raise Refusal(_sentence(wrong))


def _for_langchain(question: Question, action: Action, decision: Decision) -> Json:
    """The decision in LangChain's words."""
    _require_allowed(decision, action.allowed)
    if decision.action == "respond":
        _require_text(decision)
        return {"type": "respond", "message": decision.value}
    if decision.action == "edit":
        return _edit_for_langchain(question, action, decision)
    _refuse_value(decision)
    if decision.action == "reject" and decision.note is not None:
        return {"type": "reject", "message": decision.note}
    return {"type": decision.action}


def _edit_for_langchain(question: Question, action: Action, decision: Decision) -> Json:
    """A batch may be edited to another tool, as in LangChain; one call stays what it is."""
    name = decision.tool or action.name
    if question.form == "hitl_call" and name != action.name:
        raise Refusal(f"An edit cannot turn this into {shown(name)}.")
    _require_edited(question, decision)
    return {"type": "edit", "edited_action": {"name": name, "args": decision.value}}


# --- values -----------------------------------------------------------------------------------


def _option(question: Question, value: Json) -> Option | None:
    """The option of this value, or else of this label. `1`, `1.0` and `true` are three values."""
    for option in question.choices:
        if canonical(option.value) == canonical(value):
            return option
    return next((option for option in question.choices if option.label == value), None)


def _json(text: str) -> Json:
    try:
        value = parse(text)
    except ValueError as error:
        reason = " ".join(str(error).split())[:100]
        raise Refusal(f"This is not JSON: {reason}.") from None
    if not is_finite(value):
        raise Refusal("A number is too large.")
    return value


def _storable(answer: Answer) -> Answer:
    """The answer, unless the run would die of it: LangGraph cannot store larger integers, nor,
    where a graph keeps it as a plain text, a NUL."""
    level: Iterable[Json] = [answer.value, answer.note]
    while level:
        for one in level:
            if type(one) is int and not -(2**63) <= one < 2**64:
                raise Refusal("An integer beyond 64 bits cannot be stored.")
            if isinstance(one, str) and "\x00" in one:
                raise Refusal("A text with a NUL character (U+0000) cannot be stored.")
        level = [child for parent in level for child in _children(parent)]
    return answer


def _children(value: Json) -> Iterable[Json]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


# --- what is allowed --------------------------------------------------------------------------


def allowed_line(question: Question) -> str:
    """What the question takes, in one line."""
    if question.actions:
        return _allowed_actions(question.actions)
    if question.expects == "approval":
        return _allowed_decisions(question.allowed)
    if question.expects == "choice":
        return f"Answer with one of: {_listed(option.label for option in question.choices)}."
    if question.expects == "text":
        return 'Answer with a text, or with {"action": "respond", "value": "…"}.'
    if question.expects == "value":
        return "Answer with JSON that fits the question's schema."
    return "Answer with JSON or text; put a text that means something else in quotes."


def _allowed_decisions(allowed: Sequence[str]) -> str:
    words = [one for one in allowed if one in {"approve", "reject"}]
    forms = "|".join(allowed)
    value = ', "value": …' if {"edit", "respond"} & set(allowed) else ""
    bare = f"{' or '.join(words)}, or with " if words else ""
    return f'Answer with {bare}{{"action": "{forms}"{value}, "note": "…"}}.'


def _allowed_actions(actions: Sequence[Action]) -> str:
    if len(actions) == 1:
        return _allowed_decisions(actions[0].allowed)
    each = "; ".join(f"{action.name}: {', '.join(action.allowed)}" for action in actions[:10])
    return f'Answer with {{"decisions": […]}}, one for each action in order ({each}).'


def _listed(labels: Iterable[str]) -> str:
    names = [_quoted(label) for label in labels]
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _quoted(label: str) -> str:
    """Readable in any language, in one line; the client is meant to send it back."""
    line = " ".join(label.split()).encode("utf-8", "replace").decode()
    return f"'{line if len(line) <= 80 else line[:79] + '…'}'"


def _counted(count: int, noun: str = "decision") -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _sentence(text: str) -> str:
    return f"{text}."
