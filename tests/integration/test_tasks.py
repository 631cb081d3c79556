"""Titles, tags and follow-ups of chat front ends never start a run, and touch no question."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.api import Api, calls, envelope, output, serving, texts
from tests.integration.small_graphs import GRAPHS
from tests.openresponses import check_stream, read_frames, validate_resource

RECORDED = json.loads((Path(__file__).parents[1] / "cases" / "client_requests.json").read_text())
OPEN_WEBUI = [one for one in RECORDED if one["client"].startswith("Open WebUI")]
TASK = {"X-Gw-Task": "title_generation"}
PROMPT = 'JSON please: {"title": "…"}\n<chat_history>\nUSER: Refund A-1042\n</chat_history>'
TITLE = '{"title":"Refund A-1042"}'


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with serving(database_url, GRAPHS, TASK_HEADER="x-gw-task") as served:
        yield served


async def test_a_task_is_answered_in_the_asked_form_and_leaves_nothing(api: Api) -> None:
    body: Any = {"model": "ask", "input": PROMPT}
    answer = await api.post(body, headers=TASK)
    validate_resource(answer.json())
    assert texts(answer.json()) == [TITLE]
    assert not answer.json()["store"]
    streamed = await api.post({**body, "stream": True}, headers=TASK)
    assert texts(check_stream(read_frames(streamed.content))) == [TITLE]
    background = await api.post({**body, "background": True}, headers=TASK)
    assert texts(background.json()) == [TITLE]
    chat = {"model": "ask", "messages": [{"role": "user", "content": PROMPT}]}
    completion = await api.http.post("/v1/chat/completions", json=chat, headers=TASK)
    assert completion.json()["choices"][0]["message"]["content"] == TITLE
    chunks = await api.http.post(
        "/v1/chat/completions", json={**chat, "stream": True}, headers=TASK
    )
    assert b"Refund A-1042" in chunks.content
    assert await api.sql("SELECT id FROM fermata.responses") == []
    assert await api.sql("SELECT id FROM fermata.runs") == []


async def test_a_task_answers_no_question(api: Api) -> None:
    """A front end may send the whole conversation with its task: nothing of it is an answer."""
    asked = await api.create("ask", "hello")
    (call,) = calls(asked)
    body = {"model": "ask", "previous_response_id": asked["id"], "input": [output(call)]}
    answer = await api.post(body, headers={"X-Gw-Task": "tags_generation"})
    assert texts(answer.json()) == ['{"tags":[]}']
    through = await api.create("ask", [output(call)], previous_response_id=asked["id"])
    assert texts(through) == ["answer: 'yes'"]


async def test_open_webui_s_recorded_turns_are_none(api: Api) -> None:
    assert len(OPEN_WEBUI) > 4
    for recorded in OPEN_WEBUI:
        assert recorded["headers"]["x-gw-task"] == ""
        body = {**recorded["body"], "model": "remember"}
        answer = await api.post(body, headers=recorded["headers"])
        assert answer.status_code == 200
    (row,) = await api.sql("SELECT count(*) AS n FROM fermata.responses")
    assert row["n"] == len(OPEN_WEBUI)


async def test_a_header_that_was_not_filled_in_is_a_real_turn(api: Api) -> None:
    answer = await api.post({"model": "usage", "input": "x"}, headers={"X-Gw-Task": "{{TASK}}"})
    assert texts(answer.json()) == ["counted"]


async def test_an_unknown_model_has_no_tasks_either(api: Api) -> None:
    answer = await api.post({"model": "nobody", "input": "x"}, headers=TASK)
    assert envelope(answer)["code"] == "model_not_found"


async def test_without_the_setting_the_header_means_nothing(database_url: str) -> None:
    async with serving(database_url, GRAPHS) as api:
        answer = await api.post({"model": "usage", "input": "x"}, headers=TASK)
        assert texts(answer.json()) == ["counted"]
