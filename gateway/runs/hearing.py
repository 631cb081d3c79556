"""What a graph tells while it runs: LangGraph's stream, as the run and its reader need it.

Two private keys of LangGraph's config let subgraphs tell the run at once what they do, and one
attribute of its loop is set; contract tests watch all three.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.pregel import Pregel
from langgraph.pregel._loop import PregelLoop
from langgraph.pregel.protocol import StreamProtocol
from langgraph.runtime import Runtime
from langgraph.types import Durability, StreamMode

from gateway.runs.graph import ServedGraph
from gateway.runs.outset import Outset
from gateway.runs.progress import MODES
from gateway.runs.rounds import heed_cancellation
from gateway.store.checkpoints import StepMemory

STREAM = "__pregel_stream"
RUNTIME = "__pregel_runtime"


class _NothingPut:
    """What a loop without a checkpointer has to wait for after a step."""

    def result(self) -> None:
        """At once."""

    def __await__(self) -> Iterator[None]:
        return iter(())


# With sync durability LangGraph waits for what a subgraph with `checkpointer=False` never set; a
# contract test tells when it no longer does.
PregelLoop._put_checkpoint_fut = _NothingPut()  # type: ignore[assignment]


async def hear(
    graph: Pregel[Any, Any, Any, Any],
    served: ServedGraph,
    outset: Outset,
    config: RunnableConfig,
    *,
    given: Any,
    context: Any,
) -> AsyncIterator[Mapping[str, Any]]:
    """Run `graph`, the copy of `served` that belongs to the run, on `given`, and give its parts;
    those of its subgraphs before their node's, and before its error.

    Raises what the graph raises, and `GraphDrained` if it was told to start no further node."""
    nested: deque[Mapping[str, Any]] = deque()  # what subgraphs told; threads append
    modes: list[StreamMode] = ["messages", "updates"] if outset.live else ["updates"]
    if not served.has_messages:
        modes.append("values")
    if outset.progress:
        modes += MODES
    # A StepMemory records with a step's checkpoint what the step said. Without the tasks that wait
    # for news, what it said comes after the checkpoint.
    watched = outset.live or outset.progress or isinstance(outset.memory, StepMemory)
    parts = graph.astream(
        given,
        config if watched else _hearing_subgraphs(graph, config, nested),
        stream_mode=modes,
        version="v2",
        subgraphs=watched,
        durability=_durability(served, outset),
        control=outset.control,
        context=context,
    )
    try:
        async for part in parts:
            while nested:
                yield nested.popleft()
            yield part
    except (Exception, asyncio.CancelledError):
        while nested:
            yield nested.popleft()
        raise
    heed_cancellation()
    while nested:
        yield nested.popleft()


def _durability(served: ServedGraph, outset: Outset) -> Durability:
    """`exit` is the cheapest. With it LangGraph keeps nothing of a subgraph that has ended, and
    starts it anew when its node is resumed for another question: what it asked would be asked for
    ever. So a run that has asked keeps what its steps leave, in memory."""
    memory = outset.memory
    if isinstance(memory, StepMemory):
        return "sync"
    if outset.answers is None:
        return "exit"
    memory.keeps_newest = served.prunes
    return "async"


def _hearing_subgraphs(
    graph: Pregel[Any, Any, Any, Any], config: RunnableConfig, nested: deque[Mapping[str, Any]]
) -> RunnableConfig:
    """What LangGraph's `subgraphs=True` does, for a reader who waits for the end: subgraphs tell us
    at once. With `subgraphs=True` each step waits for news beside its node, in tasks of their own
    (measured: a fifth of the time that LangGraph takes for a short run)."""

    def heard(chunk: tuple[tuple[str, ...], str, Any]) -> None:
        ns, kind, data = chunk
        if ns:  # its own updates the root tells as ever
            nested.append({"type": kind, "ns": ns, "data": data})

    # LangGraph takes the graph's store from the runtime, once there is one.
    runtime = Runtime(store=graph.store)
    more = {STREAM: StreamProtocol(heard, {"updates"}), RUNTIME: runtime}
    return {**config, "configurable": {**config["configurable"], **more}}
