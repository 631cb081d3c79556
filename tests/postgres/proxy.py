"""A proxy between a gateway and its database that stops at named points, cuts, and goes away.

It runs in a thread of its own, so that a test can kill a server while the proxy holds what that
server sent:

    with proxy.trap("end_resume", COMMITTED) as trap:
        answer = pool.submit(approve, …)
        trap.wait()             # the ending is committed, the gateway does not know it yet
        server.kill9()

A trap springs once, on the first connection that comes by; what it holds goes on with `release`, is
lost with `cut`, and is dropped when the gateway's end of the connection closes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import quote

from anyio.from_thread import BlockingPortal, start_blocking_portal
from psycopg.conninfo import conninfo_to_dict

from tests.postgres.wire import (
    CANCEL_REQUEST,
    Message,
    code_of,
    connect,
    name_of,
    read,
    read_first,
    statement,
)

BEFORE = "before it is sent"
COMMIT = "before its transaction commits"
COMMITTED = "after its transaction committed, before the gateway hears of it"

PATIENCE = 30.0  # seconds until a point that nobody reaches fails the test


class Cut(Exception):
    """The connection is to be closed."""


@dataclass(eq=False)
class Trap:
    """One point: the gateway's statement `name`, at the moment `when`."""

    name: str
    when: str
    portal: BlockingPortal
    hit: threading.Event = field(default_factory=threading.Event)
    _decided: asyncio.Future[bool] | None = None

    def wait(self) -> None:
        """Until the point is reached."""
        assert self.hit.wait(PATIENCE), f"nothing came to {self.name}, {self.when}"

    def release(self) -> None:
        """What is held goes on."""
        self.portal.call(self._decide, True)

    def cut(self) -> None:
        """What is held is lost, and its connection."""
        self.portal.call(self._decide, False)

    def _decide(self, on: bool) -> None:
        if self._decided is not None and not self._decided.done():
            self._decided.set_result(on)

    async def spring(self, gone: asyncio.Event) -> None:
        """Hold the caller until the test decides or the gateway is `gone`."""
        self._decided = asyncio.get_running_loop().create_future()
        self.hit.set()
        leaving = asyncio.ensure_future(gone.wait())
        await asyncio.wait((self._decided, leaving), return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        if not self._decided.done() or not self._decided.result():
            raise Cut


class DatabaseProxy:
    """Passes everything on to the server of `target`; `url` is what gateways are given."""

    def __init__(self, target: str, portal: BlockingPortal) -> None:
        self.target = target
        self.url = ""
        self._portal = portal
        self._traps: list[Trap] = []
        self._sessions: set[_Session] = set()
        self._away = False

    @contextmanager
    def trap(self, name: str, when: str) -> Iterator[Trap]:
        """A point at which the first connection that reaches it is held; cut at the block's end."""
        trap = Trap(name, when, self._portal)
        self._traps.append(trap)
        try:
            yield trap
        finally:
            if trap in self._traps:
                self._traps.remove(trap)
            trap.cut()

    @contextmanager
    def away(self) -> Iterator[None]:
        """The database is not there: connections break, and new ones are refused."""
        self._away = True
        self.cut()
        try:
            yield
        finally:
            self._away = False

    def cut(self) -> None:
        """Break every connection; a transaction that has not committed is lost."""
        self._portal.call(self._cut)

    def freeze(self) -> None:
        """Pass nothing on any more, in silence, until `thaw`."""
        self._portal.call(self._flow, False)

    def thaw(self) -> None:
        """Pass on what came meanwhile."""
        self._portal.call(self._flow, True)

    async def serve(self) -> asyncio.Server:
        server = await asyncio.start_server(self._session, "127.0.0.1", 0)
        self.url = moved(self.target, server.sockets[0].getsockname()[1])
        self.flowing = asyncio.Event()
        self.flowing.set()
        return server

    async def close(self, server: asyncio.Server) -> None:
        server.close()
        await self._cut()
        with suppress(TimeoutError):
            await asyncio.wait_for(server.wait_closed(), 5)

    async def _session(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._away:
            writer.close()
            return
        session = _Session(self)
        self._sessions.add(session)
        try:
            await session.run(reader, writer)
        finally:
            self._sessions.discard(session)

    async def _cut(self) -> None:
        for session in list(self._sessions):
            session.stop()
        while self._sessions:  # noqa: ASYNC110  # moments; nobody tells
            await asyncio.sleep(0.001)

    def _flow(self, on: bool) -> None:
        if on:
            self.flowing.set()
        else:
            self.flowing.clear()

    def sprung(self, name: str, when: str) -> Trap | None:
        """The trap for this point, if there is one: nobody else gets it."""
        for trap in self._traps:
            if (trap.name, trap.when) == (name, when):
                self._traps.remove(trap)
                return trap
        return None

    def put_back(self, trap: Trap) -> None:
        """Its transaction was rolled back: the point is still to be reached."""
        self._traps.append(trap)


@contextmanager
def proxied(target: str) -> Iterator[DatabaseProxy]:
    """A running proxy in front of `target`."""
    with start_blocking_portal() as portal:
        proxy = DatabaseProxy(target, portal)
        server = portal.call(proxy.serve)
        try:
            yield proxy
        finally:
            portal.call(proxy.close, server)


class _Session:
    """One connection of a gateway."""

    def __init__(self, proxy: DatabaseProxy) -> None:
        self._proxy = proxy
        self._gone = asyncio.Event()
        self._in_transaction = False
        self._armed: list[Trap] = []  # their statements are in the transaction under way
        self._task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._task = asyncio.current_task()
        upstream = None
        try:
            first = await read_first(reader, writer)
            upstream_reader, upstream = await connect(self._proxy.target)
            upstream.write(bytes(first))
            if code_of(first) == CANCEL_REQUEST:
                await upstream_reader.read()
                return
            await self._pump(reader, writer, upstream_reader, upstream)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # either end is gone, or the test wants it so
        finally:
            for one in (writer, upstream):
                if one is not None:
                    one.transport.abort()

    async def _pump(
        self,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        sent: asyncio.Queue[Message | None] = asyncio.Queue()
        pumps = [
            asyncio.create_task(self._listen(client, sent)),
            asyncio.create_task(self._up(sent, to_server)),
            asyncio.create_task(self._down(server, to_client)),
        ]
        try:
            # The first end that closes, or the first cut, ends all.
            await asyncio.wait(pumps[1:], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _listen(
        self, client: asyncio.StreamReader, sent: asyncio.Queue[Message | None]
    ) -> None:
        """Reads ahead, so that the end of a killed gateway is seen while a trap holds what it
        sent."""
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                sent.put_nowait(await read(client))
        self._gone.set()
        sent.put_nowait(None)

    async def _up(
        self, sent: asyncio.Queue[Message | None], to_server: asyncio.StreamWriter
    ) -> None:
        while (message := await sent.get()) is not None:
            text = statement(message)
            if text is not None:
                await self._before(name_of(text))
            await self._proxy.flowing.wait()
            to_server.write(bytes(message))
            await to_server.drain()

    async def _before(self, name: str) -> None:
        if trap := self._proxy.sprung(name, BEFORE):
            await trap.spring(self._gone)
        for when in (COMMIT, COMMITTED):
            if trap := self._proxy.sprung(name, when):
                self._armed.append(trap)
        if name == "BEGIN":
            self._in_transaction = True
        if name == "COMMIT" or not self._in_transaction:
            for trap in [one for one in self._armed if one.when == COMMIT]:
                self._armed.remove(trap)
                await trap.spring(self._gone)

    async def _down(self, server: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        while True:
            message = await read(server)
            if _is_end(message):
                self._in_transaction = False
                for trap in self._armed:
                    await trap.spring(self._gone)
                self._armed.clear()
            elif message.type == b"E" or message == _ROLLED_BACK:
                for trap in self._armed:
                    self._proxy.put_back(trap)
                self._armed.clear()
            await self._proxy.flowing.wait()
            to_client.write(bytes(message))
            await to_client.drain()


_ROLLED_BACK = Message(b"C", b"ROLLBACK\0")


def _is_end(message: Message) -> bool:
    """Whether a transaction is through: COMMIT was done, or the server is idle."""
    return message in (Message(b"C", b"COMMIT\0"), Message(b"Z", b"I"))


def moved(target: str, port: int) -> str:
    """The database of `target` through a port of this machine."""
    given = conninfo_to_dict(target)
    who = quote(str(given.get("user") or ""))
    if password := given.get("password"):
        who += ":" + quote(str(password))
    return f"postgresql://{who}@127.0.0.1:{port}/{given.get('dbname')}"
