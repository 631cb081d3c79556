"""C34: a reader that does not read holds nobody up, and memory stays bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.graph import MessagesState

from gateway import Graph
from gateway.runs.execution import FRAMES_AHEAD, MOST_AHEAD
from tests.integration.api import texts
from tests.integration.small_graphs import chain
from tests.integration.test_leases import free, start, worker
from tests.openresponses import check_stream, read_frames

TOKENS = 3000
STRUCTURE = 10
"""Frames that begin and end the response, its item and its part."""


class Talkative(BaseChatModel):
    """Says much, as fast as it may; with `hasty`, without letting anybody else run."""

    hasty: bool = False
    tokens: int = TOKENS

    @property
    def _llm_type(self) -> str:
        return "talkative"

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("x " * self.tokens))])

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        for number in range(self.tokens):
            yield ChatGenerationChunk(message=AIMessageChunk(f"{number} ", id="one"))

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._stream():
            yield chunk
            if not self.hasty:
                await asyncio.sleep(0)


async def talk(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await Talkative().ainvoke("")]}


async def talk_hastily(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await Talkative(hasty=True).ainvoke("")]}


async def talk_hastily_and_long(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await Talkative(hasty=True, tokens=2 * MOST_AHEAD).ainvoke("")]}


def talk_in_a_thread(state: MessagesState) -> dict[str, Any]:
    return {"messages": [Talkative().invoke("")]}


@pytest.mark.parametrize("node", [talk, talk_in_a_thread])
async def test_C34_a_reader_that_stops_holds_nobody_up_and_gets_the_rest_as_text(
    database_url: str, node: Any
) -> None:
    graphs = {"talk": Graph(chain(node), live=True)}
    async with worker(database_url, free("one"), graphs=graphs) as one:
        reply = await start(one, "talk", "hi", stream=True)
        frames = reply.frames()
        read = []
        while len(read) < 20:
            read += await anext(frames)
        whole = json.loads(await reply.result())  # the run ends while nobody reads
        rest = [frame async for some in frames for frame in some]
        assert len(rest) <= FRAMES_AHEAD + STRUCTURE
        assert check_stream(read_frames(read + rest)) == whole
        assert texts(whole) == ["".join(f"{number} " for number in range(TOKENS))]


async def test_a_reader_that_waits_gets_every_delta_however_fast_the_graph_is(
    database_url: str,
) -> None:
    """It is not slow: it was given no time to read."""
    assert TOKENS < MOST_AHEAD
    graphs = {"talk": Graph(chain(talk_hastily), live=True)}
    async with worker(database_url, free("one"), graphs=graphs) as one:
        reply = await start(one, "talk", "hi", stream=True)
        events = read_frames([frame async for some in reply.frames() for frame in some])
        check_stream(events)
        deltas = [event for event in events if event["type"] == "response.output_text.delta"]
        assert [event["delta"] for event in deltas] == [f"{number} " for number in range(TOKENS)]


async def test_C34_a_graph_that_says_all_at_once_is_bounded(
    database_url: str,
) -> None:
    graphs = {"talk": Graph(chain(talk_hastily_and_long), live=True)}
    async with worker(database_url, free("one"), graphs=graphs) as one:
        reply = await start(one, "talk", "hi", stream=True)
        frames = [frame async for some in reply.frames() for frame in some]
        assert len(frames) <= MOST_AHEAD + STRUCTURE
        assert texts(check_stream(read_frames(frames))) == texts(json.loads(await reply.result()))


async def test_C34_a_reader_that_comes_back_reads_on_as_it_is_said(database_url: str) -> None:
    graphs = {"talk": Graph(chain(talk), live=True)}
    async with worker(database_url, free("one"), graphs=graphs) as one:
        reply = await start(one, "talk", "hi", stream=True)
        read = []
        frames = reply.frames()
        while len(read) < 200:
            read += await anext(frames)
        for _ in range(300):  # it falls behind: the graph says a token in a turn or two
            await asyncio.sleep(0)
        rest = [some async for some in frames]
        assert len(rest) > 5, "not all at once, at the end"
        read += [frame for some in rest for frame in some]
        assert texts(check_stream(read_frames(read))) == texts(json.loads(await reply.result()))


async def test_C34_a_reader_that_left_takes_nothing_with_it(database_url: str) -> None:
    graphs = {"talk": Graph(chain(talk), live=True)}
    async with worker(database_url, free("one"), graphs=graphs) as one:
        reply = await start(one, "talk", "hi", stream=True)
        frames = reply.frames()
        read: list[bytes] = []
        while len(read) < 20:
            read += await anext(frames)
        reply.leave()
        assert len(texts(json.loads(await reply.result()))[0].split()) == TOKENS
