"""A question as a function call's arguments, and its answer out of a `function_call_output`.

What kind of answer is wanted (`expects`) picks its reader from a table, `_READERS`. A raw
`interrupt(value)` expects `any`: its answer is JSON if it parses, else the text itself.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.errors import InvalidInterruptAnswer
from gateway.wire.encoding import Json, dumps, is_finite, parse, to_jsonable
from gateway.wire.history import FunctionCallOutput


@dataclass(frozen=True, slots=True)
class Question:
    """What a person is asked. `payload` is plain JSON; what is unset is left out."""

    expects: str
    payload: Json = None
    question: str | None = None
    allowed: tuple[str, ...] = ()
    options: tuple[Json, ...] = ()
    schema: Mapping[str, Json] | None = None
    expires_at: dt.datetime | None = None

    @classmethod
    def raw(cls, value: object) -> Question:
        """For `interrupt(value)`. Raises `RunFailed` if the value has no JSON form."""
        payload = to_jsonable(value)
        asked = payload.get("question") if isinstance(payload, dict) else payload
        return cls("any", payload, asked if isinstance(asked, str) else None)

    def arguments(self) -> str:
        """The function call's arguments: a JSON object as text."""
        fields: dict[str, Json] = {"expects": self.expects}
        if self.question is not None:
            fields["question"] = self.question
        fields["payload"] = self.payload
        if self.allowed:
            fields["allowed"] = list(self.allowed)
        if self.options:
            fields["options"] = list(self.options)
        if self.schema is not None:
            fields["schema"] = self.schema
        if self.expires_at is not None:
            fields["expires_at"] = _timestamp(self.expires_at)
        return dumps(fields)

    @classmethod
    def of_arguments(cls, arguments: str) -> Question:
        """The question back from `arguments()`, as it was stored."""
        fields = parse(arguments)
        expires_at = fields.get("expires_at")
        return cls(
            expects=fields["expects"],
            payload=fields["payload"],
            question=fields.get("question"),
            allowed=tuple(fields.get("allowed", ())),
            options=tuple(fields.get("options", ())),
            schema=fields.get("schema"),
            expires_at=None if expires_at is None else dt.datetime.fromisoformat(expires_at),
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """A valid answer. `value` is what a raw interrupt returns into the graph."""

    value: Json


def output_text(output: FunctionCallOutput, param: str) -> str:
    """The answer as text; parts that are not text cannot be an answer."""
    for n, part in enumerate(output.parts):
        if part.text is None:
            message = f"An answer is text, but part {n} of it is {part.type}."
            raise InvalidInterruptAnswer(message, param=f"{param}[{n}]")
    return output.output


def read_raw(text: str) -> Json:
    """JSON if it is JSON that can be given back as it came, else the text itself."""
    try:
        value = parse(text)
    except ValueError:
        return text
    return value if is_finite(value) else text


def read(question: Question, output: FunctionCallOutput, param: str) -> Answer:
    """What `output` answers to the question. Raises `InvalidInterruptAnswer` about `param`."""
    return _READERS[question.expects](question, output_text(output, param), param)


def _read_any(question: Question, text: str, param: str) -> Answer:
    return Answer(read_raw(text))


_READERS: dict[str, Callable[[Question, str, str], Answer]] = {"any": _read_any}


def _timestamp(moment: dt.datetime) -> str:
    """In UTC, to the second: `2026-12-01T09:00:00Z`."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
