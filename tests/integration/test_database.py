"""`database()`: the gateway's PostgreSQL, for graphs that keep tables of their own in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import MessagesState

from gateway import Graph, database
from tests.integration.api import Api, serving, texts
from tests.integration.small_graphs import chain, last_text


async def note(state: MessagesState) -> dict[str, Any]:
    """Note the text; "raise" in it raises within the transaction."""
    text = last_text(state)
    async with database().transaction() as conn:
        await conn.execute("CREATE SCHEMA IF NOT EXISTS notes")
        await conn.execute("CREATE TABLE IF NOT EXISTS notes.notes (text text)")
        await conn.execute("INSERT INTO notes.notes VALUES (%s)", (text,))
        if "raise" in text:
            raise ValueError(text)
    return {}


@tool
async def count() -> int:
    """How many notes there are."""
    async with database().connection() as conn:
        row = await (await conn.execute("SELECT count(*) AS n FROM notes.notes")).fetchone()
    assert row is not None
    return int(row["n"])


async def tell(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"{await count.ainvoke({})} noted")]}


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with serving(database_url, {"note": Graph(chain(note, tell))}) as served:
        yield served


async def test_nodes_and_tools_have_the_gateway_s_database(api: Api) -> None:
    assert texts(await api.create("note", "milk")) == ["1 noted"]
    assert texts(await api.create("note", "bread")) == ["2 noted"]
    assert await api.sql("SELECT text FROM notes.notes") == [{"text": "milk"}, {"text": "bread"}]


async def test_what_raises_within_a_transaction_leaves_nothing(api: Api) -> None:
    await api.create("note", "milk")
    answer = await api.post({"model": "note", "input": "raise"})
    assert answer.json()["error"]["code"] == "run_failed"
    assert await api.sql("SELECT text FROM notes.notes") == [{"text": "milk"}]


def test_outside_of_a_run_there_is_no_database() -> None:
    with pytest.raises(LookupError):
        database()
