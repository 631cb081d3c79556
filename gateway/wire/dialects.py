"""The client's own way of asking its user, when the request's tools declare one.

Two of them. A function that is declared under the question's own name is called under that name,
with arguments that fit its parameters (`own_arguments`). And `ask_user` of Open WebUI draws a card
for up to three questions at once (`in_dialect`), whose output `read_dialect` translates into our
own forms, one text a question; `answers.read_text` then judges those like any other. Nothing has
to be kept for it but which questions went into the card: names and labels follow from them.

The first option of a card is badged "Recommended", so rejecting comes first. What a person is to
approve must be on the card as a whole: a payload that does not fit sends the question out in our
own form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.errors import InvalidInterruptAnswer
from gateway.wire.checks import shown
from gateway.wire.decisions import fields_of
from gateway.wire.encoding import Json, dumps
from gateway.wire.questions import Action, Option, Question
from gateway.wire.request import Tool

ASK_USER = "ask_user"

MOST_QUESTIONS = 3
MOST_OPTIONS, FEWEST_OPTIONS = 3, 2
HEADER, QUESTION, LABEL, DESCRIPTION = 48, 500, 80, 240
"""The longest texts of a card, in characters; none may be empty (Open WebUI 0.12)."""

_CANCELLED = "Error: tool call rejected by user."

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}

_SAFE_FIRST = {
    "reject": Option("reject", "Reject", "Do not do it."),
    "approve": Option("approve", "Approve", "Do it as it is shown."),
}


@dataclass(frozen=True, slots=True)
class DialectCall:
    """One function call that stands for several questions: those of `keys`, in this order."""

    name: str
    arguments: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StillOpen:
    """The card came back without an answer: nobody decided. `message` is for the person to read."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class _Entry:
    """One question of a card."""

    header: str
    text: str
    options: tuple[Option, ...]
    allow_other: bool = False

    def fits(self) -> bool:
        """Whether the card can draw it."""
        texts = [(self.header, HEADER), (self.text, QUESTION)]
        texts += [(option.label, LABEL) for option in self.options]
        texts += [(option.description, DESCRIPTION) for option in self.options]
        distinct = len({option.label for option in self.options}) == len(self.options)
        return (
            distinct
            and FEWEST_OPTIONS <= len(self.options) <= MOST_OPTIONS
            and all(text.strip() and len(text) <= most for text, most in texts)
        )

    def card(self, id: str) -> Json:
        """The entry as the card's JSON."""
        options = [
            {"label": option.label, "description": option.description} for option in self.options
        ]
        return {
            "id": id,
            "header": self.header,
            "question": self.text,
            "options": options,
            "allow_other": self.allow_other,
        }


# --- asking -----------------------------------------------------------------------------------


def in_dialect(
    tools: Sequence[Tool], questions: Sequence[tuple[str, Question]]
) -> DialectCall | None:
    """The one call that asks all of the questions in the client's own way; None if there is no such
    way, or not for all of them. Each question comes with a key of the caller's.

    The card must be the only function call of its response.
    """
    tool = next((tool for tool in tools if _asks_its_user(tool)), None)
    if tool is None or not questions:
        return None
    entries = [entry for _, question in questions for entry in _entries(question) or (None,)]
    fitting = [entry for entry in entries if entry is not None and entry.fits()]
    if len(fitting) != len(entries) or len(entries) > MOST_QUESTIONS:
        return None
    cards = [entry.card(_id(n)) for n, entry in enumerate(fitting)]
    arguments: dict[str, Json] = {"questions": cards}
    if "allow_other" in _properties(tool):
        arguments["allow_other"] = any(entry.allow_other for entry in fitting)
    return DialectCall(ASK_USER, dumps(arguments), tuple(key for key, _ in questions))


def _asks_its_user(tool: Tool) -> bool:
    """By name and shape: any `ask_user` that takes a list of questions, and needs nothing else."""
    if tool.type != "function" or tool.name != ASK_USER:
        return False
    questions = _properties(tool).get("questions")
    is_list = isinstance(questions, Mapping) and questions.get("type") == "array"
    return is_list and all(field == "questions" for field in _required(tool))


