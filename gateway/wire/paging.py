"""Lists of items: what a client asks for, and what it is given. Pure.

As OpenAI pages its lists: `after` is the id of the last item that the client has, `limit` 1 to 100
(20 if it is not sent), `order` `desc` (newest first, the default) or `asc`. `include` is taken in
every form and adds nothing: whatever there is of an item is shown. Unknown queries are ignored, an
empty one counts as not sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import InvalidRequest
from gateway.wire import checks
from gateway.wire.encoding import Json

LIMIT = 20
MOST = 100


@dataclass(frozen=True, slots=True)
class Paging:
    """Which part of a list is wanted."""

    after: str | None = None
    limit: int = LIMIT
    newest_first: bool = True


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list, in the order that was asked for."""

    items: Sequence[Mapping[str, Any]]
    has_more: bool

    def resource(self) -> dict[str, Json]:
        """The list as OpenAI spells it; the ids of an empty one are null."""
        return {
            "object": "list",
            "data": list(self.items),
            "first_id": self.items[0]["id"] if self.items else None,
            "last_id": self.items[-1]["id"] if self.items else None,
            "has_more": self.has_more,
        }


def parse_paging(query: Mapping[str, str]) -> Paging:
    """Raises `InvalidRequest` naming the query that is wrong."""
    order = query.get("order") or "desc"
    if order not in ("asc", "desc"):
        raise checks.unknown(order, "order", ("asc", "desc"))
    return Paging(query.get("after") or None, parse_limit(query.get("limit")), order == "desc")


def parse_limit(text: str | None) -> int:
    """How many entries; 20 if nothing was sent."""
    if not text:
        return LIMIT
    # The length first: int() refuses to read thousands of digits with an error of its own.
    if not (len(text) < 4 and text.isascii() and text.isdigit() and 1 <= int(text) <= MOST):
        raise InvalidRequest(f"A whole number from 1 to {MOST} is needed.", param="limit")
    return int(text)


def no_such_item(after: str) -> InvalidRequest:
    """The refusal of an `after` that is not in the list."""
    return InvalidRequest(f"There is no item '{after}' to go on after.", param="after")
