"""Questions that a graph puts to a person: LangGraph's `interrupt` with a contract.

    answer = ask_approval("review_refund", question="Refund EUR 49.90?", payload={"order": order})
    if answer.approved: ...

Each function works wherever `interrupt` does: sync and async nodes, tools, subgraphs, tasks and
entrypoints of the functional API. The interrupt's value is the question as a dict with a "fermata"
mark, by which the gateway knows it. Nothing here needs the gateway: in a plain LangGraph run,
`Command(resume=…)` takes a word, a dict or JSON text, and the same reader judges it: what it
refuses raises a `ValueError` and leaves the question open.

Like `interrupt`, a question is asked when its node runs first and answered when it runs again: the
code before it runs twice.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, TypeAlias, cast

from langgraph.types import interrupt
from pydantic import BaseModel, PlainValidator, TypeAdapter, ValidationError, WithJsonSchema

from gateway.errors import InvalidInterruptAnswer
from gateway.wire import answers, schema
from gateway.wire.checks import is_function_name
from gateway.wire.encoding import dumps, to_jsonable
from gateway.wire.questions import Expects, Question

MARK = "fermata"

Model: TypeAlias = type[Any] | Mapping[str, Any]
"""A pydantic model, dataclass or TypedDict, or a JSON Schema."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a person decided: `action` is approve, reject, edit or respond.

    `value` is the edited value, the option, the text or the value that was asked for; an instance
    of the model if a model was given, else plain JSON. `reviewer` is the subject who answered, as
    the gateway authenticated it; None where nobody is.
    """

    action: str
    value: Any = None
    note: str | None = None
    reviewer: str | None = None

    @property
    def approved(self) -> bool:
        """Approved as it was asked. An edit is not: it approves `value` instead."""
        return self.action == "approve"

    @property
    def edited(self) -> bool:
        """Approved with the changes that are in `value`."""
        return self.action == "edit"


def ask_approval(
    name: str,
    *,
    question: str,
    payload: Any = None,
    editable: Model | None = None,
    respond: bool = False,
    roles: Collection[str] = (),
    four_eyes: bool = False,
    expires_in: dt.timedelta | float | None = None,
    on_expiry: str | None = None,
    action: str | None = None,
    tier: str | None = None,
) -> Answer:
    """Ask a person to approve or reject something.

    `name` becomes the function call's (1 to 64 of a-z, A-Z, 0-9, _ and -). `payload` is what is to
    be approved, anything with an obvious JSON form. `editable` allows `edit`, and is what an edited
    value must fit; `respond` allows an answer in words that is neither yes nor no. Who may answer:
    `roles` (none: anybody of the tenant), `four_eyes` (not the one who started the run).
    `expires_in` is a timedelta or seconds; `on_expiry` may be "reject": silence never approves.
    `action` and `tier` are a policy's names for what is asked about.

    Raises `ValueError` or `TypeError` for arguments that cannot be; `ValueError` (pydantic's
    `ValidationError`), without the gateway, for answers that the question does not take;
    `RunFailed` for payloads that JSON cannot hold.
    """
    allowed = ["approve", "reject"]
    allowed += ["edit"] if editable is not None else []
    allowed += ["respond"] if respond else []
    if on_expiry not in (None, "reject"):
        raise ValueError(f"{name}: on_expiry={on_expiry!r}; only 'reject' can be decided by nobody")
    asked = _question(name, "approval", question, payload, roles, four_eyes, expires_in, on_expiry)
    asked = replace(
        asked, allowed=tuple(allowed), schema=_schema(name, editable), action=action, tier=tier
    )
    return _ask(asked, editable)


def ask_choice(
    name: str,
    *,
    question: str,
    options: Sequence[str | Mapping[str, Any]],
    payload: Any = None,
    roles: Collection[str] = (),
    four_eyes: bool = False,
    expires_in: dt.timedelta | float | None = None,
    on_expiry: Any = None,
) -> Answer:
    """Ask a person to choose: `answer.value` is the value of one of the options.

    An option is a string, or an object with `value` and, if people should read something else,
    `label` and `description`. `on_expiry` is an option's value. The rest as in `ask_approval`.
    """
    offered = tuple(to_jsonable(option, f"{name}.options[{n}]") for n, option in enumerate(options))
    _require_options(name, offered)
    asked = _question(name, "choice", question, payload, roles, four_eyes, expires_in, on_expiry)
    return _ask(replace(asked, allowed=("respond",), options=offered))


def ask_text(
    name: str,
    *,
    question: str,
    payload: Any = None,
    roles: Collection[str] = (),
    four_eyes: bool = False,
    expires_in: dt.timedelta | float | None = None,
    on_expiry: str | None = None,
) -> Answer:
    """Ask a person for words: `answer.value` is the text. The rest as in `ask_approval`."""
    asked = _question(name, "text", question, payload, roles, four_eyes, expires_in, on_expiry)
    return _ask(replace(asked, allowed=("respond",)))


def ask_value(
    name: str,
    *,
    question: str,
    schema: Model,
    payload: Any = None,
    roles: Collection[str] = (),
    four_eyes: bool = False,
    expires_in: dt.timedelta | float | None = None,
    on_expiry: Any = None,
) -> Answer:
    """Ask a person for a value that fits `schema`: `answer.value` is an instance of the model, or
    plain JSON for a JSON Schema. The rest as in `ask_approval`.

    What a model's own validators refuse although it fits its schema is asked again, with the reason
    in the question: the gateway knows the schema only.
    """
    asked = _question(name, "value", question, payload, roles, four_eyes, expires_in, on_expiry)
    return _ask(replace(asked, allowed=("respond",), schema=_schema(name, schema)), schema)


def question_in(value: object) -> Question | None:
    """The question that one of these functions put into an interrupt's value; None for others'."""
    if not isinstance(value, Mapping) or value.get(MARK) != 1:
        return None
    return Question.of_kept({key: one for key, one in value.items() if key != MARK})


# --- making the question ----------------------------------------------------------------------


def _question(
    name: str,
    expects: Expects,
    question: str,
    payload: Any,
    roles: Collection[str],
    four_eyes: bool,
    expires_in: dt.timedelta | float | None,
    on_expiry: Any,
) -> Question:
    if not is_function_name(name):
        raise ValueError(f"{name!r} cannot name a question: 1 to 64 of a-z, A-Z, 0-9, _ and -")
    if isinstance(roles, str):
        raise TypeError(f"{name}: roles is a set of names, {{{roles!r}}}")
    return Question(
        expects=expects,
        payload=to_jsonable(payload),
        question=question,
        name=name,
        roles=frozenset(roles),
        four_eyes=four_eyes,
        expires_in=_seconds(name, expires_in),
        on_expiry=to_jsonable(on_expiry, f"{name}.on_expiry"),
        form="fermata",
    )


def _seconds(name: str, duration: dt.timedelta | float | None) -> float | None:
    if duration is None:
        return None
    seconds = duration.total_seconds() if isinstance(duration, dt.timedelta) else float(duration)
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{name}: expires_in={duration!r}; a timedelta or seconds above zero")
    return seconds


def _schema(name: str, model: Model | None) -> Mapping[str, Any] | None:
    if model is None:
        return None
    found = model if isinstance(model, Mapping) else TypeAdapter(model).json_schema()
    return schema.checked(to_jsonable(found, f"{name}.schema"), name)


def _require_options(name: str, options: Sequence[Any]) -> None:
    """An answer names one option by value or label, so no two may share a name."""
    if not options:
        raise ValueError(f"{name}: a choice needs options")
    for option in options:
        if isinstance(option, Mapping) and "value" not in option:
            raise ValueError(f"{name}: an option is a string or an object with a 'value'")
    choices = Question("choice", options=tuple(options)).choices
    for n, choice in enumerate(choices):
        if not str(choice.label).strip():
            raise ValueError(f"{name}: an option's label is a text")
        names = {dumps(choice.value), dumps(choice.label)}
        others = {dumps(one) for other in choices[:n] for one in (other.value, other.label)}
        if names & others:
            raise ValueError(f"{name}: two options are called {choice.label!r}")


# --- asking, and reading what came back -------------------------------------------------------


def _ask(asked: Question, model: Model | None = None) -> Answer:
    _require_default(asked)
    text = asked.question
    while True:
        answer: Answer = interrupt(
            {MARK: 1, **asked.kept()}, response_schema=cast("type[Answer]", _reading(asked))
        )
        if answer.action not in {"edit", "respond"} or not _is_judged(asked, answer, model):
            return answer
        try:
            return replace(answer, value=_instance(model, answer.value))
        except ValidationError as error:
            reason = error.errors(include_url=False)[0]["msg"]
            asked = replace(asked, question=f"{text}\n(The last answer was not valid: {reason})")


def _reading(asked: Question) -> object:
    """A type for LangGraph that is our reader: what it refuses is not saved, and stays asked."""
    shown = {"description": answers.allowed_line(asked)}
    return Annotated[Any, PlainValidator(partial(_read, asked)), WithJsonSchema(shown)]


def _is_judged(asked: Question, answer: Answer, model: Model | None) -> bool:
    """Whether the answer's value is an instance of the model: words beside an approval are not."""
    if model is None or isinstance(model, Mapping):
        return False
    return answer.action == "edit" or asked.expects == "value"


def _instance(model: Any, value: Any) -> Any:
    if isinstance(model, type) and issubclass(model, BaseModel):
        return model.model_validate_json(dumps(value))
    return TypeAdapter(model).validate_json(dumps(value))


def _require_default(asked: Question) -> None:
    """A wrong default would be found out when nobody is there to see it."""
    try:
        answers.expiry_answer(asked)
    except InvalidInterruptAnswer as error:
        raise ValueError(f"{asked.name}: on_expiry={asked.on_expiry!r}. {error.message}") from None


def _read(asked: Question, resumed: Any) -> Answer:
    """What LangGraph was resumed with: by the gateway our dict, else whatever somebody wrote."""
    reviewer = None
    if isinstance(resumed, Mapping):
        resumed = dict(resumed)
        reviewer = resumed.pop("reviewer", None) if "action" in resumed else None
    text = resumed if isinstance(resumed, str) else dumps(to_jsonable(resumed, "resume"))
    try:
        answer = answers.read_text(asked, text)
    except InvalidInterruptAnswer as error:
        raise ValueError(f"{asked.name}: {error.message}") from None
    return Answer(answer.action, answer.value, answer.note, reviewer)
