"""A worker thread that waits for a flow on an event loop, and runs what the flow hands back to it.

A plain function of a graph's author belongs on the thread that the author's node runs on. Another
thread of the pool would do, were they not all waiting here.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from gateway.errors import Unavailable
from gateway.human.ledger import Runner

T = TypeVar("T")

_LOOK = 1.0  # seconds between two looks of a waiting thread at its loop


def wait_for(
    flow: Callable[[Runner], Coroutine[Any, Any, T]], loop: asyncio.AbstractEventLoop
) -> T:
    """The result of the flow, which runs on `loop`, that of another thread; its runner runs what it
    is given here.

    Raises what the flow raises; `Unavailable` if the loop ends before it.
    """
    handed: queue.SimpleQueue[_Handed | None] = queue.SimpleQueue()

    async def run_here(function: Callable[[], Any]) -> Any:
        item = _Handed(function, loop, loop.create_future())
        handed.put(item)
        return await item.future

    future: Future[T] = asyncio.run_coroutine_threadsafe(flow(run_here), loop)
    future.add_done_callback(lambda _: handed.put(None))
    while (item := _next(handed, loop)) is not None:
        item.run()
    return future.result()


def _next(
    handed: queue.SimpleQueue[_Handed | None], loop: asyncio.AbstractEventLoop
) -> _Handed | None:
    while True:
        try:
            return handed.get(timeout=_LOOK)
        except queue.Empty:
            if not loop.is_running():
                raise Unavailable("This process is shutting down.") from None


@dataclass(frozen=True, slots=True)
class _Handed:
    """A function for the waiting thread, and where its result goes."""

    function: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]

    def run(self) -> None:
        result, error = None, None
        try:
            result = self.function()
        except BaseException as raised:  # noqa: BLE001  # it is raised again where it is awaited
            error = raised
        self.loop.call_soon_threadsafe(self._settle, result, error)

    def _settle(self, result: Any, error: BaseException | None) -> None:
        if self.future.done():
            return  # the flow was cancelled meanwhile
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)
