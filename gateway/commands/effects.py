"""`fermata effects`: what graphs did in the world, and an operator's word on what nobody knows.

An effect is uncertain when it was begun and its outcome was never recorded. Whoever has looked at
the system downstream says here which it was: `resolve --result` records that it happened, `resolve
--release` that it did not, so that it may be tried again. Either is in the audit.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
from functools import partial

from gateway.commands.connection import with_connection
from gateway.errors import FermataError
from gateway.settings import Settings
from gateway.store.db import Connection
from gateway.store.effects import (
    EffectRow,
    Listed,
    find_effect,
    free_effect,
    list_settled,
    list_unsettled,
    resolve_effect,
    tenants_of_effect,
)
from gateway.wire.encoding import Json, dumps, parse


def add(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    commands = parser.add_subparsers(required=True, metavar="command")
    listing = commands.add_parser("list", help="what was begun and never recorded, oldest first")
    listing.add_argument("--settled", action="store_true", help="what is done or failed, instead")
    listing.add_argument("--limit", type=int, default=100, help="how many lines (100)")
    listing.set_defaults(run=_list)
    show = commands.add_parser("show", help="one effect, with its arguments and its result")
    show.set_defaults(run=_show)
    resolve = commands.add_parser("resolve", help="say what became of an uncertain effect")
    which = resolve.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--result", type=_json, metavar="JSON", help="it happened; replays are told this result"
    )
    which.add_argument(
        "--release", action="store_true", help="it did not happen, and may be tried again"
    )
    resolve.add_argument(
        "--as", dest="name", metavar="NAME", help="who says so, for the audit (your account)"
    )
    resolve.set_defaults(run=_resolve)
    for one in (show, resolve):
        one.add_argument("key", help="as `list` shows it")
    for one in (listing, show, resolve):
        one.add_argument("--tenant", help="whose it is; needed where several have the key")


def _json(text: str) -> Json:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"no JSON: {error}") from None


def _list(settings: Settings, arguments: argparse.Namespace) -> None:
    listed = list_settled if arguments.settled else list_unsettled

    async def act(conn: Connection) -> list[Listed]:
        return await listed(conn, arguments.tenant, arguments.limit)

    for one in asyncio.run(with_connection(settings, act)):
        print(_line(one))


def _line(one: Listed) -> str:
    tries = f"{one.attempts} attempt{'s' if one.attempts > 1 else ''}"
    moment = f"{one.at:%Y-%m-%d %H:%M:%S%z}"
    return "\t".join((one.status, one.tenant, one.key, moment, tries, one.run_id))


def _show(settings: Settings, arguments: argparse.Namespace) -> None:
    found = asyncio.run(with_connection(settings, partial(_found, arguments)))
    print("\n".join(f"{name:12}{value}" for name, value in _told(found)))


async def _found(arguments: argparse.Namespace, conn: Connection) -> EffectRow:
    tenant = await _tenant(arguments, conn)
    found = await find_effect(conn, tenant, arguments.key)
    if found is None:
        raise FermataError(f"There is no effect {arguments.key}.")
    return found


async def _tenant(arguments: argparse.Namespace, conn: Connection) -> str:
    if arguments.tenant is not None:
        return str(arguments.tenant)
    tenants = await tenants_of_effect(conn, arguments.key)
    if not tenants:
        raise FermataError(f"There is no effect {arguments.key}.")
    if len(tenants) > 1:
        raise FermataError(
            f"Several tenants have an effect {arguments.key} ({', '.join(tenants)});"
            " say --tenant which."
        )
    return tenants[0]


def _told(one: EffectRow) -> list[tuple[str, str]]:
    status = "uncertain" if one.is_uncertain else one.status
    told = [
        ("key", one.key),
        ("tenant", one.tenant),
        ("status", status),
        ("attempts", str(one.attempts)),
        ("run", one.run_id),
        ("response", one.response_id),
        ("claimed", one.claimed_at.isoformat(timespec="seconds")),
        ("arguments", dumps(one.arguments)),
    ]
    if one.settled_at is not None:
        name, value = ("result", one.result) if one.status == "done" else ("failure", one.failure)
        told += [("settled", one.settled_at.isoformat(timespec="seconds")), (name, dumps(value))]
    return told


def _resolve(settings: Settings, arguments: argparse.Namespace) -> None:
    found = asyncio.run(with_connection(settings, partial(_resolved, arguments)))
    said = "free to be tried again" if arguments.release else "recorded as done"
    print(f"The effect {found.key} of {found.tenant} is {said}.")


async def _resolved(arguments: argparse.Namespace, conn: Connection) -> EffectRow:
    found = await _found(arguments, conn)
    actor = f"operator:{arguments.name or getpass.getuser()}"
    async with conn.transaction():
        if arguments.release:
            said = await free_effect(conn, found.tenant, found.key, actor=actor)
        else:
            said = await resolve_effect(
                conn, found.tenant, found.key, result=arguments.result, actor=actor
            )
    if not said:
        raise FermataError(_why_not(await find_effect(conn, found.tenant, found.key) or found))
    return found


def _why_not(one: EffectRow) -> str:
    if one.status == "done":
        return f"The effect {one.key} is done; that stands."
    return f"The effect {one.key} is being carried out by a living process; wait for it."
