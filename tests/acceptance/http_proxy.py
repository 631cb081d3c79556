"""Stands between a client and a gateway, and holds what the gateway says from a given word on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from anyio.from_thread import BlockingPortal, start_blocking_portal

PATIENCE = 30.0  # seconds


class HttpProxy:
    """`url` leads to `target`. What comes from there is passed on up to `word`, and no further,
    until `cut` drops the connections."""

    def __init__(self, target: str, word: bytes, portal: BlockingPortal) -> None:
        self.target = urlsplit(target)
        self.word = word
        self.url = ""
        self.held = threading.Event()
        self._portal = portal
        self._connections: set[asyncio.Task[None]] = set()

    def wait(self) -> None:
        """Until the word is held back."""
        assert self.held.wait(PATIENCE), f"the gateway never said {self.word!r}"

    def cut(self) -> None:
        self._portal.call(self._cut)

    async def serve(self) -> asyncio.Server:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    async def close(self, server: asyncio.Server) -> None:
        server.close()
        await self._cut()

    async def _cut(self) -> None:
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        upstream = None
        try:
            there, upstream = await asyncio.open_connection(self.target.hostname, self.target.port)
            asking = asyncio.create_task(_copy(reader, upstream))
            await self._answer(there, writer)
            asking.cancel()
        except (OSError, asyncio.CancelledError):
            pass  # either end is gone, or the test wants it so
        finally:
            self._connections.discard(task)
            for one in (writer, upstream):
                if one is not None:
                    one.transport.abort()

    async def _answer(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passed = b""
        while some := await there.read(65536):
            passed += some
            if self.word in passed:
                kept = len(passed) - passed.index(self.word)
                writer.write(some[: max(0, len(some) - kept)])
                self.held.set()
                await asyncio.Event().wait()  # until it is cut
            writer.write(some)
            await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while some := await reader.read(65536):
            writer.write(some)
            await writer.drain()


@contextmanager
def holding_back(word: bytes, target: str) -> Iterator[HttpProxy]:
    """A running proxy before the gateway at `target` that keeps `word` and what follows."""
    with start_blocking_portal() as portal:
        proxy = HttpProxy(target, word, portal)
        server = portal.call(proxy.serve)
        try:
            yield proxy
        finally:
            portal.call(proxy.close, server)
