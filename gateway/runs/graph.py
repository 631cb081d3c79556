"""What is served: a graph as its author declares it, compiled and looked at once."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, TypeAlias

from langchain_core.messages import BaseMessage
from langgraph.channels import DeltaChannel
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel
from pydantic import BaseModel

from gateway.errors import StartupError
from gateway.human.published import PublishedSettings
from gateway.runs.graph_input import default_input, input_schema
from gateway.runs.speech import speaking_nodes

logger = logging.getLogger("fermata.graph")

AnyGraph: TypeAlias = Pregel[Any, Any, Any, Any] | StateGraph[Any, Any, Any, Any]
Factory: TypeAlias = Callable[..., "AnyGraph | Awaitable[AnyGraph]"]

A_SECOND = timedelta(seconds=1)
_CALL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph to serve, and how.

    `graph` is a StateGraph, a compiled graph, a functional-API entrypoint, or a sync or async
    factory of one (called once, at start-up; a factory that needs a parameter, or has one called
    `config`, gets an empty LangGraph config). The gateway gives it its checkpointer.

    `interrupt_name` names the function call of a raw `interrupt(value)`: 1 to 64 of
    `[a-zA-Z0-9_-]`. `live` says which nodes' tokens are streamed as they come: a set of node
    names (`"node"`, `"subgraph:node"`), True for all, False for none; None infers it (see
    `runs.speech`). All other messages are shown when their node ends. `on_disconnect` says what
    becomes of a run whose client leaves before its end; a run with an accepted answer always
    continues, and so does one in the background. `retries` is how often a run that raised is tried
    again by itself, from its last finished step: after `backoff`, then twice that, and so on up to
    a minute. What cannot get better (a question without a JSON form, a `RunFailed`) is not.
    `input` makes the graph's input from the LangChain messages of the conversation, `output` the
    final text from the graph's result; both have defaults that suit a state with `messages`.
    `settings` is a pydantic model of what clients may set for a run, through the
    request's `metadata` (see `human.published`); nodes read it by `current_settings(Model)`, or as
    `runtime.context` if the graph declares a `context_schema`. `count_tokens` counts the messages
    of a context for `/v1/responses/input_tokens`, `compact` says them in fewer words for
    `/v1/responses/compact`: a text, or messages, that stand for them. Both may be async; without
    them the gateway estimates, and carries the messages as they are.

    Raises `StartupError` for values that cannot be.
    """

    graph: AnyGraph | Factory
    description: str = ""
    interrupt_name: str = "interrupt"
    live: frozenset[str] | set[str] | bool | None = None
    on_disconnect: Literal["continue", "cancel"] = "continue"
    retries: int = 0
    backoff: timedelta = A_SECOND
    input: Callable[[list[BaseMessage]], Any] | None = None
    output: Callable[[Any], str] | None = None
    settings: type[BaseModel] | None = None
    count_tokens: Callable[[list[BaseMessage]], int | Awaitable[int]] | None = field(
        default=None, kw_only=True
    )
    compact: Callable[[list[BaseMessage]], Any] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not _CALL_NAME.fullmatch(self.interrupt_name):
            raise StartupError(
                f"Graph(interrupt_name={self.interrupt_name!r}):"
                " 1 to 64 of a-z, A-Z, 0-9, _ and - please."
            )
        if self.on_disconnect not in ("continue", "cancel"):
            raise StartupError(
                f"Graph(on_disconnect={self.on_disconnect!r}): 'continue' or 'cancel' please."
            )
        if self.retries < 0 or self.backoff < timedelta():
            raise StartupError("Graph(retries=…, backoff=…): neither can be negative.")


