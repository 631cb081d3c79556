"""C30: a node is silent for longer than a proxy in front of the gateway waits for a byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import MessagesState

from gateway import Graph
from tests.integration.api import texts
from tests.integration.listening import listening
from tests.integration.small_graphs import chain
from tests.openresponses import check_stream, read_frames

SILENCE = 0.8  # seconds that the proxy waits
COMMENT = b": keep-alive\n\n"


class ImpatientProxy:
    """Closes what brings no byte for `SILENCE`. `waited` is set once it passed on so many comments
    that without them it would have closed."""

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        self.comments = 0
        self.waited = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, upstream = await asyncio.open_connection(self._target.hostname, self._target.port)
        asking = asyncio.create_task(_copy(reader, upstream))
        with suppress(TimeoutError, OSError):
            while some := await asyncio.wait_for(there.read(65536), SILENCE):
                writer.write(some)
                self.comments += some.count(COMMENT)
                if self.comments >= 10:
                    self.waited.set()
        self.waited.set()  # a node that nobody hears any more may end
        asking.cancel()
        for one in (writer, upstream):
            one.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while some := await reader.read(65536):
        writer.write(some)


@asynccontextmanager
async def behind_a_proxy(database_url: str, keepalive: str) -> AsyncIterator[str]:
    """The address of a gateway whose only model waits for the proxy's patience to be over."""
    proxies: list[ImpatientProxy] = []

    async def silent(state: MessagesState) -> dict[str, Any]:
        await proxies[0].waited.wait()
        return {"messages": [AIMessage("here I am")]}

    graphs = {"silent": Graph(chain(silent))}
    async with listening(database_url, graphs, KEEPALIVE=keepalive) as url:
        proxies.append(ImpatientProxy(url))
        server = await asyncio.start_server(proxies[0], "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/responses"


async def test_C30_a_silent_node_is_waited_for(database_url: str) -> None:
    body = {"model": "silent", "input": "hi", "stream": True}
    async with behind_a_proxy(database_url, "100ms") as url, httpx.AsyncClient() as http:
        answer = await http.post(url, json=body, timeout=30)
    assert answer.content.count(COMMENT) >= 10
    assert texts(check_stream(read_frames(answer.content))) == ["here I am"]


async def test_without_comments_the_proxy_does_close(database_url: str) -> None:
    body = {"model": "silent", "input": "hi", "stream": True}
    async with behind_a_proxy(database_url, "1h") as url, httpx.AsyncClient() as http:
        with pytest.raises(httpx.RemoteProtocolError):
            await http.post(url, json=body, timeout=30)
