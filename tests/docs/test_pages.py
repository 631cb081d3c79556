"""Links lead somewhere, generated parts are fresh, and the how-to's graphs can be served."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from gateway import Graph, RunSettings
from gateway.human.run import CurrentRun
from gateway.runs.catalog import load_graphs, serve_graphs
from gateway.runs.drive import drive
from gateway.runs.events import Paused, RunEvent, TextDelta
from gateway.runs.graph import ServedGraph
from gateway.runs.outset import Outset
from graphs import GRAPHS
from tests.docs import lifecycle
from tests.docs.pages import DOCS, README, anchors, blocks, links, pages, rows, section

HOW_TO = DOCS / "how-to" / "serve-your-graph.md"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_links_lead_to_a_file_and_to_a_heading_in_it(page: Path) -> None:
    for link in links(page):
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_index_links_to_every_page() -> None:
    index = DOCS / "README.md"
    linked = {(DOCS / link).resolve() for link in links(index)}
    assert linked == {page.resolve() for page in DOCS.rglob("*.md")} - {index.resolve()}


def test_the_readme_is_short_and_has_a_limit_beside_every_promise() -> None:
    text = README.read_text()
    assert len(text.splitlines()) < 120
    assert text.count("*Limit:*") == text.count("*What is not there yet:*") == 8


def test_the_diagram_of_a_run_s_states_is_that_of_the_table() -> None:
    assert lifecycle.drawn() == lifecycle.diagram()


def test_every_option_of_a_graph_has_its_row() -> None:
    documented = [
        (row[0], row[1].replace('"', "'")) for row in rows(section(HOW_TO, "All options"))
    ]
    assert documented == [
        (field.name, "" if field.default is dataclasses.MISSING else repr(field.default))
        for field in dataclasses.fields(Graph)
    ]


def test_every_graph_that_is_served_has_its_row() -> None:
    page = DOCS / "graphs" / "README.md"
    documented = {name.strip("` ") for row in rows(page.read_text()) for name in row[0].split(",")}
    assert documented == GRAPHS.keys() | {"assistant"}


def test_every_run_setting_is_named() -> None:
    text = section(HOW_TO, "What the request asked for")
    assert all(f"`{field.name}`" in text for field in dataclasses.fields(RunSettings))


async def test_the_how_to_s_graphs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    served: dict[str, ServedGraph] = {}
    for number, block in enumerate(blocks(HOW_TO, "python")):
        (tmp_path / f"how_to_{number}.py").write_text(block.code)
        served |= await serve_graphs(load_graphs(f"how_to_{number}:GRAPHS"))
    assert text(await events(served["sum"], "1 2 3")) == "The sum is 6."
    assert text(await events(served["settings"], "x")) == (
        "run run_docs, tools: none, at most 1000 tokens"
    )
    assert text(await events(served["search"], "x")) == "2 links, in a plain tone"
    *_, paused = await events(served["shipping"], "Ship it")
    assert isinstance(paused, Paused)
    assert paused.interrupts[0].value == {"question": "Ship it?", "to": "Berlin"}


async def events(served: ServedGraph, said: str) -> list[RunEvent]:
    current = CurrentRun("run_docs", "resp_docs", "tenant", "subject", RunSettings())
    outset = Outset(messages=[AIMessage("Hello.", id="1"), HumanMessage(said, id="2")])
    return [event async for event in drive(served, outset, current)]


def text(happened: list[RunEvent]) -> str:
    return "".join(event.text for event in happened if isinstance(event, TextDelta))
