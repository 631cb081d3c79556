"""The items of a response that are not done, and how their content is spelled in events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gateway.wire import items

Kind: TypeAlias = Literal["message", "reasoning", "function_call"]


@dataclass(frozen=True, slots=True)
class PartKind:
    """How one kind of content is spelled in events."""

    render: Callable[[str], bytes]
    added: bytes
    delta: bytes
    done: bytes
    closed: bytes
    text_field: bytes  # what the done event calls the whole text
    index_field: bytes
    more: bytes = b""  # what else the delta and done events must have


TEXT = PartKind(
    items.text_part,
    b"response.content_part.added",
    b"response.output_text.delta",
    b"response.output_text.done",
    b"response.content_part.done",
    b"text",
    b"content_index",
    b',"logprobs":[]',
)
REFUSAL = PartKind(
    items.refusal_part,
    b"response.content_part.added",
    b"response.refusal.delta",
    b"response.refusal.done",
    b"response.content_part.done",
    b"refusal",
    b"content_index",
)
SUMMARY = PartKind(
    items.summary_part,
    b"response.reasoning_summary_part.added",
    b"response.reasoning_summary_text.delta",
    b"response.reasoning_summary_text.done",
    b"response.reasoning_summary_part.done",
    b"text",
    b"summary_index",
)
KINDS: Mapping[str, PartKind] = {"text": TEXT, "refusal": REFUSAL, "reasoning": SUMMARY}
"""By the kind that `wire.told` reads from a stream."""


@dataclass(slots=True)
class Part:
    """A piece of content that waits."""

    kind: PartKind
    pieces: list[str] = field(default_factory=list)


@dataclass(slots=True)
class OpenItem:
    """An item that is not done. `closed` is its final status, once that is known."""

    kind: Kind
    key: str
    id: str
    parts: list[Part] = field(default_factory=list)
    call: tuple[str, str, str] = ("", "", "")
    closed: str | None = None

    def add(self, kind: PartKind, delta: str) -> None:
        """More of its content, which waits for the item's turn."""
        if not self.parts or self.parts[-1].kind is not kind:
            self.parts.append(Part(kind))
        self.parts[-1].pieces.append(delta)

    def render(self, status: str, parts: list[bytes]) -> bytes:
        """The item as JSON, with these rendered parts."""
        if self.kind == "function_call":
            return items.function_call_item(self.id, status, self.call)
        if self.kind == "reasoning":
            return items.reasoning_item(self.id, status, parts)
        return items.message_item(self.id, status, parts)