def _properties(tool: Tool) -> Mapping[str, Json]:
    found = (tool.parameters or {}).get("properties", {})
    return found if isinstance(found, Mapping) else {}


def _required(tool: Tool) -> Sequence[Json]:
    found = (tool.parameters or {}).get("required", [])
    return found if isinstance(found, list) else ()


def _entries(question: Question) -> tuple[_Entry, ...]:
    """The question as entries of a card: one, or one for each action; none if it has no options."""
    if question.actions:
        return tuple(_action_entry(action) for action in question.actions)
    header = _header(question.name or question.expects)
    text = _with_payload(question.question or "", question.payload)
    if question.expects == "approval":
        return (_Entry(header, text, _decision_options(question), "respond" in question.allowed),)
    if question.expects == "choice":
        options = tuple(
            option if option.description else replace(option, description=option.label)
            for option in question.choices
        )
        return (_Entry(header, text, options),)
    return ()


def _action_entry(action: Action) -> _Entry:
    text = action.description or f"May {action.name} run?"
    if str(action.arguments) not in text:  # LangChain's own description shows them like this
        text = _with_payload(text, action.arguments)
    options = _options_of(action.allowed)
    return _Entry(_header(action.name), text, options, "respond" in action.allowed)


def _decision_options(question: Question) -> tuple[Option, ...]:
    return _options_of(question.allowed)


def _options_of(allowed: Sequence[str]) -> tuple[Option, ...]:
    return tuple(option for name, option in _SAFE_FIRST.items() if name in allowed)


def _header(name: str) -> str:
    """A name for people: `review_refund` becomes "Review refund"."""
    words = " ".join(name.replace("_", " ").replace("-", " ").split()) or name
    return (words[:1].upper() + words[1:])[:HEADER]


def _with_payload(text: str, payload: Json) -> str:
    """What is asked, and about what: a line a field, as nobody can approve what is not shown."""
    if payload is None or payload in ({}, []):
        return text
    fields = payload.items() if isinstance(payload, dict) else [("", payload)]
    lines = [text] if text else []
    for name, value in fields:
        told = value if isinstance(value, str) else dumps(value)
        lines.append(f"{name}: {told}" if name else told)
    return "\n".join(lines)


def _id(position: int) -> str:
    return f"q{position + 1}"


# --- reading ----------------------------------------------------------------------------------


def read_dialect(
    questions: Sequence[Question], output: str, param: str
) -> tuple[str, ...] | StillOpen:
    """What the card's output answers to its questions, each as a text in our own form.

    A cancelled, timed-out or half-filled card answers nothing. Raises `InvalidInterruptAnswer` if
    the output is neither the card's nor, for a card of one question, the text of an answer.
    """
    if output.strip() == _CANCELLED:
        return StillOpen("cancelled", f"Cancelled. {_open(questions)}")
    fields = fields_of(output)
    status = None if fields is None else fields.get("status")
    if status == "timed_out":
        return StillOpen("timed_out", f"Nobody answered in time. {_open(questions)}")
    if fields is not None and status == "answered" and isinstance(fields.get("answers"), dict):
        return _answered(questions, fields["answers"], param)
    if len(questions) == 1:
        return (output,)
    raise InvalidInterruptAnswer(
        f"This does not answer the {len(questions)} questions of the card: "
        '{"status": "answered", "answers": {"q1": …}} does.',
        param=param,
    )


def _answered(
    questions: Sequence[Question], given: Mapping[str, Json], param: str
) -> tuple[str, ...] | StillOpen:
    parts = [_parts(question) for question in questions]
    ids = [_id(n) for n in range(sum(len(part) for part in parts))]
    unknown = next((id for id in given if id not in ids), None)
    if unknown is not None:
        raise InvalidInterruptAnswer(f"The card has no question {shown(unknown)}.", param=param)
    if not all(_is_given(given.get(id)) for id in ids):
        return StillOpen("incomplete", f"Not everything was answered. {_open(questions)}")
    answers = iter([given[id] for id in ids])
    return tuple(
        _translated(question, [next(answers) for _ in part], param)
        for question, part in zip(questions, parts, strict=True)
    )


