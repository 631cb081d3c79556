"""What a graph's code may not do: end the process that serves it.

asyncio lets `SystemExit` and `KeyboardInterrupt` of a task out of the event loop, so that
`sys.exit()` or an argparse in a tool would end the gateway, then the process that takes the run
over, and so on. Tasks that are started within a run turn both into an ordinary error, which fails
the run and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

from gateway.human.run import in_a_run

T = TypeVar("T")


class GraphExit(RuntimeError):
    """The graph's code asked the process to end."""


def confine_graphs(loop: asyncio.AbstractEventLoop) -> None:
    """From now on, tasks of `loop` that belong to a run cannot end the process."""
    loop.set_task_factory(_task)  # type: ignore[arg-type]  # typeshed has no name for `context`


def _task(
    loop: asyncio.AbstractEventLoop,
    coro: Coroutine[Any, Any, T],
    *,
    name: str | None = None,
    context: Context | None = None,
) -> asyncio.Task[T]:
    work = _confined(coro) if in_a_run(context) else coro
    return asyncio.Task(work, loop=loop, name=name, context=context)


async def _confined(coro: Coroutine[Any, Any, T]) -> T:
    try:
        return await coro
    except (SystemExit, KeyboardInterrupt) as exit:
        notes = getattr(exit, "__notes__", [])
        error = GraphExit(f"The graph raised {type(exit).__name__}.")
        error.__notes__ = list(notes)
        raise error from exit
