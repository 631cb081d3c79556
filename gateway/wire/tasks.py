"""What chat front ends ask a model for behind their user's back: titles, tags, follow-ups. Pure.

Such a request carries the conversation inside a prompt. A graph would take it for a turn: it would
run, ask people and act. So it is answered here, small and in the form that was asked for; the one
thing that says something is the title, which is the beginning of what the user said first.

Names and forms are those of Open WebUI 0.12 (`title_generation`, `tags_generation`, …); other front
ends' are recognised by the same words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.wire.encoding import Json, dumps
from gateway.wire.history import Message
from gateway.wire.request import CreateResponse

LONGEST_TITLE = 60  # characters
NO_TITLE = "New chat"

_PLACEHOLDER = re.compile(r"\{\{.*\}\}")
_TURN = re.compile(r"^\s*USER:\s*(.+?)\s*(?=^\s*[A-Z]+:|</chat_history>|\Z)", re.M | re.S)
_QUOTES = "\"'` "


def named_task(value: str | None) -> str | None:
    """The task that the operator's header names; None for a real turn, where it is empty.

    A placeholder that the front end did not fill in is no task: it would turn every turn into one.
    """
    task = (value or "").strip()
    return None if not task or _PLACEHOLDER.fullmatch(task) else task


def task_answer(task: str, request: CreateResponse) -> str:
    """The text that answers a task, in the form that its prompt asks for."""
    for word, form in _FORMS.items():
        if word in task.lower():
            return _told(form, request)
    return "{}" if _wants_json(request) else _title(request)


_TITLE = object()
_FORMS: Mapping[str, tuple[str | None, object]] = {
    "title": ("title", _TITLE),
    "tag": ("tags", []),
    "follow": ("follow_ups", []),
    "quer": ("queries", []),
    "autocomplet": ("text", ""),
    "function": ("tool_calls", []),
    "image": ("prompt", _TITLE),
    "emoji": (None, "💬"),
}
"""By a word of the task's name: the one field of the JSON that is asked for, and its value."""


def _told(form: tuple[str | None, object], request: CreateResponse) -> str:
    field, value = form
    told: Json = _title(request) if value is _TITLE else value
    if field is None or (isinstance(told, str) and told and not _wants_json(request)):
        return str(told)
    return dumps({field: told})


def _wants_json(request: CreateResponse) -> bool:
    return request.text_format.type != "text" or any(
        "json" in message.text.lower() for message in _messages(request)
    )


def _title(request: CreateResponse) -> str:
    """The beginning of what the user said first: in the prompt's history, else before the
    prompt."""
    messages = _messages(request)
    for message in messages:
        turn = _TURN.search(message.text)
        if turn is not None:
            return _short(turn[1])
    said = [message.text for message in messages if message.role == "user"]
    return _short(said[0]) if len(said) > 1 else NO_TITLE


def _short(text: str) -> str:
    words = " ".join(text.split()).strip(_QUOTES)
    if len(words) <= LONGEST_TITLE:
        return words or NO_TITLE
    cut = words[:LONGEST_TITLE]
    return f"{cut.rpartition(' ')[0] or cut}…"


def _messages(request: CreateResponse) -> list[Message]:
    return [item for item in request.input if isinstance(item, Message)]