class ServedGraph:
    """A graph, compiled and ready: one per model name, shared by all its runs."""

    def __init__(self, name: str, declared: Graph, compiled: Pregel[Any, Any, Any, Any]) -> None:
        self.name = name
        self.declared = declared
        self.compiled = compiled
        self.has_messages = "messages" in compiled.channels
        self.prunes = not _rebuilds_from_older_checkpoints(compiled)
        self._sharing = frozenset(_sharing_subgraphs(compiled))
        self._input_schema = {} if declared.input else input_schema(name, compiled)
        self._speaking = _declared_speakers(declared, compiled)
        wanted = declared.settings
        self.settings = None if wanted is None else PublishedSettings.of(wanted)

    @property
    def description(self) -> str:
        return self.declared.description

    def speaks(self, path: str) -> bool:
        """Whether the tokens of the node at `path` are shown live."""
        return self.declared.live is True or path in self._speaking

    def shares(self, ns: Sequence[str]) -> bool:
        """Whether what is written to `messages` in this namespace reaches the root state's."""
        return not ns or ":".join(step.partition(":")[0] for step in ns) in self._sharing

    def silence(self, paths: Iterable[str]) -> None:
        """These nodes were thought to speak and only thought: their text waits for the state from
        now on."""
        for path in paths:
            if path in self._speaking:
                logger.warning(
                    "model %s: node %s streamed text that never reached the state;"
                    " it is shown at the node's end from now on (see Graph(live=…))",
                    self.name,
                    path,
                )
                self._speaking.discard(path)

    def context_of(self, published: BaseModel) -> Any:
        """What `runtime.context` is for a graph that declares a `context_schema`: the settings, in
        its form."""
        schema = self.compiled.context_schema
        if schema is None:
            return None
        return published if schema is type(published) else published.model_dump()

    def drawn(self) -> str:
        """Its topology as Mermaid, subgraphs opened, by LangGraph's own drawing."""
        return self.compiled.get_graph(xray=True).draw_mermaid()

    def first_input(self, messages: list[BaseMessage]) -> Any:
        """The graph's input for a conversation. Raises `InvalidRequest` if none can be made of
        it."""
        if self.declared.input is not None:
            return self.declared.input(messages)
        return default_input(self._input_schema, messages)


async def serve_graph(name: str, declared: Graph) -> ServedGraph:
    """Resolve factories, compile, and look at the graph once.

    Raises `StartupError` if what is declared is no graph.
    """
    graph: Any = declared.graph
    if callable(graph) and not isinstance(graph, Pregel | StateGraph):
        graph = await _made(name, graph)
    if isinstance(graph, StateGraph):
        graph = graph.compile()
    if not isinstance(graph, Pregel):
        raise StartupError(
            f"Model {name!r}: expected a StateGraph, a compiled graph, an entrypoint"
            f" or a factory of one, got {type(graph).__name__}."
        )
    return ServedGraph(name, declared, graph)


async def _made(name: str, factory: Callable[..., Any]) -> Any:
    """What the factory makes; if it raises, the error says of which model."""
    try:
        made = factory({"configurable": {}}) if _takes_config(factory) else factory()
        return await made if inspect.isawaitable(made) else made
    except Exception as error:
        error.add_note(f"While the graph of model {name!r} was made.")
        raise


def _takes_config(factory: Callable[..., Any]) -> bool:
    """As LangGraph's server calls factories, whose one parameter is a config; but a parameter of
    another name that may be left out is the factory's own."""
    parameters = inspect.signature(factory).parameters.values()
    return any(
        one.name == "config"
        or (one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD))
        for one in parameters
    )


def _rebuilds_from_older_checkpoints(graph: Pregel[Any, Any, Any, Any]) -> bool:
    graphs = [graph, *(inner for _, inner in graph.get_subgraphs(recurse=True))]
    return any(
        isinstance(channel, DeltaChannel)
        for one in graphs
        if isinstance(one, Pregel)
        for channel in one.channels.values()
    )


def _sharing_subgraphs(graph: Pregel[Any, Any, Any, Any], prefix: str = "") -> Iterator[str]:
    """Paths of the subgraphs that are nodes themselves and write to their parent's `messages`."""
    for name, node in graph.nodes.items():
        inner = node.bound
        if isinstance(inner, Pregel) and "messages" in _as_list(inner.output_channels):
            yield f"{prefix}{name}"
            yield from _sharing_subgraphs(inner, f"{prefix}{name}:")


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _declared_speakers(declared: Graph, compiled: Pregel[Any, Any, Any, Any]) -> set[str]:
    if declared.live is None:
        return set(speaking_nodes(compiled))
    return set() if isinstance(declared.live, bool) else set(declared.live)
