"""A transaction-mode pooler, as hostile as the real ones: any transaction may meet any backend.

Clients share a few server connections. One is theirs from the first message of a transaction until
the server says that it is idle again; the next transaction gets another one, in turn. So prepared
statements, session settings, advisory locks and LISTEN are lost or, worse, somebody else's. Like
pgbouncer with `pool_mode = transaction`, which resets nothing either.

Clients are not asked for a password; the server's own connections are made by libpq.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psycopg
from anyio.from_thread import start_blocking_portal
from psycopg.conninfo import make_conninfo

from tests.postgres.proxy import moved
from tests.postgres.wire import CANCEL_REQUEST, Message, code_of, read, read_first

_TOLD = (
    "server_version",
    "server_encoding",
    "client_encoding",
    "DateStyle",
    "IntervalStyle",
    "TimeZone",
    "integer_datetimes",
    "standard_conforming_strings",
)
"""What a server says of itself at a start-up, and clients rely on."""
_IDLE = Message(b"Z", b"I")
_ASK_FOR_READY = (b"Q", b"S")  # a query and a sync are answered by one ReadyForQuery each


class Backend:
    """One connection to the server. libpq made it and keeps its secrets; the bytes are ours."""

    def __init__(self, libpq: psycopg.Connection) -> None:
        self.libpq = libpq
        self.owner: Session | None = None
        self.gone = False

    @classmethod
    async def open(cls, pooler: TransactionPooler) -> Backend:
        conninfo = make_conninfo(pooler.target, sslmode="disable", gssencmode="disable")
        backend = cls(await asyncio.to_thread(psycopg.connect, conninfo))
        shared = socket.socket(fileno=os.dup(backend.libpq.fileno()))
        reader, backend.writer = await asyncio.open_connection(sock=shared)
        backend.listening = asyncio.create_task(backend._listen(reader, pooler))
        return backend

    async def _listen(self, reader: asyncio.StreamReader, pooler: TransactionPooler) -> None:
        """The server's messages go to whoever has this backend, until it is idle again."""
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                message = await read(reader)
                if self.owner is not None and self.owner.told(message):
                    self.owner.backend, self.owner = None, None
                    pooler.idle.put_nowait(self)
        self.gone = True
        if self.owner is not None:
            self.owner.close()

    def close(self) -> None:
        self.gone = True
        self.listening.cancel()
        self.writer.transport.abort()
        self.libpq.close()


@dataclass(eq=False)
class Session:
    """One client. `awaited` is how many of its requests are not answered yet."""

    writer: asyncio.StreamWriter
    backend: Backend | None = None
    awaited: int = 0

    def told(self, message: Message) -> bool:
        """Pass the server's message on; whether the backend is free again."""
        self.writer.write(bytes(message))
        if message.type == b"Z":
            self.awaited -= 1
        return message == _IDLE and self.awaited == 0

    def close(self) -> None:
        self.writer.transport.abort()


class TransactionPooler:
    """`url` is what clients are given; `transactions` counts what they did."""

    def __init__(self, target: str, size: int) -> None:
        self.target = target
        self.size = size
        self.url = ""
        self.transactions = 0
        self.idle: asyncio.Queue[Backend | None] = asyncio.Queue()
        self._opened: set[Backend] = set()
        self._sessions: dict[bytes, Session] = {}

    async def serve(self) -> asyncio.Server:
        for _ in range(self.size):
            self.idle.put_nowait(None)  # opened when it is first needed
        server = await asyncio.start_server(self._serve_client, "127.0.0.1", 0)
        self.url = moved(self.target, server.sockets[0].getsockname()[1])
        return server

    async def close(self, server: asyncio.Server) -> None:
        server.close()
        for session in list(self._sessions.values()):
            session.close()
        for backend in self._opened:
            backend.close()

    async def _serve_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        session, key = Session(writer), os.urandom(8)
        self._sessions[key] = session
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                first = await read_first(reader, writer)
                if code_of(first) == CANCEL_REQUEST:
                    await self._cancel(first.body[4:])
                    return
                await self._welcome(session, key)
                await self._relay(reader, session)
        finally:
            del self._sessions[key]
            session.close()
            if session.backend is not None:
                # It left in the middle: what it began must not become another's.
                self._drop(session.backend)

    async def _welcome(self, session: Session, key: bytes) -> None:
        backend = await self._take()
        messages = [Message(b"R", struct.pack("!i", 0))]  # AuthenticationOk
        for name in _TOLD:
            value = backend.libpq.pgconn.parameter_status(name.encode()) or b""
            messages.append(Message(b"S", name.encode() + b"\0" + value + b"\0"))
        self.idle.put_nowait(backend)
        session.writer.write(b"".join(map(bytes, [*messages, Message(b"K", key), _IDLE])))

    async def _relay(self, reader: asyncio.StreamReader, session: Session) -> None:
        while (message := await read(reader)).type != b"X":
            if session.backend is None:
                backend = await self._take()
                session.backend, backend.owner = backend, session
                self.transactions += 1
            session.awaited += message.type in _ASK_FOR_READY
            session.backend.writer.write(bytes(message))

    async def _take(self) -> Backend:
        backend = await self.idle.get()
        if backend is not None and not backend.gone:
            return backend
        if backend is not None:
            self._opened.discard(backend)
            backend.close()
        try:
            backend = await Backend.open(self)
        except psycopg.OperationalError as error:
            self.idle.put_nowait(None)
            raise ConnectionError("the server cannot be reached") from error
        self._opened.add(backend)
        return backend

    def _drop(self, backend: Backend) -> None:
        self._opened.discard(backend)
        backend.close()
        self.idle.put_nowait(None)

    async def _cancel(self, key: bytes) -> None:
        session = self._sessions.get(key)
        if session is not None and session.backend is not None:
            await asyncio.to_thread(session.backend.libpq.cancel)


@contextmanager
def pooled(target: str, size: int = 3) -> Iterator[TransactionPooler]:
    """A running pooler with so many connections to `target`."""
    with start_blocking_portal() as portal:
        pooler = TransactionPooler(target, size)
        server = portal.call(pooler.serve)
        try:
            yield pooler
        finally:
            portal.call(pooler.close, server)