def _parts(question: Question) -> tuple[Action | None, ...]:
    return question.actions or (None,)


def _is_given(answer: Json) -> bool:
    return isinstance(answer, dict) and answer.get("type") in ("option", "other")


def _translated(question: Question, given: Sequence[Mapping[str, Json]], param: str) -> str:
    if question.actions:
        decided = [_decision(answer, param) for answer in given]
        return dumps({"decisions": decided} if len(decided) > 1 else decided[0])
    if question.expects == "choice" and given[0]["type"] == "option":
        return dumps({"action": "respond", "value": given[0].get("label")})
    return dumps(_decision(given[0], param))


def _decision(answer: Mapping[str, Json], param: str) -> Json:
    """By the label, not the position: it is what the person read."""
    if answer["type"] == "other":
        return {"action": "respond", "value": answer.get("text")}
    label = answer.get("label")
    for option in _SAFE_FIRST.values():
        if option.label == label:
            return {"action": option.value}
    raise InvalidInterruptAnswer(f"The card has no option {shown(str(label))}.", param=param)


def _open(questions: Sequence[Question]) -> str:
    """What a person reads in the chat, in words that need no knowledge of this protocol."""
    if len(questions) == 1:
        return "The question is still open. Send any message to see it again."
    return "The questions are still open. Send any message to see them again."


# --- a tool of the question's own name --------------------------------------------------------


def own_arguments(tools: Sequence[Tool], name: str, question: Question) -> str:
    """The arguments of the call named `name`.

    Ours, if the client declares no function of that name, or one that takes any fields. A function
    with parameters of its own is called with exactly those of them that the question has: the
    payload's fields, else ours. If it would not fit all the same, the client gets our form.
    """
    ours = question.told()
    tool = next((tool for tool in tools if tool.type == "function" and tool.name == name), None)
    if tool is None or tool.parameters is None:
        return dumps(ours)
    for candidate in _candidates(tool, ours, _payload_fields(question)):
        if _takes(tool, candidate):
            return dumps(candidate)
    return dumps(ours)


def _candidates(
    tool: Tool, ours: Mapping[str, Json], payload: Mapping[str, Json]
) -> Iterator[dict[str, Json]]:
    declared = _properties(tool)
    own = {**ours, **payload}
    exact = {field: own[field] for field in declared if field in own}
    if exact and exact.keys() == declared.keys() and not _takes_any(tool):
        yield exact
    yield {**{field: value for field, value in exact.items() if field in payload}, **ours}
    yield {**ours, **exact}
    yield exact


def _takes_any(tool: Tool) -> bool:
    return (tool.parameters or {}).get("additionalProperties") is True


def _takes(tool: Tool, arguments: Mapping[str, Json]) -> bool:
    """Whether the arguments have what the tool requires, and nothing that it forbids.

    Fields and plain types only: a client's schema is not run, as its patterns could run for ever.
    """
    declared = _properties(tool)
    closed = (tool.parameters or {}).get("additionalProperties") is False
    return (
        all(field in arguments for field in _required(tool))
        and not (closed and arguments.keys() - declared.keys())
        and all(_is_of(value, declared.get(field)) for field, value in arguments.items())
    )


def _is_of(value: Json, declared: Json) -> bool:
    wanted = declared.get("type") if isinstance(declared, Mapping) else None
    if not isinstance(wanted, str) or wanted not in _TYPES:
        return True
    return isinstance(value, _TYPES[wanted]) and not (
        isinstance(value, bool) and wanted != "boolean"
    )


def _payload_fields(question: Question) -> Mapping[str, Json]:
    """What the payload offers as parameters; one tool call of LangChain's: its arguments."""
    payload = question.actions[0].arguments if len(question.actions) == 1 else question.payload
    return payload if isinstance(payload, dict) else {}
