"""What a response shows when it is read: itself, and what reviewers' answers made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.errors import NotFound
from gateway.runs.lookup import plausible
from gateway.runs.principal import Principal
from gateway.runs.refusals import on_record
from gateway.store.db import Database, Row, send
from gateway.wire import encoding
from gateway.wire.encoding import Json
from gateway.wire.items import Usage


async def retrieve(database: Database, response_id: str, principal: Principal) -> bytes:
    """The Response resource as it stands, as JSON, and what reviewers' answers made of it.

    Raises `NotFound`.
    """
    not_found = NotFound(f"Response with id '{response_id}' not found.", param="response_id")
    if not plausible(response_id):
        raise not_found
    async with on_record(database, principal, response_id), database.pipeline() as (conn, _):
        names = {"tenant": principal.tenant, "id": response_id}
        found = await send(conn, "response", **names)
        followers = await send(conn, "followers", **names)
        row = await found.fetchone()
        following = await followers.fetchall()
        if row is None or not row["stored"]:
            raise not_found
    body = str(row["body"])
    return encoding.dumps(shown(body, following)).encode() if following else body.encode()


def shown(body: str, following: Sequence[Row]) -> dict[str, Json]:
    """The resource with the answers and the outputs of all that follows it, and the state of the
    last. `fermata.continued_by` names that one: what comes next belongs there."""
    resource: dict[str, Json] = encoding.loads(body)
    output = list(resource["output"])
    usages = [resource["usage"]]
    last = resource
    for row in following:
        last = encoding.loads(row["body"])
        output += [*encoding.loads(row["input"]), *last["output"]]
        usages.append(last["usage"])
    states = ("status", "completed_at", "error", "incomplete_details")
    return {
        **resource,
        **{name: last[name] for name in states},
        "output": output,
        "usage": _sum(usages),
        "fermata": {"continued_by": last["id"]},
    }


def _sum(usages: Sequence[Mapping[str, Any] | None]) -> dict[str, Json] | None:
    known = [Usage.of_resource(usage) for usage in usages if usage is not None]
    return sum(known, Usage()).resource() if known else None
