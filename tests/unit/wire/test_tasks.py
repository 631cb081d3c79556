"""Answers to the tasks of chat front ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.wire.request import CreateResponse, parse_create
from gateway.wire.tasks import LONGEST_TITLE, NO_TITLE, named_task, task_answer

PROMPT = """### Task:
Find a short title.
Answer as JSON: {{ "title": "…" }}
<chat_history>
{history}
</chat_history>"""


def request(*texts: str, **fields: Any) -> CreateResponse:
    messages = [{"role": "user", "content": text} for text in texts]
    return parse_create({"model": "m", "input": messages, **fields})


def history(*turns: str) -> CreateResponse:
    return request(PROMPT.format(history="\n".join(turns)))


@pytest.mark.parametrize("value", [None, "", "  ", "{{TASK}}", " {{ task }} "])
def test_a_real_turn_names_no_task(value: str | None) -> None:
    assert named_task(value) is None


def test_a_task_has_a_name() -> None:
    assert named_task(" title_generation ") == "title_generation"


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("title_generation", {"title": "Refund order A-1042"}),
        ("tags_generation", {"tags": []}),
        ("follow_up_generation", {"follow_ups": []}),
        ("query_generation", {"queries": []}),
        ("autocomplete_generation", {"text": ""}),
        ("function_calling", {"tool_calls": []}),
        ("image_prompt_generation", {"prompt": "Refund order A-1042"}),
        ("moa_response_generation", {}),
        ("something_new", {}),
    ],
)
def test_open_webui_s_tasks_are_answered_in_json(task: str, told: Any) -> None:
    asked = history("USER: Refund order A-1042", "ASSISTANT: I need an approval.")
    assert json.loads(task_answer(task, asked)) == told


def test_an_emoji_is_one() -> None:
    assert task_answer("emoji_generation", request("An emoji for: hello")) == "💬"


def test_a_title_in_words_where_no_json_is_asked_for() -> None:
    asked = request("Refund order A-1042", "Now find a title for this conversation.")
    assert task_answer("title", asked) == "Refund order A-1042"
    assert task_answer("1", asked) == "Refund order A-1042"


def test_lists_are_json_whatever_the_prompt_says() -> None:
    assert json.loads(task_answer("tags", request("tags please"))) == {"tags": []}


def test_a_text_format_asks_for_json_too() -> None:
    asked = request("a", "title please", text={"format": {"type": "json_object"}})
    assert json.loads(task_answer("title", asked)) == {"title": "a"}


@pytest.mark.parametrize(
    ("turn", "title"),
    [
        ("USER: a\nlonger   question", "a longer question"),
        ('USER: """quoted"""', "quoted"),
        ("USER: word " + "x" * 80, "word…"),
        ("USER: " + "x" * 80, "x" * LONGEST_TITLE + "…"),
        ("USER: «Äpfel» \ud800", "«Äpfel» \ud800"),
        ('USER: ""', NO_TITLE),
        ("ASSISTANT: nobody asked", NO_TITLE),
    ],
)
def test_the_title_is_the_beginning_of_what_was_said_first(turn: str, title: str) -> None:
    asked = history(turn, "ASSISTANT: yes", "USER: more")
    if title == NO_TITLE and turn.startswith("ASSISTANT"):
        asked = history(turn)
    assert json.loads(task_answer("title_generation", asked)) == {"title": title}


def test_a_conversation_that_nobody_began_has_a_title_all_the_same() -> None:
    empty = parse_create({"model": "m", "input": []})
    assert task_answer("title_generation", empty) == NO_TITLE


def test_a_huge_prompt_is_read_in_no_time() -> None:
    """The pattern must not go back and forth over what clients send."""
    asked = history("USER: " + "A " * 200_000 + "\n" * 200_000)
    assert len(task_answer("title_generation", asked)) < 100
