"""`/v1/conversations`: bodies parsed once, and the resources. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gateway.wire import checks
from gateway.wire.encoding import Json
from gateway.wire.history import Item, parse_input
from gateway.wire.request import metadata_of


def parse_conversation(body: bytes) -> tuple[tuple[Item, ...], dict[str, str]]:
    """The first items and the metadata of a new conversation; an empty body is neither."""
    fields = checks.body(body or b"{}")
    items = checks.optional(fields, "items", "", _items) or ()
    return items, checks.optional(fields, "metadata", "", metadata_of) or {}


def parse_items(body: bytes) -> tuple[Item, ...]:
    """The items to add."""
    return checks.required(checks.body(body), "items", "", _items)


def parse_metadata(body: bytes) -> dict[str, str]:
    """The new metadata, in place of the old; null is none."""
    fields = checks.body(body)
    if "metadata" not in fields:
        checks.missing("metadata")
    return checks.optional(fields, "metadata", "", metadata_of) or {}


def _items(value: Json, path: str) -> tuple[Item, ...]:
    return parse_input(checks.array(value, path), path)


def conversation_resource(id: str, metadata: Json, created_at: datetime) -> dict[str, Any]:
    """A conversation as OpenAI spells it; `created_at` in whole seconds."""
    return {
        "id": id,
        "object": "conversation",
        "created_at": int(created_at.timestamp()),
        "metadata": metadata,
    }


def deleted_resource(id: str) -> Mapping[str, Any]:
    """What the deletion of a conversation returns."""
    return {"id": id, "object": "conversation.deleted", "deleted": True}
