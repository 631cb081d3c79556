"""PostgreSQL's protocol, as much of it as stands between a client and its server.

Messages are a type byte, a length that counts itself, and a body; only the first message of a
client has no type. Nothing here interprets values.
"""

from __future__ import annotations

import asyncio
import re
import struct
from dataclasses import dataclass
from functools import cache

from psycopg.conninfo import conninfo_to_dict

from gateway.store.statements import SQL

PROTOCOL_3 = 3 << 16
CANCEL_REQUEST = 80877102
ENCRYPTION_REQUESTS = (80877103, 80877104)  # TLS, GSSAPI

_PARAMETER = re.compile(r"%\(\w+\)[sbt]")


@dataclass(frozen=True, slots=True)
class Message:
    """One message; `type` is empty for the first of a client."""

    type: bytes
    body: bytes

    def __bytes__(self) -> bytes:
        return self.type + struct.pack("!i", len(self.body) + 4) + self.body


async def read(reader: asyncio.StreamReader) -> Message:
    """The next message. Raises `asyncio.IncompleteReadError` at the end."""
    head = await reader.readexactly(5)
    (length,) = struct.unpack("!i", head[1:])
    return Message(head[:1], await reader.readexactly(length - 4))


async def read_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Message:
    """A client's first message that is no request for encryption; those are declined."""
    while True:
        (length,) = struct.unpack("!i", await reader.readexactly(4))
        first = Message(b"", await reader.readexactly(length - 4))
        if code_of(first) not in ENCRYPTION_REQUESTS:
            return first
        writer.write(b"N")


def code_of(first: Message) -> int:
    """`PROTOCOL_3` of a start-up, `CANCEL_REQUEST` of a cancellation."""
    return int(struct.unpack("!i", first.body[:4])[0])


def statement(message: Message) -> str | None:
    """The text that a client's message brings to be executed or prepared, if it brings any."""
    if message.type == b"Q":
        return message.body[:-1].decode()
    if message.type == b"P":
        return message.body.split(b"\0")[1].decode()
    return None


@cache
def name_of(text: str) -> str:
    """The name of the gateway's statement that `text` is; of any other its first word, in capitals:
    BEGIN, COMMIT, SELECT."""
    for name, pattern in _patterns().items():
        if pattern.fullmatch(text):
            return name
    return text.split(None, 1)[0].rstrip(";").upper() if text.strip() else ""


@cache
def _patterns() -> dict[str, re.Pattern[str]]:
    """The named statements as the client library sends them: %(name)s is $1."""
    return {
        name: re.compile(r"\$\d+".join(re.escape(part) for part in _PARAMETER.split(text)))
        for name, text in SQL.items()
    }


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A bare connection to the server that `url` names."""
    host, port = address_of(url)
    if host.startswith("/"):
        return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
    return await asyncio.open_connection(host, port)


def address_of(url: str) -> tuple[str, int]:
    """Host, or the folder of the socket, and port."""
    given = conninfo_to_dict(url)
    return str(given.get("host") or "127.0.0.1"), int(given.get("port") or 5432)
