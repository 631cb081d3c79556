"""Decisions as clients write them: a bare word, our JSON, LangChain's JSON.

This module only reads what was written; `answers` judges whether the question takes it. The words
and the forms are the whole list (design: interrupts, "What a client answers"): whatever is not on
it is no decision, so nothing is ever read as yes by default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.wire.checks import shown
from gateway.wire.encoding import Json, is_finite, parse
from gateway.wire.questions import DECISIONS

APPROVE_WORDS = frozenset({"approve", "approved", "yes", "y"})
REJECT_WORDS = frozenset({"reject", "rejected", "no", "n", "deny"})

_LONGEST_WORD = 64
"""Nobody pads a word further; a megabyte need not be case-folded to know that it is none."""

_LANGCHAIN_FIELD = {"edit": "edited_action", "reject": "message", "respond": "message"}


class Refusal(ValueError):
    """The output is no valid answer; the text says why, in one sentence."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What somebody wrote. `tool` is the name that LangChain's `edited_action` brings along.

    `value` of None and no value are the same but for `valued`.
    """

    action: str
    value: Json = None
    note: str | None = None
    tool: str | None = None
    valued: bool = False


def word(text: str) -> Decision | None:
    """A bare word, after trimming and case folding; exactly the listed ones."""
    trimmed = text.strip()
    folded = trimmed.casefold() if len(trimmed) <= _LONGEST_WORD else ""
    if folded in APPROVE_WORDS:
        return Decision("approve")
    return Decision("reject") if folded in REJECT_WORDS else None


def fields_of(text: str) -> Mapping[str, Json] | None:
    """The text as a JSON object, if it is one that can be taken as it stands."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        fields = parse(text)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) and is_finite(fields) else None


def names_decision(fields: Mapping[str, Json]) -> bool:
    """Whether the object is meant as a decision, and not as a text that happens to be JSON."""
    if fields.keys() == {"decisions"}:
        return isinstance(fields["decisions"], list)
    return any(_is_action(fields.get(key)) for key in ("action", "type"))


def decisions(text: str, fields: Mapping[str, Json]) -> tuple[Decision, ...] | None:
    """The decisions of our or of LangChain's form; None if the object has neither form.

    Raises `Refusal` for a form with a field too many, too few or of the wrong kind.
    """
    if not fields.keys() & {"decisions", "action", "type"}:
        return None
    _refuse_duplicates(text)
    if "decisions" not in fields:
        return (_decision(fields),)
    _only(fields, "decisions")
    found = fields["decisions"]
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise Refusal("'decisions' is a list of objects.")
    return tuple(_decision(one) for one in found)


def _decision(fields: Mapping[str, Json]) -> Decision:
    return _ours(fields) if "action" in fields else _langchain(fields)


def _ours(fields: Mapping[str, Json]) -> Decision:
    _only(fields, "action", "value", "note")
    action = _action(fields["action"])
    note = _text(fields.get("note"), "note")
    return Decision(action, fields.get("value"), note, valued="value" in fields)


def _langchain(fields: Mapping[str, Json]) -> Decision:
    action = _action(fields.get("type"))
    field = _LANGCHAIN_FIELD.get(action, "type")
    _only(fields, "type", field)
    if action == "edit":
        return _edit(fields.get(field))
    message = None if action == "approve" else _text(fields.get(field), field)
    if action == "respond":
        return Decision(action, message, valued=message is not None)
    return Decision(action, note=message)


def _edit(edited: Json) -> Decision:
    if not isinstance(edited, dict):
        raise Refusal("'edit' needs 'edited_action': an object with 'name' and 'args'.")
    _only(edited, "name", "args")
    name = edited.get("name")
    if not isinstance(name, str) or not isinstance(edited.get("args"), dict):
        raise Refusal("'edited_action' is an object with 'name', a string, and 'args', an object.")
    return Decision("edit", edited["args"], tool=name, valued=True)


def _is_action(value: Json) -> bool:
    return isinstance(value, str) and value.strip().casefold() in DECISIONS


def _action(value: Json) -> str:
    if not isinstance(value, str):
        raise Refusal("A decision is named by a string.")
    if not _is_action(value):
        raise Refusal(f"{shown(value)} is no decision.")
    return value.strip().casefold()


def _text(value: Json, name: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise Refusal(f"'{name}' is a string.")
    return value


def _only(fields: Mapping[str, Json], *names: str) -> None:
    """What is not asked for is refused, not ignored: the sender believed that it counts."""
    for name, value in fields.items():
        if name not in names and value is not None:
            raise Refusal(f"The field {shown(name)} is not part of this answer.")


def _refuse_duplicates(text: str) -> None:
    """Two fields of one name say two things, and parsers differ in which of them they hear."""
    json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise Refusal("A field is named twice.")
    return fields


# --- what nobody decided ----------------------------------------------------------------------

_AUTOMATIC = re.compile(
    r"Error:"  # Open WebUI, LangChain and many more: unknown tools, cancelled cards
    r"|Error (?:invoking|executing) tool\b"  # LangChain's ToolNode
    r"|unsupported call:"  # Codex
    r"|Tool execution was not approved\.?\s*$"  # the Agents SDK's denial
    r"|Tool (?:call )?execution denied\.?\s*$"  # the Vercel AI SDK's denial, 6 and 7
    r"|[Tt]ool ['\"]?[\w-]+['\"]? (?:not found|does not exist)\b"  # llm and others
    r"|Model tried to call unavailable tool\b"  # the Vercel AI SDK
    r"|An error occurred while running the tool\b"  # the Agents SDK
)

_ERROR_OBJECT = re.compile(r'\s*\{\s*"error"')
"""An object with an error and nothing else is how the Vercel AI SDK 7 tells of any failed call, and
Open WebUI of a closed tab."""

_AUTOMATIC_OBJECTS: tuple[Mapping[str, Json], ...] = (
    {"submitted": False},
    {"status": "timed_out"},
    {"type": "execution-denied"},  # the Vercel AI SDK's denial, where it is sent as JSON
)


def is_automatic(text: str) -> bool:
    """Whether a client's tool loop wrote this because it does not know the call, or stopped
    waiting.

    No person said it, so it answers nothing, not even a question that takes any text. Who means
    such words can still say them in the JSON form, or quoted to a raw interrupt.
    """
    if _AUTOMATIC.match(text.lstrip()):
        return True
    if len(text) > 1000 and not _ERROR_OBJECT.match(text):
        return False
    fields = fields_of(text)
    return fields in _AUTOMATIC_OBJECTS or (fields is not None and fields.keys() == {"error"})
