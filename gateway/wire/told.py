"""What a stream has told so far, read back from its own frames.

A response may change hands while somebody reads its stream. What was told cannot be taken back, so
the next holder's writer goes on from here: the same ids, the next number, the same items.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gateway.wire.encoding import Json, line, read_back

ENDINGS = ("response.completed", "response.incomplete", "response.failed")
"""The types of the last event of a stream."""

_DELTAS = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.reasoning_summary_text.delta": "reasoning",
}
_PARTS_DONE = ("response.content_part.done", "response.reasoning_summary_part.done")


@dataclass(slots=True)
class ToldItem:
    """One output item. `since` is the number of its first event; `kind` and `text` are of its last
    part, `parts` are those that are done; `item` is the resource once the item is."""

    id: str
    since: int
    type: str
    kind: str = ""
    text: str = ""
    parts: list[bytes] = field(default_factory=list)
    speaking: int = -1
    """Which part `text` is of."""
    item: Mapping[str, Json] | None = None

    @property
    def is_open(self) -> bool:
        """Whether more of it may come."""
        return self.item is None


@dataclass(slots=True)
class Told:
    """`next` is the number of the next event; `begun` says that the run was told to have
    started."""

    next: int = 0
    begun: bool = False
    items: list[ToldItem] = field(default_factory=list)

    @property
    def open(self) -> ToldItem | None:
        """The item that is not done: at most one, the last."""
        return self.items[-1] if self.items and self.items[-1].is_open else None


def told_by(chunks: Iterable[bytes]) -> Told:
    """Fold a stream's frames, in any chunks of whole frames, from its first on."""
    told = Told()
    for chunk in chunks:
        for frame in frames_in(chunk):
            _take(told, read_back(frame.partition(b"\ndata: ")[2]))
    return told


def frames_in(chunk: bytes) -> Iterator[bytes]:
    """The frames of a chunk, each with the empty line that ends it."""
    for frame in chunk.split(b"\n\n")[:-1]:
        yield frame + b"\n\n"


def is_ending(frame: bytes) -> bool:
    """Whether nothing comes after this frame."""
    return frame.startswith(_ENDING_FRAMES)


_ENDING_FRAMES = tuple(f"event: {name}\n".encode() for name in ENDINGS)


def _take(told: Told, event: Mapping[str, Json]) -> None:
    kind = event["type"]
    told.next = event["sequence_number"] + 1
    if kind == "response.in_progress":
        told.begun = True
    elif kind == "response.output_item.added":
        item = event["item"]
        told.items.append(ToldItem(item["id"], event["sequence_number"], item["type"]))
    elif kind == "response.output_item.done":
        told.items[-1].item = event["item"]
    elif kind in _DELTAS:
        _say(told.items[-1], _DELTAS[kind], event["delta"])
    elif kind in _PARTS_DONE:
        last = told.items[-1]
        last.parts.append(line(event["part"]))


def _say(item: ToldItem, kind: str, delta: str) -> None:
    if item.speaking != len(item.parts):
        item.kind, item.text, item.speaking = kind, "", len(item.parts)
    item.text += delta
