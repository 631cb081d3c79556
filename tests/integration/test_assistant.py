"""The assistant through the unchanged SDK, with another Fermata's `echo` as its model."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import psycopg
import pytest
from openai import AsyncOpenAI, BadRequestError
from openai.types.responses import Response, ResponseFunctionToolCall
from psycopg.rows import dict_row

from gateway import Graph
from gateway.runs.catalog import serve_graphs
from gateway.store.keys import create_key
from graphs import assistant, echo
from graphs.assistant import Upstream
from tests.integration.listening import listening, sdk
from tests.integration.transcripts import play, transcript

MAIL = {"to": "Ann", "subject": "Lunch", "text": "At noon?"}


@pytest.fixture(scope="module")
async def upstream(
    anyio_backend: tuple[str, dict[str, bool]], module_database_url: str
) -> AsyncIterator[Upstream]:
    """A gateway that serves `echo` to those who have its key."""
    connect = psycopg.AsyncConnection.connect(
        module_database_url, autocommit=True, row_factory=dict_row
    )
    async with await connect as conn:
        _, key = await create_key(conn, "models", "assistant", ())
    graphs = {"echo": Graph(echo.build())}
    async with listening(module_database_url, graphs, AUTH="keys") as url:
        yield Upstream(url, key, "echo")


@asynccontextmanager
async def serving(database_url: str, upstream: Upstream) -> AsyncIterator[AsyncOpenAI]:
    """As `graphs.GRAPHS` has it, when the environment names this upstream."""
    async with httpx.AsyncClient() as http:
        build = partial(assistant.build, upstream, http)
        graphs = {"assistant": Graph(build, interrupt_name="review_mail")}
        async with listening(database_url, graphs) as url, sdk(url) as client:
            yield client


@pytest.fixture
async def client(database_url: str, upstream: Upstream) -> AsyncIterator[AsyncOpenAI]:
    async with serving(database_url, upstream) as client:
        yield client


async def ask(client: AsyncOpenAI, text: str = "Could you send a mail to Ann?") -> Response:
    return await client.responses.create(model="assistant", input=text)


async def answer(client: AsyncOpenAI, paused: Response, output: str) -> Response:
    given: Any = [
        {"type": "function_call_output", "call_id": the_call(paused).call_id, "output": output}
    ]
    return await client.responses.create(
        model="assistant", previous_response_id=paused.id, input=given
    )


def the_call(paused: Response) -> ResponseFunctionToolCall:
    (call,) = [item for item in paused.output if item.type == "function_call"]
    return call


def outbox(database_url: str) -> list[tuple[str, str, str]]:
    """What was sent; nothing if the table was never made."""
    with psycopg.connect(database_url) as connection:
        made = connection.execute("SELECT to_regclass('assistant_demo.outbox')").fetchone()
        if made == (None,):
            return []
        rows = connection.execute("SELECT recipient, subject, text FROM assistant_demo.outbox")
        return [(to, subject, text) for to, subject, text in rows]


async def test_transcript(client: AsyncOpenAI, database_url: str) -> None:
    await play(client, "assistant", transcript(assistant))
    assert [to for to, _, _ in outbox(database_url)] == ["Ben"]


async def test_a_tool_without_review_runs_at_once(client: AsyncOpenAI) -> None:
    done = await ask(client, "Who is that contact, Ann?")
    assert done.output_text == "find_contact says: ann@example.org"


async def test_the_model_s_words_come_as_it_says_them_with_what_they_cost(
    client: AsyncOpenAI,
) -> None:
    stream = await client.responses.create(
        model="assistant", input="Good morning to you all", stream=True
    )
    events = [event async for event in stream]

    deltas = [one.delta for one in events if one.type == "response.output_text.delta"]
    assert deltas == ["Good ", "morning ", "to ", "you ", "all"]
    assert events[-1].type == "response.completed"
    assert events[-1].response.usage is not None
    assert events[-1].response.usage.output_tokens == 5


async def test_an_edited_mail_is_sent_once_and_as_edited(
    client: AsyncOpenAI, database_url: str
) -> None:
    paused = await ask(client)
    assert outbox(database_url) == []
    edit = json.dumps({"type": "edit", "edited_action": {"name": "send_mail", "args": MAIL}})
    done = await answer(client, paused, edit)
    again = await answer(client, paused, edit)

    assert done.output_text.endswith("The mail to Ann is on its way.")
    assert again.id == done.id
    assert outbox(database_url) == [tuple(MAIL.values())]


@pytest.mark.parametrize("refused", ["sure", '{"type": "respond", "message": "Later."}'])
async def test_what_is_no_decision_is_refused(
    client: AsyncOpenAI, database_url: str, refused: str
) -> None:
    paused = await ask(client)
    with pytest.raises(BadRequestError) as error:
        await answer(client, paused, refused)

    assert error.value.code == "invalid_interrupt_answer"
    assert outbox(database_url) == []
    await answer(client, paused, "yes")
    assert len(outbox(database_url)) == 1


async def test_a_model_that_refuses_us_fails_the_run_without_telling_the_key(
    database_url: str, upstream: Upstream
) -> None:
    wrong = Upstream(upstream.base_url, "sk-of-somebody-else", "echo")
    assert "sk-of-somebody-else" not in repr(wrong)
    async with serving(database_url, wrong) as client:
        failed = await ask(client)

    assert failed.status == "failed"
    assert failed.error is not None
    assert failed.error.message.startswith("The graph failed in node 'model' with")
    assert failed.error.message.endswith("AuthenticationError.")  # no more: it may hold the key


SET = {"OPENAI_BASE_URL": "http://localhost/v1", "OPENAI_API_KEY": "key", "OPENAI_MODEL": "echo"}


async def test_it_is_served_when_all_variables_are_set() -> None:
    assert Upstream.of(SET) == Upstream("http://localhost/v1", "key", "echo")
    assert (await serve_graphs(assistant.served(SET))).keys() == {"assistant"}


def test_it_is_not_listed_without_its_extra(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "langchain_openai", None)  # as if it were not installed
    assert assistant.served(SET) == {}
    assert "fermata-gateway[assistant]" in caplog.text


@pytest.mark.parametrize("missing", SET)
def test_it_is_not_listed_when_one_is_missing(missing: str) -> None:
    assert assistant.served({**SET, missing: ""}) == {}
    assert assistant.served({name: SET[name] for name in SET if name != missing}) == {}
