"""The one writer of Response events, for both modes: a JSON answer is what its last event carries.

Theory of operation. The writer is a machine without I/O: each method takes what happened in the run
and returns the frames to send now, complete and in order; it counts `sequence_number`, mints item
ids and remembers the items that are done, already rendered.

Items never interleave on the wire, whatever parallel nodes do. They stand in a queue in the order
of their first appearance. The first one is live: its deltas leave at once. The others collect
theirs, and leave when those before them are closed. So whoever drives the writer closes a message
as soon as it is complete; what is still open at the end is closed by the end.

A delta is the hot path: bytes made once per content part, the number and the JSON of the delta.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping
from typing import TypeAlias

from gateway.errors import FermataError
from gateway.wire import items
from gateway.wire.encoding import Json, line, parse
from gateway.wire.ids import item_id
from gateway.wire.items import Response, State, Usage
from gateway.wire.open_items import KINDS, REFUSAL, SUMMARY, TEXT, Kind, OpenItem, PartKind
from gateway.wire.told import Told, ToldItem

DONE = b"data: [DONE]\n\n"
"""Closes a stream, after the last event."""

Frames: TypeAlias = list[bytes]


class Writer:
    """Writes one response. Order of calls: `queue`?, `begin`, anything, one ending.

    Keys are the caller's (LangGraph's message ids); ids on the wire are the writer's own. With
    `extensions`, `extension` gives frames outside the standard, else nothing. Without `followed`
    nobody hears the frames: each is `b""` and has no number; the resource is all that is wanted.
    """

    def __init__(
        self, response: Response, *, extensions: bool = False, followed: bool = True
    ) -> None:
        self.response = response
        self._followed = followed
        self.state = State("queued" if response.background else "in_progress")
        self._extensions = extensions
        self._ids = deque(response.ids)
        self._minted = 0
        self._sequence = 0
        self._open: deque[OpenItem] = deque()
        self._seen: set[tuple[Kind, str]] = set()
        self._done: list[bytes] = []
        self._calls: list[bytes] = []
        # The live item's open part: None, or what its next delta event starts with.
        self._live: tuple[PartKind, str] | None = None
        self._live_parts: list[bytes] = []
        self._pieces: list[str] = []
        self.held_back = False
        """While set, more text of the part that speaks waits, until `release` or what comes next
        tells it as one delta."""
        self._waiting: list[str] = []
        self._delta_prefix = b""
        self._part_prefix = b""

    def fork(self) -> Writer:
        """A copy that goes its own way from here: an ending can be written, stored, and only then
        told; if it cannot be stored, the original ends otherwise."""
        twin = Writer.__new__(Writer)
        twin.__dict__.update(self.__dict__)  # copy.copy takes four times as long
        twin._ids = deque(self._ids)
        twin._open = deque(copy.copy(item) for item in self._open)
        twin._done, twin._calls = list(self._done), list(self._calls)
        twin._live_parts, twin._pieces = list(self._live_parts), list(self._pieces)
        twin._waiting = list(self._waiting)
        return twin

    def go_on(self, told: Told) -> None:
        """Before anything is written: go on with a stream that another writer began. An item that
        is open stays open, under its id as key."""
        self._sequence = told.next
        if told.begun:
            self.state = State("in_progress")
        self._minted = len(told.items)
        for item in told.items:
            if item.item is None:
                self._reopen(item)
                continue
            rendered = line(item.item)
            self._done.append(rendered)
            if item.type == "function_call":
                self._calls.append(rendered)
                self._seen.add(("function_call", item.item["call_id"]))

    def _reopen(self, told: ToldItem) -> None:
        kind: Kind = "reasoning" if told.type == "reasoning" else "message"
        item = OpenItem(kind, told.id, told.id)
        self._open.append(item)
        self._seen.add((kind, told.id))
        self._live_parts = list(told.parts)
        self._place(item)
        self._resume_part(KINDS[told.kind], told.text)

    # --- the start ---

    def queue(self) -> Frames:
        """A background response was accepted: created as queued, and queued."""
        self.state = State("queued")
        return [self._snapshot(b"response.created"), self._snapshot(b"response.queued")]

    def begin(self) -> Frames:
        """The run starts. A background response that `queue` has not announced is announced."""
        frames: Frames = []
        if self.response.background and not self._sequence:
            frames = self.queue()
        self.state = State("in_progress")
        if not frames and not self._sequence:
            frames = [self._snapshot(b"response.created")]
        return [*frames, self._snapshot(b"response.in_progress")]

    # --- what the run says ---

    def text(self, message_id: str, delta: str) -> Frames:
        """More text of a message; the first text opens it."""
        return self._write(TEXT, "message", message_id, delta)

    def refusal(self, message_id: str, delta: str) -> Frames:
        """More of a message's refusal."""
        return self._write(REFUSAL, "message", message_id, delta)

    def reasoning(self, reasoning_id: str, delta: str) -> Frames:
        """More of a reasoning summary. A message of the same key, as it opens, closes it."""
        return self._write(SUMMARY, "reasoning", reasoning_id, delta)

    def close(self, key: str, status: str = "completed") -> Frames:
        """The message (and reasoning) of this key is complete, or `incomplete`. Idempotent."""
        for item in self._open:
            if item.key == key and item.closed is None:
                item.closed = status
        return self._advance()

    def release(self) -> Frames:
        """The text that was held back, as one delta."""
        if not self._waiting:
            return []
        text, self._waiting = "".join(self._waiting), []
        return [self._delta(text)]

    def function_call(self, call_id: str, name: str, arguments: str) -> Frames:
        """A whole call. `arguments` is a JSON object as text; empty text means `{}`."""
        item = OpenItem("function_call", call_id, self._id("fc"), closed="completed")
        item.call = (call_id, items.as_function_name(name), arguments or "{}")
        return self._enqueue(item)

    def extension(self, name: str, payload: Json) -> Frames:
        """`fermata:<name>`, which only clients that asked for it get."""
        if not self._extensions:
            return []
        return [self._event(b"fermata:" + name.encode(), b'"payload":' + line(payload))]

    def seen(self, key: str) -> bool:
        """Has the message of this key been written, streamed or whole?"""
        return ("message", key) in self._seen

    # --- the end ---

    def complete(self, *, completed_at: int, usage: Usage | None = None) -> Frames:
        """The run is through, or waits for people. `completed_at` is in whole seconds."""
        state = State("completed", completed_at=completed_at, usage=usage or Usage())
        return self._end(b"response.completed", state, "completed")

    def incomplete(self, reason: str, *, usage: Usage | None = None) -> Frames:
        """Cut off: `max_output_tokens` or `content_filter`."""
        state = State("incomplete", incomplete_reason=reason, usage=usage or Usage())
        return self._end(b"response.incomplete", state, "incomplete")

    def fail(
        self, error: FermataError | Mapping[str, Json], *, usage: Usage | None = None
    ) -> Frames:
        """The run failed for good. A replay gives the stored error instead of the exception."""
        stored = items.error_resource(error) if isinstance(error, FermataError) else error
        state = State("failed", error=stored, usage=usage)
        return self._end(b"response.failed", state, "incomplete")

    def cancel(self, *, usage: Usage | None = None) -> Frames:
        """There is no `response.cancelled`: the stream fails, the resource says cancelled."""
        return self._end(b"response.failed", State("cancelled", usage=usage), "incomplete")

    # --- what there is ---

    @property
    def has_calls(self) -> bool:
        """Whether a function call has been written."""
        return any(kind == "function_call" for kind, _ in self._seen)

    @property
    def output(self) -> tuple[Mapping[str, Json], ...]:
        """The items that are done."""
        return tuple(parse(item) for item in self._done)

    def resource(self, *, only_calls: bool = False) -> bytes:
        """The Response resource as JSON; with `only_calls` its output is the function calls."""
        return self.response.render(self.state, self._calls if only_calls else self._done)

    # --- the machine ---

    def _write(self, part: PartKind, kind: Kind, key: str, delta: str) -> Frames:
        if not delta:
            return []
        live = self._live
        if live is not None and live[0] is part and live[1] == key:
            self._pieces.append(delta)
            if self.held_back:
                self._waiting.append(delta)
                return []
            return [*self.release(), self._delta(delta)] if self._waiting else [self._delta(delta)]
        return self._write_slowly(part, kind, key, delta)

    def _write_slowly(self, part: PartKind, kind: Kind, key: str, delta: str) -> Frames:
        item = self._find(kind, key)
        if item is None:
            return self._open_item(part, kind, key, delta)
        if item is self._open[0]:
            return self._close_part() + self._open_part(part, delta)
        item.add(part, delta)
        return []

    def _open_item(self, part: PartKind, kind: Kind, key: str, delta: str) -> Frames:
        frames: Frames = []
        thought = self._find("reasoning", key) if kind == "message" else None
        if thought is not None:
            thought.closed = "completed"
            frames = self._advance()
        item = OpenItem(kind, key, self._id("msg" if kind == "message" else "rs"))
        item.add(part, delta)
        return frames + self._enqueue(item)

    def _find(self, kind: Kind, key: str) -> OpenItem | None:
        for item in self._open:
            if item.key == key and item.kind == kind and item.closed is None:
                return item
        return None

    def _enqueue(self, item: OpenItem) -> Frames:
        self._open.append(item)
        self._seen.add((item.kind, item.key))
        if len(self._open) > 1:
            return []
        return self._go_live(item) + self._advance()

    def _advance(self) -> Frames:
        """Write what stands before the first item that is still open, and that item's beginning."""
        frames: Frames = []
        while self._open and self._open[0].closed is not None:
            frames += self._finish(self._open.popleft())
            if self._open:
                frames += self._go_live(self._open[0])
        return frames

    def _go_live(self, item: OpenItem) -> Frames:
        """The item's turn has come: everything that it collected leaves, one delta per part."""
        self._place(item)
        if item.kind == "function_call":
            return self._call_frames(item)
        frames = [self._item_event(b"added", item.render("in_progress", []))]
        for part in item.parts:
            frames += self._close_part() + self._open_part(part.kind, "".join(part.pieces))
        return frames

    def _place(self, item: OpenItem) -> None:
        self._part_prefix = b'"item_id":"%b","output_index":%d' % (
            item.id.encode(),
            len(self._done),
        )

    def _call_frames(self, item: OpenItem) -> Frames:
        call_id, name, arguments = item.call
        started = items.function_call_item(item.id, "in_progress", (call_id, name, ""))
        about, text = self._part_prefix, line(arguments)
        kind = b"response.function_call_arguments."
        named = b'%b,"name":%b,"arguments":%b' % (about, line(name), text)
        return [
            self._item_event(b"added", started),
            self._event(kind + b"delta", about + b',"delta":' + text),
            self._event(kind + b"done", named),
        ]

    def _finish(self, item: OpenItem) -> Frames:
        frames = self._close_part()
        rendered = item.render(item.closed or "completed", self._live_parts)
        frames.append(self._item_event(b"done", rendered))
        self._live_parts = []
        self._done.append(rendered)
        if item.kind == "function_call":
            self._calls.append(rendered)
        return frames

    def _open_part(self, kind: PartKind, delta: str) -> Frames:
        about = self._about_part(kind)
        added = self._event(kind.added, about + b',"part":' + kind.render(""))
        self._resume_part(kind, delta)
        return [added, self._delta(delta)]

    def _resume_part(self, kind: PartKind, said: str) -> None:
        """The live item's part that speaks now, and has said so much."""
        self._live = (kind, self._open[0].key)
        self._pieces = [said]
        self._delta_prefix = b'event: %b\ndata: {"type":"%b",%b%b,"sequence_number":' % (
            kind.delta,
            kind.delta,
            self._about_part(kind),
            kind.more,
        )

    def _delta(self, delta: str) -> bytes:
        if not self._followed:
            return b""
        number = self._sequence
        self._sequence = number + 1
        return b'%b%d,"delta":%b}\n\n' % (self._delta_prefix, number, line(delta))

    def _close_part(self) -> Frames:
        if self._live is None:
            return []
        late = self.release()
        kind, _ = self._live
        self._live = None
        about, text = self._about_part(kind), "".join(self._pieces)
        part = kind.render(text)
        self._live_parts.append(part)
        whole = b'%b,"%b":%b%b' % (about, kind.text_field, line(text), kind.more)
        closed = self._event(kind.done, whole)
        return [*late, closed, self._event(kind.closed, about + b',"part":' + part)]

    def _about_part(self, kind: PartKind) -> bytes:
        return b'%b,"%b":%d' % (self._part_prefix, kind.index_field, len(self._live_parts))

    def _end(self, event: bytes, state: State, status: str) -> Frames:
        for item in self._open:
            item.closed = item.closed or status
        frames = self._advance()
        self.state = state
        return [*frames, self._snapshot(event)]

    def _id(self, prefix: str) -> str:
        self._minted += 1
        return self._ids.popleft() if self._ids else item_id(prefix, self.response.id, self._minted)

    def _item_event(self, what: bytes, item: bytes) -> bytes:
        body = b'"output_index":%d,"item":%b' % (len(self._done), item)
        return self._event(b"response.output_item." + what, body)

    def _snapshot(self, event: bytes) -> bytes:
        return self._event(event, b'"response":' + self.resource()) if self._followed else b""

    def _event(self, event: bytes, body: bytes) -> bytes:
        if not self._followed:
            return b""
        number = self._sequence
        self._sequence = number + 1
        return b'event: %b\ndata: {"type":"%b","sequence_number":%d,%b}\n\n' % (
            event,
            event,
            number,
            body,
        )
