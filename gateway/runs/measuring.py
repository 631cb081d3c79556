"""`input_tokens` and `compact`: what a context costs, and how it is carried in one item.

Neither starts a run. A graph may bring its own counter and its own compaction (`Graph`); both are
given LangChain messages, and `current_settings()` works in them.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.outputs import LLMResult
from langchain_core.tracers.context import register_configure_hook

from gateway.errors import FermataError, ModelNotFound, RunFailed
from gateway.human.run import CurrentRun, RunSettings, enter_run, settings_of
from gateway.runs.confined import confined
from gateway.runs.context import read_context
from gateway.runs.conversation import conversation
from gateway.runs.coordinator import Coordinator
from gateway.runs.graph import ServedGraph
from gateway.runs.principal import Principal
from gateway.runs.transcript import usage_of
from gateway.wire import encoding
from gateway.wire.compaction import pack, place_of
from gateway.wire.encoding import Json
from gateway.wire.history import Item, Message, parse_item, unfolded
from gateway.wire.ids import new_id
from gateway.wire.input_items import as_resource
from gateway.wire.items import Usage
from gateway.wire.request import CreateResponse

logger = logging.getLogger("fermata.graph")

CHARACTERS_PER_TOKEN = 4


async def count_input(
    coordinator: Coordinator, request: CreateResponse, principal: Principal, *, named: bool
) -> tuple[int, str]:
    """How many tokens the request's input is, and who says so: `graph`, or `estimate`.

    `named` is whether the client named a model. Raises `ModelNotFound`, and what `read_context`
    does.
    """
    served = _served(coordinator, request.model) if named else None
    history, items = await read_context(coordinator.database, request, principal)
    settings = settings_of(request)
    messages = conversation(history, items, settings.instructions)
    count = served.declared.count_tokens if served is not None else None
    if served is None or count is None:
        return _estimate(messages, settings), "estimate"
    counted = await _called(served, count, messages, settings, principal, "The token counter")
    if isinstance(counted, bool) or not isinstance(counted, int) or counted < 0:
        raise RunFailed(f"The token counter of '{served.name}' gave no number of tokens.")
    return counted, "graph"


def _estimate(messages: Sequence[BaseMessage], settings: RunSettings) -> int:
    """LangChain's rule of thumb: four characters a token, three tokens a message, 85 an image; for
    tools and a schema their JSON. No tokenizer is asked, since it is the graph that knows its
    models."""
    declared = [asdict(tool) for tool in settings.tools]
    beside = [*declared, *([settings.text_format] if settings.text_format else [])]
    characters = sum(len(encoding.dumps(one)) for one in beside)
    return count_tokens_approximately(messages) + -(-characters // CHARACTERS_PER_TOKEN)


async def compact(
    coordinator: Coordinator, request: CreateResponse, principal: Principal
) -> dict[str, Any]:
    """The context as a `response.compaction` resource. It is not stored.

    Raises `ModelNotFound`, what `read_context` does, and `RunFailed` if the graph's own compaction
    fails.
    """
    served = _served(coordinator, request.model)
    history, items = await read_context(coordinator.database, request, principal)
    usage = Usage()
    if served.declared.compact is None:
        output = carried(unfolded([*history, *items]))
    else:
        messages = conversation(history, items, None)
        settings = settings_of(request)
        with _counting() as count:
            made = await _called(
                served, served.declared.compact, messages, settings, principal, "The compaction"
            )
        output = [_compaction(_written(served, made))]
        usage = count.usage
    return {
        "id": new_id("resp"),
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": output,
        "usage": usage.resource(),
    }


def carried(items: Iterable[Item]) -> list[dict[str, Json]]:
    """The user's messages, and one compaction that holds the rest, and their places."""
    outside: list[dict[str, Json]] = []
    entries: list[Json] = []
    for item in items:
        resource = as_resource(item)
        if isinstance(item, Message) and item.role == "user":
            outside.append(resource)
            entries.append(_place(resource))
        else:
            entries.append(resource)
    return [*outside, _compaction(entries)]


def _place(resource: dict[str, Json]) -> str:
    message = parse_item(resource, "input")
    assert isinstance(message, Message)
    return place_of(message.role, message.parts)


def _compaction(entries: Sequence[Json]) -> dict[str, Json]:
    return {"id": new_id("cmp"), "type": "compaction", "encrypted_content": pack(entries)}


def _written(served: ServedGraph, made: Any) -> list[Json]:
    """What a graph's compaction gave: a text that stands for the history, or messages."""
    messages = [SystemMessage(made)] if isinstance(made, str) else made
    if not isinstance(messages, list) or not all(isinstance(m, BaseMessage) for m in messages):
        raise RunFailed(f"The compaction of '{served.name}' gave neither a text nor messages.")
    return [item for message in messages for item in _items(message)]


def _items(message: BaseMessage) -> list[Json]:
    if isinstance(message, ToolMessage):
        kind = "function_call_output"
        output = {"type": kind, "call_id": message.tool_call_id, "output": message.text}
        return [{**output, "id": new_id("fco")}]
    role = {"ai": "assistant", "human": "user"}.get(message.type, "developer")
    said = {"type": "message", "id": new_id("msg"), "role": role, "content": message.text}
    items: list[Json] = [said] if message.text else []
    for call in message.tool_calls if isinstance(message, AIMessage) else ():
        items.append(
            {
                "type": "function_call",
                "id": new_id("fc"),
                "call_id": call["id"] or new_id("call"),
                "name": call["name"],
                "arguments": encoding.dumps(call["args"]),
            }
        )
    return items


class _UsageSum(BaseCallbackHandler):
    """Adds up what model calls used; LangChain's own handler leaves out models without a name."""

    run_inline = True  # else every call hops to a thread

    def __init__(self) -> None:
        self.usage = Usage()

    def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:
        """One model call is through."""
        for generation in response.generations[0] if response.generations else ():
            message = getattr(generation, "message", None)
            if isinstance(message, AIMessage) and message.usage_metadata is not None:
                self.usage += usage_of(message.usage_metadata)


_COUNT: ContextVar[_UsageSum | None] = ContextVar("fermata_usage", default=None)
register_configure_hook(_COUNT, inheritable=True)


@contextmanager
def _counting() -> Iterator[_UsageSum]:
    """All model calls of the block, and of the tasks and threads that it starts, are counted."""
    count = _UsageSum()
    token = _COUNT.set(count)
    try:
        yield count
    finally:
        _COUNT.reset(token)


async def _called(
    served: ServedGraph,
    function: Callable[[list[BaseMessage]], Any],
    messages: list[BaseMessage],
    settings: RunSettings,
    principal: Principal,
    what: str,
) -> Any:
    """The graph's own function, which may be async. What it raises is its failure."""
    current = CurrentRun(
        run_id=new_id("run"),
        response_id=new_id("resp"),
        tenant=principal.tenant,
        requester=principal.subject,
        settings=settings,
    )

    async def called() -> Any:
        enter_run(current)  # for this task alone
        with confined():
            if inspect.iscoroutinefunction(function):
                return await function(messages)
            made = await asyncio.to_thread(function, messages)  # a tokenizer takes its time
            return await made if inspect.isawaitable(made) else made

    try:
        return await asyncio.create_task(called())
    except FermataError:
        raise
    except Exception as error:
        logger.exception("%s of %s failed", what, served.name)
        kind = type(error).__name__
        raise RunFailed(f"{what} of '{served.name}' failed with {kind}.") from None


def _served(coordinator: Coordinator, model: str) -> ServedGraph:
    served = coordinator.graphs.get(model)
    if served is None:
        raise ModelNotFound(model)
    return served
