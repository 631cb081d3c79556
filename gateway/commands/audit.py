"""`fermata audit`: what happened, whether the record is whole, and a copy of it to keep elsewhere.

`show` tells the audit of one run as a story. `verify` computes the chains apart from the database
and looks beside the tables of runs, questions and effects; with `--against`, beside an earlier
export, which is the only thing that shows a tail cut off long after its run, or a chain that
somebody wrote anew.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TextIO

from gateway.commands.connection import with_connection
from gateway.errors import FermataError
from gateway.settings import Settings
from gateway.store import audit
from gateway.store.chain import AuditRow, digest, from_line, to_line
from gateway.store.db import Connection
from gateway.wire.encoding import Json, dumps, parse

LINES_AT_ONCE = 500


def add(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    commands = parser.add_subparsers(required=True, metavar="command")
    show = commands.add_parser("show", help="what happened to one run, in order")
    show.set_defaults(run=_show)
    verify = commands.add_parser("verify", help="whether rows were changed, removed or moved")
    verify.add_argument("--all", action="store_true", help="all runs")
    verify.add_argument("--against", metavar="FILE", type=Path, help="an export to compare with")
    verify.set_defaults(run=_verify)
    export = commands.add_parser("export", help="all rows as lines of JSON, to keep elsewhere")
    export.add_argument(
        "--since", type=_moment, metavar="TIME", help="of this time and later, as 2026-12-01T09:00Z"
    )
    export.set_defaults(run=_export)
    for one, optional in ((show, None), (verify, "?")):
        one.add_argument("id", nargs=optional, help="of a run, a response or a call")


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"no time: {text!r}") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


# --- show -------------------------------------------------------------------------------------


def _show(settings: Settings, arguments: argparse.Namespace) -> None:
    rows, wrong = asyncio.run(with_connection(settings, partial(_story, arguments.id)))
    first = rows[0]
    print(f"{first.run_id} of {first.tenant}, {_counted(len(rows), 'row')}")
    for row in rows:
        print("\n".join(lines(row)))
    _raise(wrong)


async def _story(id: str, conn: Connection) -> tuple[list[AuditRow], list[str]]:
    run_id = await _run_of(conn, id)
    _, wrong = await _verified(run_id, conn)
    return await audit.rows_of(conn, run_id), wrong


async def _run_of(conn: Connection, id: str) -> str:
    run_id = await audit.run_of(conn, id) if id.isprintable() else None
    if run_id is None:
        raise FermataError(
            f"Nothing is on record for {id}; a run that neither asked nor acted has no audit."
        )
    return run_id


def lines(row: AuditRow) -> Iterator[str]:
    """A row for people: what, when and who in one line, a line for each detail below."""
    moment = row.at.astimezone(UTC).isoformat(" ", "milliseconds").replace("+00:00", "Z")
    who = "" if row.actor is None else f"  by {_printable(row.actor)}"
    what = "  ".join(filter(None, (row.call_id, row.response_id)))
    yield f"{row.seq:3}  {moment}  {row.event}{who}  {_printable(what)}".rstrip()
    for name, value in parse(row.details).items():
        yield f"       {_printable(name)}: {_spelled(value)}"


def _spelled(value: Json) -> str:
    return value if isinstance(value, str) and value.isprintable() else _printable(dumps(value))


def _printable(text: str) -> str:
    """Without what a terminal would take for a command; JSON leaves the C1 controls as they are."""
    return "".join(one if one.isprintable() else f"\\u{ord(one):04x}" for one in text)


# --- verify -----------------------------------------------------------------------------------


def _verify(settings: Settings, arguments: argparse.Namespace) -> None:
    chosen = [arguments.id is not None, arguments.all, arguments.against is not None]
    if sum(chosen) != 1:
        raise FermataError("Say what to verify: an id, --all, or --against FILE.")
    if arguments.against is not None:
        with _opened(arguments.against) as file:
            count, wrong = asyncio.run(with_connection(settings, partial(_compared, file)))
        said = f"{_counted(count, 'row')} of the file stand in the audit as they were."
    else:
        count, wrong = asyncio.run(with_connection(settings, partial(_verified, arguments.id)))
        said = f"{_counted(count, 'row')}: nothing is missing and nothing was changed."
    _raise(wrong)
    print(said)


def _opened(path: Path) -> TextIO:
    try:
        return path.open(encoding="utf-8")
    except OSError as error:
        raise FermataError(f"{path} cannot be read: {error.strerror}.") from None


async def _verified(id: str | None, conn: Connection) -> tuple[int, list[str]]:
    return await audit.verify(conn, None if id is None else await _run_of(conn, id))


async def _compared(file: TextIO, conn: Connection) -> tuple[int, list[str]]:
    wrong: list[str] = []
    count = 0
    for batch in _batches(file):
        count += len(batch)
        there = await audit.hashes_of(conn, batch)
        for row in batch:
            found = there.get((row.run_id, row.seq))
            if digest(row) != row.hash:
                wrong.append(f"{row.place}: was changed in the file")
            elif found is None:
                wrong.append(f"{row.place}: missing; it was there when it was exported")
            elif found != row.hash:
                wrong.append(f"{row.place}: is another row than the one that was exported")
    return count, wrong


def _batches(file: TextIO) -> Iterator[list[AuditRow]]:
    batch: list[AuditRow] = []
    for number, line in enumerate(file, 1):
        try:
            batch.append(from_line(line))
        except ValueError as error:
            raise FermataError(f"Line {number} of the file is {error}.") from None
        if len(batch) == LINES_AT_ONCE:
            yield batch
            batch = []
    yield batch


def _raise(wrong: list[str]) -> None:
    if not wrong:
        return
    for one in wrong:
        print(_printable(one), file=sys.stderr)
    raise FermataError(f"The audit is not what was written: {_counted(len(wrong), 'fault')}.")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


# --- export -----------------------------------------------------------------------------------


def _export(settings: Settings, arguments: argparse.Namespace) -> None:
    since = arguments.since or datetime.fromtimestamp(0, UTC)

    async def act(conn: Connection) -> None:
        await _write(audit.rows_since(conn, since))

    asyncio.run(with_connection(settings, act))


async def _write(rows: AsyncIterator[AuditRow]) -> None:
    async for row in rows:
        print(to_line(row))
