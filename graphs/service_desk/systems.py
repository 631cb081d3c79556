"""The desk's world: its accounts, tickets, services and messages, each a small table in the
gateway's PostgreSQL.

The systems that are acted on (`Systems`) stand for APIs of somebody else: a request is carried out
at once and for good, twice if it is sent twice, and nothing of it is undone when the caller dies.
Like good APIs they log the request's id, so that one can ask them whether it was carried out. What
is the desk's own, its proposals, their history and its messages, is written in the caller's
transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from psycopg import AsyncConnection
from psycopg.rows import DictRow

from gateway import Happened, database
from graphs.service_desk.policy import RULES
from graphs.service_desk.tables import SEED, TABLES
from graphs.tables import make_tables

Connection: TypeAlias = AsyncConnection[DictRow]


async def open_desk(tenant: str) -> None:
    """Make the tables, and the tenant's first rows, if they are not there."""
    await make_tables("service_desk_demo.desks", TABLES)
    async with database().transaction() as conn:
        made = await conn.execute(
            "INSERT INTO service_desk_demo.desks VALUES (%s) ON CONFLICT DO NOTHING", (tenant,)
        )
        if made.rowcount:
            for statement in SEED:
                await conn.execute(statement, {"tenant": tenant})
            for action, environment, tier in RULES:
                await conn.execute(
                    "INSERT INTO service_desk_demo.rules VALUES (%s, %s, %s, %s)",
                    (tenant, action, environment, tier),
                )


class Refused(ValueError):
    """A system does not do this, and has not done anything."""


_REQUESTS: Mapping[str, str] = {
    "restart_service": "UPDATE service_desk_demo.services SET restarts = restarts + 1"
    " WHERE tenant = %(tenant)s AND name = %(service)s AND environment = %(environment)s",
    "reset_credential": "UPDATE service_desk_demo.accounts SET resets = resets + 1,"
    " sessions = CASE WHEN %(revoke_sessions)s THEN 0 ELSE sessions END"
    " WHERE tenant = %(tenant)s AND id = %(user)s",
    "disable_account": "UPDATE service_desk_demo.accounts SET disabled = true,"
    " disables = disables + 1, sessions = 0 WHERE tenant = %(tenant)s AND id = %(user)s",
    "delete_data": "DELETE FROM service_desk_demo.data_sets"
    " WHERE tenant = %(tenant)s AND name = %(data)s AND environment = %(environment)s",
}

_DONE: Mapping[str, str] = {
    "restart_service": "{service} was restarted in {place}",
    "reset_credential": "the password of {user} was reset{sessions}",
    "disable_account": "the account of {user} was disabled",
    "delete_data": "{data} was deleted in {place}",
}


class Systems:
    """The APIs of the accounts, the services and the data."""

    async def perform(
        self, action: str, tenant: str, arguments: Mapping[str, Any], request_id: str
    ) -> dict[str, Any]:
        """Carry the action out. Raises `Refused` if the tenant has no such target."""
        async with database().transaction() as conn:
            done = await conn.execute(
                _REQUESTS[action],
                {"tenant": tenant, **arguments},
            )
            if not done.rowcount:
                raise Refused("there is no such target here")
            await conn.execute(
                "INSERT INTO service_desk_demo.requests (tenant, id, outcome) VALUES (%s, %s, %s)",
                (tenant, request_id, _done(action, arguments)),
            )
        return {"outcome": _done(action, arguments)}

    async def find(
        self, action: str, tenant: str, arguments: Mapping[str, Any], request_id: str
    ) -> Happened | None:
        """Whether a request of this id was carried out, by the systems' own log."""
        async with database().connection() as conn:
            found = await conn.execute(
                "SELECT outcome FROM service_desk_demo.requests WHERE tenant = %s AND id = %s",
                (tenant, request_id),
            )
            row = await found.fetchone()
        return None if row is None else Happened({"outcome": row["outcome"]})


def _done(action: str, arguments: Mapping[str, Any]) -> str:
    environment = arguments.get("environment", "")
    return _DONE[action].format(
        place="production" if environment == "production" else f"the {environment}",
        sessions=" and all sessions were revoked" if arguments.get("revoke_sessions") else "",
        **arguments,
    )


# --- what only reads --------------------------------------------------------------------------


async def look_up(action: str, tenant: str, arguments: Mapping[str, Any]) -> str:
    """What a reading action finds, in words."""
    async with database().connection() as conn:
        if action == "read_ticket":
            rows = await conn.execute(
                "SELECT subject, status FROM service_desk_demo.tickets"
                " WHERE tenant = %s AND id = %s",
                (tenant, arguments["ticket"]),
            )
            row = await rows.fetchone()
            return f"{row['subject']} ({row['status']})" if row else "there is no such ticket"
        rows = await conn.execute(
            "SELECT title FROM service_desk_demo.articles"
            " WHERE tenant = %s AND title ILIKE '%%' || %s || '%%' ORDER BY title",
            (tenant, arguments["words_to_find"]),
        )
        titles = [row["title"] async for row in rows]
    return "; ".join(titles) or "there is no article about it"


# --- the desk's own: in the caller's transaction ----------------------------------------------


async def put_on_record(
    conn: Connection, tenant: str, ticket: str, target: str, verb: str, by: str
) -> int | None:
    """A new proposal; its version, or None if there is no such ticket.

    The ticket's row is locked, so that two proposals of one moment are two versions.
    """
    found = await conn.execute(
        "SELECT FROM service_desk_demo.tickets WHERE tenant = %s AND id = %s FOR UPDATE",
        (tenant, ticket),
    )
    if not found.rowcount:
        return None
    start = f"{verb}:{ticket}:{target}:proposal-v"
    counted = await conn.execute(
        "SELECT count(*) + 1 AS version FROM service_desk_demo.history"
        " WHERE tenant = %s AND starts_with(proposal, %s) AND state = 'PROPOSED'",
        (tenant, start),
    )
    row = await counted.fetchone()
    assert row is not None
    version = int(row["version"])
    await note(conn, tenant, f"{start}{version}", "PROPOSED", by, "")
    return version


async def note(
    conn: Connection, tenant: str, proposal: str, state: str, by: str, remark: str
) -> None:
    """A proposal has come to this state."""
    await conn.execute(
        "INSERT INTO service_desk_demo.history (tenant, proposal, state, by, remark)"
        " VALUES (%s, %s, %s, %s, %s)",
        (tenant, proposal, state, by, remark),
    )


async def tell(
    conn: Connection, tenant: str, ticket: str, proposal: str, by: str, outcome: str
) -> None:
    """It was carried out: the message to whoever opened the ticket, and the history."""
    await conn.execute(
        "INSERT INTO service_desk_demo.notifications (tenant, ticket, message) VALUES (%s, %s, %s)",
        (tenant, ticket, f"Your ticket {ticket}: {outcome}."),
    )
    await conn.execute(
        "UPDATE service_desk_demo.tickets SET status = 'solved' WHERE tenant = %s AND id = %s",
        (tenant, ticket),
    )
    await note(conn, tenant, proposal, "EXECUTED", by, outcome)
