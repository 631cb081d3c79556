"""One run of a graph, driven to its pause, its end or its failure.

A run executes on an in-memory saver of its own (`store.checkpoints` says why), with exit
durability until it has asked, and is resumed only by a map of validated interrupt ids with strict
resume, so that a stale answer can never meet the next question of a node (LangGraph's default lets
it).

A breakpoint (`interrupt_before`, `interrupt_after`) pauses without an interrupt. It is told as one,
an approval of the nodes that run next. Its answer never reaches LangGraph: yes goes on from the
checkpoint, no runs nothing any more.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import LLMResult
from langchain_core.runnables import RunnableConfig
from langgraph.constants import TAG_NOSTREAM
from langgraph.errors import GraphDrained, is_invalid_resume
from langgraph.types import Command, Interrupt

from gateway.errors import LeaseLost, RunFailed
from gateway.human.run import CurrentRun, enter_run
from gateway.runs.confined import confined
from gateway.runs.events import (
    BREAKPOINT,
    Breakpoint,
    Completed,
    Failed,
    Paused,
    PendingInterrupt,
    RunEvent,
)
from gateway.runs.failures import explained, reasons, told
from gateway.runs.graph import ServedGraph
from gateway.runs.hearing import hear
from gateway.runs.outset import Outset
from gateway.runs.progress import MODES, progress
from gateway.runs.transcript import Transcript
from gateway.wire import encoding

logger = logging.getLogger("fermata.graph")

STRICT_RESUME = "__pregel_strict_resume"
"""Private to LangGraph; a contract test watches it."""


def drive(served: ServedGraph, outset: Outset, current: CurrentRun) -> AsyncIterator[RunEvent]:
    """The events of one run; the last is its outcome. Raises only what cancels the task."""
    return _Drive(served, outset, current).events()


class _UsageCount(BaseCallbackHandler):
    """Counts tokens where no message chunks are streamed that would carry them.

    A third of a short run is LangGraph's `messages` stream (measured: 3.7 against 2.3 ms), which
    also makes every model call a streaming one; a reader of JSON needs neither.
    """

    run_inline = True  # else every call hops to a thread

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._hidden: set[UUID] = set()

    @property
    def ignore_chain(self) -> bool:
        """Nodes and steps say nothing about tokens."""
        return True

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: UUID, tags: Any = None, **kwargs: Any
    ) -> None:
        """Calls tagged `nostream` are not streamed either: the same usage in both modes."""
        if tags and TAG_NOSTREAM in tags:
            self._hidden.add(run_id)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """One model call is through."""
        if run_id in self._hidden:
            return
        for generation in response.generations[0] if response.generations else ():
            message = getattr(generation, "message", None)
            if isinstance(message, AIMessage) and message.usage_metadata is not None:
                self._transcript.count(message.usage_metadata, message.id)


class _Drive:
    """One run under way."""

    def __init__(self, served: ServedGraph, outset: Outset, current: CurrentRun) -> None:
        self.served = served
        self.outset = outset
        self.current = current
        self.graph = copy.copy(served.compiled)  # Pregel.copy validates it anew, at each run
        self.graph.checkpointer = outset.memory
        self.interrupts: dict[str, Interrupt] = {}
        self.asking: set[tuple[str, ...]] = set()  # namespaces of the subgraphs that interrupt
        self.stopped = False  # at a breakpoint
        self.awaited: tuple[str, ...] = ()  # the nodes that it keeps from running
        self.result: Any = None
        self.context: Any = None
        self.transcript = Transcript(
            speaks=served.speaks,
            client_tools=frozenset(tool.name for tool in current.settings.tools),
            known=self._known_messages(),
        )
        self.config: RunnableConfig = {
            "configurable": {"thread_id": current.run_id, STRICT_RESUME: True}
        }
        if not outset.live:
            self.config["callbacks"] = [_UsageCount(self.transcript)]

    async def events(self) -> AsyncIterator[RunEvent]:
        enter_run(self.current)
        try:
            with confined():
                self._publish_settings()
                pieces = self._rejection_pieces()
                if pieces is None:
                    async for part in hear(
                        self.graph,
                        self.served,
                        self.outset,
                        self.config,
                        given=await self._input(),
                        context=self.context,
                    ):
                        for piece in self._pieces(part):
                            yield piece
                    await self._look_ahead()
                    pieces = self._result_pieces()
                for piece in pieces:
                    yield piece
                outcome: Paused | Completed | Failed = self._outcome()
        except GraphDrained as drained:  # a node took its cancellation for something else
            raise asyncio.CancelledError from drained
        except LeaseLost:
            raise  # an effect was refused to who may not move the run: nor may it say how that ends
        except Exception as error:
            logger.exception("run %s of %s failed", self.current.run_id, self.served.name)
            outcome = self._failure(explained(error, self.interrupts.values()))
        self.served.silence(self.transcript.unconfirmed)
        yield outcome

    def _publish_settings(self) -> None:
        """Read again here, since a resumed run has only what was stored of the first request."""
        if self.served.settings is None:
            return
        published = self.served.settings.parse(self.current.settings.metadata)
        enter_run(replace(self.current, published=published))
        self.context = self.served.context_of(published)

    async def _input(self) -> Any:
        answers = self.outset.answers
        if self.outset.further:
            return None
        if answers is None:
            return self.served.first_input(self.outset.messages)
        if self.outset.again:
            pending = {item.id for item in (await self.graph.aget_state(self.config)).interrupts}
            answers = {key: value for key, value in answers.items() if key in pending}
        resume = {key: value for key, value in answers.items() if not key.startswith(BREAKPOINT)}
        return Command(resume=resume) if resume else None

    def _rejection_pieces(self) -> Iterable[Any] | None:
        """What is said when somebody wants no more of the graph to run; None if nobody does."""
        for key, answer in (self.outset.answers or {}).items():
            if key.startswith(BREAKPOINT) and answer["action"] != "approve":
                nodes = key.removeprefix(BREAKPOINT).replace(",", ", ")
                return self.transcript.messages(
                    ("ai", f"{nodes} was not approved; nothing more was run.")
                )
        return None

    async def _look_ahead(self) -> None:
        """What the run waits for. Several questions are told in the order of their tasks (of
        `Send`, of a message's calls): they come as they happen, in an order that threads make up.

        A breakpoint after the last node keeps nothing from running: the run is complete.
        """
        if len(self.interrupts) > 1:
            waiting = (await self.graph.aget_state(self.config)).interrupts
            ordered = {item.id: item for item in waiting if item.id in self.interrupts}
            self.interrupts = ordered | self.interrupts
        if self.stopped and not self.interrupts:
            self.awaited = tuple(dict.fromkeys((await self.graph.aget_state(self.config)).next))

    def _known_messages(self) -> list[str]:
        """Ids of the messages that are there before the run moves: none of them is new."""
        held: list[Any] = list(self.outset.messages)
        if self.outset.answers is not None or self.outset.further:
            for ns, messages in self.outset.memory.values_of("messages"):
                # Of a run that goes on by itself, what a subgraph said is told when its node ends.
                if not (ns and self.outset.further):
                    held += _as_list(messages)
        return [item.id for item in held if isinstance(item, BaseMessage) and item.id is not None]

    def _pieces(self, part: Mapping[str, Any]) -> Iterable[Any]:
        kind = part["type"]
        if kind == "messages":
            message, facts = part["data"]
            return self.transcript.chunk(message, facts.get("langgraph_node", ""), part["ns"])
        if kind == "values":
            self.result = self.result if part["ns"] else part["data"]
            return ()
        if kind in MODES:
            return progress(part)
        if part["ns"] and "__interrupt__" in part["data"]:
            self.asking.add(part["ns"])
        return self._updated(part["data"], part["ns"]) if self.served.shares(part["ns"]) else ()

    def _updated(self, update: Mapping[str, Any], ns: Sequence[str]) -> Iterable[Any]:
        for node, written in update.items():
            if node == "__interrupt__":
                if not ns:
                    self.interrupts.update({item.id: item for item in written})
                    self.stopped = not written
            elif self.served.has_messages:
                yield from self.transcript.update(written)

    def _result_pieces(self) -> Iterable[Any]:
        """Graphs without `messages` in their state say what they have to say with their result."""
        if self.interrupts or self.awaited:
            return
        if self.served.has_messages and self.served.declared.output is None:
            return
        yield from self.transcript.messages(self._result_messages())

    def _result_messages(self) -> Any:
        result = self.result
        if self.served.declared.output is not None:
            return ("ai", self.served.declared.output(result))
        if isinstance(result, Mapping) and "messages" in result:
            return result["messages"]
        if isinstance(result, BaseMessage):
            return result
        if isinstance(result, list) and any(isinstance(item, BaseMessage) for item in result):
            return result
        if isinstance(result, str):
            return ("ai", result)
        return ("ai", encoding.dumps(encoding.to_jsonable(result, "result")))

    def _refuse_unresumable(self) -> None:
        """A subgraph with `checkpointer=False` would ask for ever: nothing holds its answer."""
        for ns in self.asking:
            place: RunnableConfig = {
                "configurable": {"thread_id": self.current.run_id, "checkpoint_ns": "|".join(ns)}
            }
            if self.outset.memory.get_tuple(place) is None:
                name = ns[-1].partition(":")[0]
                raise RunFailed(
                    f"The subgraph in node '{name}' asks a question but keeps no checkpoints"
                    " (checkpointer=False), so that it could never be resumed."
                )

    def _failure(self, error: Exception) -> Failed:
        """An error that names itself (`RunFailed`) is for good: the same run would raise it
        again."""
        usage = self.transcript.usage
        if is_invalid_resume(error):
            message = f"The answer does not fit what the question asks for: {reasons(error)}"
            return Failed(message, "invalid_interrupt_answer", usage, refused_answer=True)
        return Failed(*told(error), usage=usage, final=isinstance(error, RunFailed))

    def _outcome(self) -> Paused | Completed:
        usage = self.transcript.usage
        self._refuse_unresumable()
        if self.interrupts or self.awaited:
            self.outset.memory.settle()  # here, where an error can name what cannot be stored
        if self.interrupts:
            pending = tuple(
                PendingInterrupt(item.id, item.value, item.response_schema)
                for item in self.interrupts.values()
            )
            return Paused(pending, usage)
        if self.awaited:
            stop = Breakpoint(self.awaited)
            return Paused((PendingInterrupt(stop.interrupt_id, stop),), usage)
        return Completed(usage, self.transcript.incomplete)


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
