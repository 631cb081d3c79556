"""What a person is asked: the contract between the graph that asks and the client that draws it.

`Question.arguments()` is what the client sees, as a function call's arguments; `stored()` is what
the gateway keeps, a superset: who may answer and how to read the answer are nobody else's business.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from gateway.wire.encoding import Json, dumps, parse, to_jsonable

Expects: TypeAlias = Literal["approval", "choice", "text", "value", "any"]

Form: TypeAlias = Literal["raw", "fermata", "schema", "hitl", "hitl_call"]
"""Who asks, and so what LangGraph is resumed with: `interrupt(value)`, `ask_…`,
`interrupt(value, response_schema=…)`, LangChain's middleware for a batch or for one call."""

DECISIONS = ("approve", "reject", "edit", "respond")
"""All words that an answer's action may be."""


@dataclass(frozen=True, slots=True)
class Action:
    """One tool call that LangChain's middleware asks about, and the decisions it takes."""

    name: str
    arguments: Json
    allowed: tuple[str, ...]
    description: str = ""


@dataclass(frozen=True, slots=True)
class Option:
    """What can be chosen. `value` is what the graph gets, `label` what people read."""

    value: Json
    label: str
    description: str = ""

    @classmethod
    def of(cls, option: Json) -> Option:
        """From a string, or an object with a `value`."""
        if not isinstance(option, Mapping):
            return cls(option, _label(option))
        value = option["value"]
        label, description = option.get("label"), option.get("description")
        return cls(value, _label(value if label is None else label), str(description or ""))


@dataclass(frozen=True, slots=True)
class Question:
    """What a person is asked. `payload` is plain JSON; what is unset is left out.

    `name` is the function call's; `roles` (empty: anybody of the tenant) and `four_eyes` say who
    may answer; `expires_in` is in seconds, `expires_at` the moment it makes; `on_expiry` is the
    answer that silence gives. `actions` are those of LangChain's middleware, `action` and `tier`
    what a policy asks about.
    """

    expects: str
    payload: Json = None
    question: str | None = None
    allowed: tuple[str, ...] = ()
    options: tuple[Json, ...] = ()
    schema: Mapping[str, Json] | None = None
    expires_at: dt.datetime | None = None
    name: str | None = None
    roles: frozenset[str] = frozenset()
    four_eyes: bool = False
    expires_in: float | None = None
    on_expiry: Json = None
    form: Form = "raw"
    actions: tuple[Action, ...] = ()
    action: str | None = None
    tier: str | None = None

    @classmethod
    def raw(cls, value: object) -> Question:
        """For `interrupt(value)`. Raises `RunFailed` if the value has no JSON form."""
        payload = to_jsonable(value)
        asked = payload.get("question") if isinstance(payload, dict) else payload
        return cls("any", payload, asked if isinstance(asked, str) else None)

    @property
    def choices(self) -> tuple[Option, ...]:
        """The options of a choice, each with its label."""
        return tuple(Option.of(option) for option in self.options)

    def asked_at(self, now: dt.datetime) -> Question:
        """The same question with the moment it expires, if it has a time of its own."""
        if self.expires_in is None:
            return self
        return replace(self, expires_at=now + dt.timedelta(seconds=self.expires_in))

    def arguments(self) -> str:
        """The function call's arguments: a JSON object as text."""
        return dumps(self.told())

    def told(self) -> dict[str, Json]:
        """What the client sees, as a JSON object."""
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
        return fields

    def kept(self) -> dict[str, Json]:
        """All of it as a JSON object; `of_kept` reads it back."""
        hidden: dict[str, Json] = {
            "name": self.name,
            "roles": sorted(self.roles),
            "four_eyes": self.four_eyes,
            "expires_in": self.expires_in,
            "form": self.form,
            "actions": [_action_fields(action) for action in self.actions],
            "action": self.action,
            "tier": self.tier,
        }
        kept = self.told() | {key: value for key, value in hidden.items() if value}
        return kept if self.on_expiry is None else kept | {"on_expiry": self.on_expiry}

    @classmethod
    def of_kept(cls, fields: Mapping[str, Json]) -> Question:
        """The question back from `kept()`, or from what older versions kept: `told()`."""
        expires_at = fields.get("expires_at")
        return cls(
            expects=fields["expects"],
            payload=fields["payload"],
            question=fields.get("question"),
            allowed=tuple(fields.get("allowed", ())),
            options=tuple(fields.get("options", ())),
            schema=fields.get("schema"),
            expires_at=None if expires_at is None else dt.datetime.fromisoformat(expires_at),
            name=fields.get("name"),
            roles=frozenset(fields.get("roles", ())),
            four_eyes=fields.get("four_eyes", False),
            expires_in=fields.get("expires_in"),
            on_expiry=fields.get("on_expiry"),
            form=fields.get("form", "raw"),
            actions=_actions(fields.get("actions", ())),
            action=fields.get("action"),
            tier=fields.get("tier"),
        )

    def stored(self) -> str:
        """What the gateway keeps, as JSON text."""
        return dumps(self.kept())

    @classmethod
    def of_stored(cls, text: str) -> Question:
        """The question back from `stored()`, or from rows that hold `arguments()`."""
        return cls.of_kept(parse(text))

    of_arguments = of_stored


def _action_fields(action: Action) -> dict[str, Json]:
    return {
        "name": action.name,
        "arguments": action.arguments,
        "allowed": list(action.allowed),
        "description": action.description,
    }


def _actions(stored: Sequence[Mapping[str, Json]]) -> tuple[Action, ...]:
    return tuple(
        Action(one["name"], one["arguments"], tuple(one["allowed"]), one["description"])
        for one in stored
    )


def _label(value: Json) -> str:
    return value if isinstance(value, str) else dumps(value)


def _timestamp(moment: dt.datetime) -> str:
    """In UTC, to the second: `2026-12-01T09:00:00Z`."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
