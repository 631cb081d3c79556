"""What a graph's code may not do: end the process that serves it.

asyncio lets `SystemExit` and `KeyboardInterrupt` of a task out of the event loop, so that
`sys.exit()` or an argparse in a tool would end the gateway, then the process that takes the run
over, and so on. A panic of a Rust extension is no `Exception` either, and nobody looks for it.
Tasks that are started within a run turn them into an ordinary error, which fails the run and
nothing else. What the run's own task calls of its author (`output`, settings) is in
`confined`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context
from typing import Any, TypeVar

from gateway.human.run import current_run, in_a_run
from gateway.runs.rounds import this_task

logger = logging.getLogger("fermata.runs")

T = TypeVar("T")


class GraphExit(RuntimeError):
    """The graph's code asked the process to end, or panicked."""


def confine_graphs(loop: asyncio.AbstractEventLoop) -> None:
    """From now on, tasks of `loop` that belong to a run cannot end the process, and its threads
    are known by their run."""
    loop.set_task_factory(_task)  # type: ignore[arg-type]  # typeshed has no name for `context`
    loop.set_default_executor(_RunThreads(thread_name_prefix="fermata-node"))


_AT_WORK: dict[str, set[Future[Any]]] = {}
"""Sync nodes and tools under way, by run."""


class _RunThreads(ThreadPoolExecutor):
    """The loop's threads, where LangGraph runs sync nodes and tools."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """As the base class; called in the context of whoever waits for the result."""
        future = super().submit(fn, *args, **kwargs)
        if in_a_run():
            run_id = current_run().run_id
            _AT_WORK.setdefault(run_id, set()).add(future)
            future.add_done_callback(lambda done: _is_through(run_id, done))
        return future


def _is_through(run_id: str, future: Future[Any]) -> None:
    futures = _AT_WORK.get(run_id, set())
    futures.discard(future)
    if not futures:
        _AT_WORK.pop(run_id, None)


async def threads_ended(run_id: str) -> None:
    """Wait until no thread works for this run any more. Cancelling a task ends async nodes at once;
    a sync node runs on to its end, and until then its run is not over."""
    while futures := list(_AT_WORK.get(run_id, ())):
        logger.info("run %s: its sync nodes cannot be stopped, and are waited for", run_id)
        await asyncio.wait([asyncio.wrap_future(future) for future in futures])


def _task(
    loop: asyncio.AbstractEventLoop,
    coro: Coroutine[Any, Any, T],
    *,
    name: str | None = None,
    context: Context | None = None,
) -> asyncio.Task[T]:
    if not in_a_run(context):
        return asyncio.Task(coro, loop=loop, name=name, context=context)
    task = asyncio.Task(_confined(coro), loop=loop, name=name, context=context)
    # A task that is cancelled before it began never comes to its coroutine, which would be reported
    # as never awaited. To close one that is through does nothing.
    task.add_done_callback(lambda _: coro.close())
    return task


async def _confined(coro: Coroutine[Any, Any, T]) -> T:
    """`confined` around a whole task, written out since a run has dozens of them; a `GeneratorExit`
    that the graph raised is told from the one that closes the task."""
    task = asyncio.current_task()
    try:
        return await coro
    except (Exception, asyncio.CancelledError):
        raise
    except GeneratorExit as exit:
        if this_task() is not task:
            raise  # it is closed, by whoever runs now
        raise _graph_exit(exit) from exit
    except BaseException as exit:
        raise _graph_exit(exit) from exit


@contextmanager
def confined() -> Iterator[None]:
    """Turn what is no `Exception` into `GraphExit`, in a block that runs its author's code in a
    task of ours. Cancellations pass, and so does what closes the block."""
    try:
        yield
    except (Exception, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as exit:
        raise _graph_exit(exit) from exit


def _graph_exit(raised: BaseException) -> GraphExit:
    error = GraphExit(f"The graph raised {type(raised).__name__}.")
    error.__notes__ = list(getattr(raised, "__notes__", []))
    return error
