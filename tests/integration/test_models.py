"""`/v1/models`: a light list that any client reads, and a page for each graph."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from openai.types import Model
from pydantic import BaseModel, ConfigDict, Field

from gateway import Graph, current_settings
from graphs import GRAPHS as DEMOS
from tests.integration.api import Api, calls, output, serving, texts
from tests.integration.small_graphs import ask, chain


class Search(BaseModel):
    """How to look."""

    depth: int = Field(2, ge=1, le=5, description="How many links to follow.")
    tone: Literal["plain", "formal"] = "plain"


class Needy(BaseModel):
    model_config = ConfigDict(extra="forbid")

    account: str


@dataclass
class SearchContext:
    depth: int
    tone: str


class SearchDict(TypedDict):
    depth: int
    tone: str


async def tell(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(repr(current_settings(Search)))]}


async def tell_context(state: MessagesState, runtime: Runtime[Any]) -> dict[str, Any]:
    return {"messages": [AIMessage(repr(runtime.context))]}


async def tell_account(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(current_settings(Needy).account)]}


def with_context(schema: type[Any]) -> StateGraph[Any, Any, Any, Any]:
    graph: Any = StateGraph(MessagesState, context_schema=schema)
    inner: Any = StateGraph(MessagesState, context_schema=schema)
    inner.add_node(tell_context)
    inner.add_edge(START, "tell_context")
    graph.add_node("inner", inner.compile())
    graph.add_edge(START, "inner")
    graph.add_edge("inner", END)
    return graph


GRAPHS = {
    **DEMOS,
    "search": Graph(chain(tell), description="Looks things up.", settings=Search),
    "ask-and-search": Graph(chain(ask, tell), settings=Search),
    "needy": Graph(chain(tell_account), settings=Needy),
    "model-context": Graph(with_context(Search), settings=Search),
    "dataclass-context": Graph(with_context(SearchContext), settings=Search),
    "dict-context": Graph(with_context(SearchDict), settings=Search),
}


@pytest.fixture(scope="module")
async def api(
    anyio_backend: tuple[str, dict[str, bool]], module_database_url: str
) -> AsyncIterator[Api]:
    async with serving(module_database_url, GRAPHS) as served:
        yield served


async def test_the_list_is_light_and_standard(api: Api) -> None:
    listed = (await api.http.get("/v1/models")).json()

    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == list(GRAPHS)
    for model in listed["data"]:
        Model.model_validate(model, strict=True)
        assert model.keys() == {"id", "object", "created", "owned_by", "fermata"}
        assert model["fermata"].keys() == {"description", "features", "interrupt_name"}


async def test_a_page_has_description_settings_and_topology(api: Api) -> None:
    page = (await api.http.get("/v1/models/search")).json()

    Model.model_validate(page, strict=True)
    told = page["fermata"]
    assert told["description"] == "Looks things up."
    assert "settings" in told["features"]
    assert told["settings"] == Search.model_json_schema()
    assert told["settings"]["properties"]["depth"]["maximum"] == 5
    assert told["topology"]["format"] == "mermaid"
    assert "__start__ --> tell;" in told["topology"]["text"]


async def test_the_refunds_page_shows_that_a_person_stands_before_the_money(api: Api) -> None:
    told = (await api.http.get("/v1/models/interruptible-approval")).json()["fermata"]

    assert told["settings"] is None
    assert "settings" not in told["features"]
    edges = {line.strip() for line in told["topology"]["text"].splitlines() if ">" in line}
    assert {
        "announce_review --> review_refund;",
        "review_refund -.-> execute_refund;",
        "review_refund -.-> __end__;",
        "execute_refund --> notify_customer;",
    } <= edges


async def test_a_page_opens_subgraphs(api: Api) -> None:
    told = (await api.http.get("/v1/models/dict-context")).json()["fermata"]

    assert "subgraph inner" in told["topology"]["text"]


@pytest.mark.parametrize("stream", [False, True])
async def test_settings_arrive_typed(api: Api, stream: bool) -> None:
    metadata = {"depth": "4", "tone": "formal", "chat_id": "17"}
    told = await api.told("search", "hi", stream=stream, metadata=metadata)

    assert texts(told) == ["Search(depth=4, tone='formal')"]
    assert told["metadata"] == metadata


async def test_what_is_not_sent_has_its_default(api: Api) -> None:
    assert texts(await api.create("search", "hi")) == ["Search(depth=2, tone='plain')"]


@pytest.mark.parametrize(
    ("model", "context"),
    [
        ("model-context", "Search(depth=3, tone='plain')"),
        ("dataclass-context", "SearchContext(depth=3, tone='plain')"),
        ("dict-context", "{'depth': 3, 'tone': 'plain'}"),
    ],
)
async def test_a_graph_with_a_context_schema_finds_them_there(
    api: Api, model: str, context: str
) -> None:
    assert texts(await api.create(model, "hi", metadata={"depth": "3"})) == [context]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("model", "metadata", "param", "code"),
    [
        ("search", {"depth": "six"}, "metadata.depth", "invalid_value"),
        ("search", {"depth": "6"}, "metadata.depth", "invalid_value"),
        ("search", {"tone": "rude"}, "metadata.tone", "invalid_value"),
        ("needy", {}, "metadata.account", "missing_required_parameter"),
        ("needy", {"account": "7", "x": "y"}, "metadata.x", "invalid_value"),
    ],
)
async def test_a_wrong_setting_is_refused_before_anything_runs(
    api: Api, model: str, metadata: dict[str, str], param: str, code: str, stream: bool
) -> None:
    before = await api.sql("SELECT count(*) FROM fermata.responses")
    status, error = await api.refused(
        {"model": model, "input": "hi", "metadata": metadata, "stream": stream}
    )

    assert (status, error["param"], error["code"]) == (400, param, code)
    assert await api.sql("SELECT count(*) FROM fermata.responses") == before


async def test_a_resumed_run_keeps_the_settings_it_was_started_with(api: Api) -> None:
    paused = await api.create("ask-and-search", "hi", metadata={"depth": "5"})
    (call,) = calls(paused)
    done = await api.create(
        "ask-and-search",
        [output(call)],
        previous_response_id=paused["id"],
        metadata={"depth": "1"},
    )

    assert texts(done)[-1] == "Search(depth=5, tone='plain')"
