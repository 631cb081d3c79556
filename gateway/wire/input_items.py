"""Input items given back: how the input of a response is stored, and shown by `input_items`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from gateway.wire.encoding import Json
from gateway.wire.history import (
    Compaction,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemReference,
    Message,
    Opaque,
    Part,
    Reasoning,
)
from gateway.wire.ids import input_item_id, new_id


def stored_items(items: Iterable[Item], response_id: str) -> list[dict[str, Json]]:
    """The input of a response as it is stored: what came without an id gets one of the response's.

    Call it once; an item is found by its id from then on.
    """
    minted = itertools.count()

    def mint(prefix: str) -> str:
        return input_item_id(prefix, response_id, next(minted))

    return [as_resource(item, mint) for item in items]


def as_resource(item: Item, mint: Callable[[str], str] = new_id) -> dict[str, Json]:
    """The item as `input_items` gives it back: with id, type and status, content as parts.

    `mint` makes an id of a prefix if the client sent none.
    """
    kind, prefix = _kind(item)
    fields = {name: value for name, value in item.raw.items() if value is not None}
    fields |= {"id": item.id or mint(prefix), "type": kind}
    if isinstance(item, Message):
        fields["content"] = [_part_resource(part, item.role) for part in item.parts]
    elif isinstance(item, FunctionCall):
        fields["arguments"] = item.arguments
    elif isinstance(item, FunctionCallOutput) and item.parts:
        fields["output"] = [_part_resource(part, "user") for part in item.parts]
    elif isinstance(item, Reasoning):
        fields["summary"] = [{"type": "summary_text", "text": text} for text in item.summary]
    if isinstance(item, Message | FunctionCall | FunctionCallOutput):
        fields.setdefault("status", "completed")
    return fields


def _kind(item: Item) -> tuple[str, str]:
    if isinstance(item, Opaque):
        return item.type, _OPAQUE_PREFIX.get(item.type, "item")
    return _KINDS[type(item)]


_KINDS: dict[type, tuple[str, str]] = {
    Message: ("message", "msg"),
    FunctionCall: ("function_call", "fc"),
    FunctionCallOutput: ("function_call_output", "fco"),
    Reasoning: ("reasoning", "rs"),
    ItemReference: ("item_reference", "item"),
    Compaction: ("compaction", "cmp"),
}
_OPAQUE_PREFIX = {"custom_tool_call": "ctc", "custom_tool_call_output": "ctco"}


def _part_resource(part: Part, role: str) -> dict[str, Json]:
    """A part as its role spells it: clients mix the names of text parts up, readers may not."""
    fields = dict(part.raw)
    if part.type == "refusal" and role == "assistant":
        return fields
    if part.text is not None:
        kind = "output_text" if role == "assistant" else "input_text"
        fields = {**fields, "type": kind, "text": part.text}
        fields.pop("refusal", None)
    if fields["type"] == "output_text":
        fields["annotations"] = fields.get("annotations") or []
        fields["logprobs"] = fields.get("logprobs") or []
    elif part.type == "input_image":
        fields |= {"image_url": fields.get("image_url"), "detail": fields.get("detail") or "auto"}
    return fields
