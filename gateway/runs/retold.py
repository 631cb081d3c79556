"""What an attempt says that an earlier attempt had said already: told once.

A step that was cut short, by a crash, a lost lease or an exception, runs again from its beginning.
What a client was told meanwhile cannot be taken back. So what the new attempt says is held against
it, message by message:

    it says the same           nothing is told again; the item stands as it was told
    it says the same, and more the item that was cut short is continued
    it says something else     the item that was cut short ends as `incomplete`; what is said now
                               is an item of its own, after it

Only what was told since the last finished step is compared: a later step may well repeat an
earlier one's words. Pure: pieces in, pieces out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from gateway.runs.events import MessageDone, Piece, ReasoningDelta, TextDelta, ToolCall
from gateway.wire import encoding
from gateway.wire.told import Told, ToldItem

_Speech: TypeAlias = TextDelta | ReasoningDelta
_Key: TypeAlias = tuple[type[TextDelta] | type[ReasoningDelta], str]


@dataclass(slots=True)
class _Said:
    """A message, or a reasoning summary, as far as it was said."""

    kind: type[TextDelta] | type[ReasoningDelta]
    key: str
    text: str = ""
    done: bool = False


class Retold:
    """Holds what was told since the last finished step against what is said now.

    `settled` is the number of events that belong to finished steps.
    """

    def __init__(self, told: Told | None = None, settled: int = 0) -> None:
        self._since: dict[_Key, _Said] = {}  # told now
        self._calls: list[str] = []
        self._before: list[_Said] = []  # told by earlier attempts, and not said again so far
        self._calls_before: list[str] = []
        self._held: dict[_Key, _Said] = {}  # said now, and so far just what was told
        self._joined: dict[_Key, str] = {}  # said now, and told as more of an earlier item
        for item in told.items if told is not None else ():
            if item.since >= settled or item.is_open:
                self._remember(item)

    def rewind(self) -> None:
        """The step is tried again: from now on everything is held against what was told."""
        self._before += self._since.values()
        self._calls_before += self._calls
        self._since, self._calls, self._held, self._joined = {}, [], {}, {}

    def settle(self) -> list[Piece]:
        """The step is finished: what is told from now on is compared with nothing. The pieces
        close what nobody continued."""
        cut = list(self._cut())
        self.rewind()
        self._before, self._calls_before = [], []
        return cut

    def pieces(self, piece: Piece) -> Iterable[Piece]:
        """What of `piece` is to be told, if anything, and what has to be told before it."""
        if isinstance(piece, TextDelta | ReasoningDelta):
            return self._text(piece)
        if isinstance(piece, MessageDone):
            return self._done(piece)
        if isinstance(piece, ToolCall):
            return self._call(piece)
        return (piece,)

    def _remember(self, item: ToldItem) -> None:
        if item.type == "function_call":
            if item.item is not None:
                self._calls_before.append(_called(item.item["name"], item.item["arguments"]))
            return
        kind = ReasoningDelta if item.type == "reasoning" else TextDelta
        self._before.append(_Said(kind, item.id, item.text, not item.is_open))

    def _text(self, piece: _Speech) -> Iterator[Piece]:
        key = (type(piece), piece.message_id)
        if isinstance(piece, TextDelta):
            yield from self._end_thought(piece.message_id)
        if key in self._joined:
            yield self._told(replace(piece, message_id=self._joined[key]))
        elif key in self._since or not self._before:
            yield self._told(piece)
        else:
            held = self._held.setdefault(key, _Said(*key))
            held.text += piece.text
            yield from self._compare(held)

    def _end_thought(self, message_id: str) -> Iterator[Piece]:
        """A message that begins to speak has thought; the writer knows its thought by another
        key if that was joined."""
        thought = (ReasoningDelta, message_id)
        if thought in self._held:
            yield from self._end_held(self._held[thought])
        if thought in self._joined:
            yield MessageDone(self._joined.pop(thought))

    def _compare(self, held: _Said) -> Iterator[Piece]:
        alike = self._alike(held)
        if any(said.text.startswith(held.text) for said in alike):
            return  # it may yet turn out to be that one
        cut_short = [said for said in alike if not said.done and held.text.startswith(said.text)]
        if cut_short:
            yield from self._join(held, max(cut_short, key=lambda said: len(said.text)))
        else:
            yield from self._anew(held)

    def _alike(self, held: _Said) -> list[_Said]:
        return [said for said in self._before if said.kind is held.kind]

    def _join(self, held: _Said, said: _Said) -> Iterator[Piece]:
        """The message goes on where it was cut short."""
        key = (held.kind, held.key)
        del self._held[key]
        self._before.remove(said)
        self._joined[key] = said.key
        more = held.text[len(said.text) :]
        self._since[said.kind, said.key] = said
        if more:
            yield self._told(held.kind(said.key, more))

    def _anew(self, held: _Said) -> Iterator[Piece]:
        """It says something else than what was cut short."""
        del self._held[held.kind, held.key]
        yield from self._cut()
        yield self._told(held.kind(held.key, held.text))

    def _cut(self) -> Iterator[Piece]:
        for said in self._before:
            if not said.done:
                said.done = True
                yield MessageDone(said.key, cut=True)

    def _done(self, piece: MessageDone) -> Iterator[Piece]:
        yield from self._end_thought(piece.message_id)
        key = (TextDelta, piece.message_id)
        if key in self._held:
            yield from self._end_held(self._held[key])
        told_as = self._joined.pop(key, piece.message_id)
        if (TextDelta, told_as) in self._since:
            self._since[TextDelta, told_as].done = True
        yield replace(piece, message_id=told_as)

    def _end_held(self, held: _Said) -> Iterator[Piece]:
        """It ended as it was told, or it was another message that began alike."""
        for said in self._alike(held):
            if said.text != held.text:
                continue
            if not said.done:
                yield from self._join(held, said)
            else:
                del self._held[held.kind, held.key]
                self._before.remove(said)
                self._since[said.kind, said.key] = said
            return
        yield from self._anew(held)

    def _call(self, piece: ToolCall) -> Iterator[Piece]:
        called = _called(piece.name, piece.arguments)
        self._calls.append(called)
        if called in self._calls_before:
            self._calls_before.remove(called)
        else:
            yield piece

    def _told(self, piece: _Speech) -> Piece:
        key = (type(piece), piece.message_id)
        self._since.setdefault(key, _Said(*key)).text += piece.text
        return piece


def _called(name: str, arguments: str) -> str:
    return encoding.canonical([name, encoding.loads(arguments or "{}")]).decode()
