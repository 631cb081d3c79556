"""One run under way on this process: its task, its writer, and whoever listens.

The graph runs in a task of its own and hands frames over a queue. It never waits for its reader: a
reader who stops would hold a run and its lease, and could not hold LangGraph, whose own queue has
no end. Instead the text that a slow reader has not asked for yet waits as text, which the response
keeps anyway, and is told as one delta. A keep-alive never cancels a step, and a reader that leaves
does not take the run with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from gateway.errors import FermataError, RunFailed
from gateway.human.run import CurrentRun
from gateway.runs.graph import ServedGraph
from gateway.runs.journal import Journal
from gateway.runs.lease import Lease
from gateway.runs.ledger import RunLedger
from gateway.runs.outset import Outset
from gateway.runs.retold import Retold
from gateway.store.responses import NewResponse
from gateway.wire.request import Tool
from gateway.wire.writer import DONE, Frames, Writer

FRAMES_AHEAD = 64
"""How many frames wait for a reader that is busy with earlier ones before text is held back."""
MOST_AHEAD = 4096
"""And for one that waits for them: a graph that says much in one go does not let it run."""


class Frameline:
    """The queue between a run and its reader; what `writer` writes is handed over through it.

    What waits is bounded by the text of the response and the number of its items, not by the number
    of deltas that tell it. The reader takes all that is there at once: one write, one system
    call."""

    def __init__(self, writer: Writer, *, wanted: bool) -> None:
        self._writer = writer
        self._ready: Frames | None = [] if wanted else None
        self._asked: asyncio.Future[None] | None = None
        """Set while the reader waits."""
        self._ended = False

    async def put(self, frames: Frames) -> None:
        """Hand frames over."""
        ready = self._ready
        if ready is None or not frames:
            return
        ready += frames
        if len(ready) >= (FRAMES_AHEAD if self._asked is None else MOST_AHEAD):
            self._writer.held_back = True
        self._call_reader()

    def catch_up(self) -> None:
        """Hand over what was held back, before another writer goes on from here."""
        self._writer.held_back = False
        late = self._writer.release()
        if self._ready is not None:
            self._ready += late

    async def last(self, frames: Frames) -> None:
        """The ending, which is on record."""
        await self.put(frames)

    async def lose(self, frames: Frames) -> None:
        """The end of what this process can say."""
        await self.put(frames)

    async def end(self) -> None:
        """Nothing more comes."""
        self._ended = True
        self._call_reader()

    def abandon(self) -> None:
        """The reader is gone: what is written from now on is dropped."""
        self._ready = None
        self.catch_up()
        self._call_reader()

    async def read(self) -> AsyncIterator[Frames]:
        """The frames, as many at once as there are, until the end."""
        while self._ready is not None:
            if self._writer.held_back:
                self.catch_up()
            if self._ready:
                frames, self._ready = self._ready, []
                yield frames
            elif self._ended:
                return
            else:
                await self._more()

    async def _more(self) -> None:
        self._asked = asyncio.get_running_loop().create_future()
        try:
            await self._asked
        finally:
            self._asked = None

    def _call_reader(self) -> None:
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(None)


Line: TypeAlias = Frameline | Journal
"""Where a run's frames go: to the client that waits for them, or on record for whoever follows."""


@dataclass(eq=False, slots=True)
class Execution:
    """A run that this process moves. `lease` is None for a first request in the foreground, which
    conflicts with nobody."""

    served: ServedGraph
    current: CurrentRun
    outset: Outset
    writer: Writer
    line: Line
    stored: bool
    only_calls: bool
    lease_id: str
    """What keeps the response alive: the run's lease, or the sign of life of this process."""
    unopened: Callable[[bytes], NewResponse] | None = None
    """Makes the row, from its body, of a response that nobody knows of before it ends: it is
    written with its ending, or when somebody needs it (`Coordinator.open`)."""
    opening: asyncio.Task[None] | None = None
    unheard: bool = False
    """The row was to be written, and may be there: nobody heard of the commit."""
    tools: tuple[Tool, ...] = ()
    """What the client of this response declared; a card of its own may be among them."""
    conversation: str | None = None
    """Where its items go when it ends."""
    lease: Lease | None = None
    ledger: RunLedger | None = None
    """Where its effects are kept, from its launch on."""
    journal: Journal | None = None
    """Of a background response: its line, and the record of its finished steps."""
    retold: Retold | None = None
    """Of a run whose steps may be gone over again."""
    told: bool = False
    """An earlier holder has told that the run started."""
    keyed: bool = False
    """An Idempotency-Key names this response: it can be asked for again, stored or not."""
    stop_reason: FermataError | None = None
    """Why the task was cancelled, when it was: told to the client."""
    cancelled_by: str | None = None
    """Whose wish that was, if it was somebody's: told to the audit."""
    ending: bool = False
    """The graph is through, and what came of it is being stored."""
    ended: asyncio.Future[bytes] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    task: asyncio.Task[None] | None = None
    begun: float = field(default_factory=time.monotonic)

    @property
    def response_id(self) -> str:
        return self.current.response_id

    def writer_of_ending(self) -> Writer:
        """A copy of the writer, for an ending that is stored before it is told."""
        self.line.catch_up()
        return self.writer.fork()

    @property
    def acted(self) -> bool:
        """Whether the run may have done effects."""
        return self.ledger is not None and self.ledger.used

    @property
    def kept(self) -> bool:
        """Whether its row stays when it has ended: for its client, or for the key's repeats."""
        return self.stored or self.keyed

    @property
    def opened(self) -> bool:
        """Whether the row is known to be there."""
        task = self.opening
        if self.unopened is None:
            return True
        return task is not None and task.done() and not task.cancelled() and not task.exception()

    @property
    def accepted(self) -> bool:
        """Whether an accepted answer stands behind it."""
        return self.outset.answers is not None

    @property
    def stoppable(self) -> bool:
        """Whether it may be cancelled by request: what is under way in the foreground with an
        accepted answer is carried out."""
        return self.lease is None or self.journal is not None

    @property
    def cancellable(self) -> bool:
        """Whether the run goes with its client: never in the background, nor once an answer was
        accepted."""
        own = self.lease is None and not self.writer.response.background
        return own and self.served.declared.on_disconnect == "cancel"

    def stop(self, reason: FermataError) -> None:
        """Cancel the task for `reason`, the first time: a second one would find it tidying up."""
        if self.task is not None and not self.task.done() and self.stop_reason is None:
            self.stop_reason = reason
            self.outset.start_no_more()
            self.task.cancel()

    def cancel(self, message: str, actor: str | None = None) -> None:
        """Stop as cancelled by `actor`, if it was somebody's wish; too late once the run is ending,
        or stops already."""
        if not self.ending and self.stop_reason is None:
            self.cancelled_by = actor
            self.stop(RunFailed(message, code="cancelled"))

    def succeed(self, body: bytes) -> None:
        """The response ended and is on record."""
        if not self.ended.done():
            self.ended.set_result(body)

    def give_up(self, error: FermataError) -> None:
        """This process cannot say how the response ended."""
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # nobody may be listening


async def frames_of(execution: Execution) -> AsyncIterator[Frames]:
    """All frames of the execution, `[DONE]` included."""
    assert isinstance(execution.line, Frameline)  # what is on record is followed, not read
    async for frames in execution.line.read():
        yield frames
    yield [DONE]
