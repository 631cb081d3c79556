"""The only caller of LangGraph: what is served, and how one run of it is driven.

A run executes on an in-memory saver of its own (`store.checkpoints` says why) with exit
durability, and is resumed only by a map of validated interrupt ids with strict resume, so that a
stale answer can never meet the next question of a node (LangGraph's default lets it).

A breakpoint (`interrupt_before`, `interrupt_after`) pauses without an interrupt. It is told as one,
an approval of the nodes that run next. Its answer never reaches LangGraph: yes goes on from the
checkpoint, no runs nothing any more.
"""

from __future__ import annotations

import copy
import inspect
import logging
import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal, TypeAlias
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import LLMResult
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.constants import TAG_NOSTREAM
from langgraph.errors import is_invalid_resume
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt
from pydantic import BaseModel, PydanticUserError, ValidationError

from gateway.errors import FermataError, InvalidRequest, LeaseLost, RunFailed, StartupError
from gateway.human.published import PublishedSettings
from gateway.human.run import CurrentRun, enter_run
from gateway.runs.events import (
    BREAKPOINT,
    Breakpoint,
    Completed,
    Failed,
    Paused,
    PendingInterrupt,
    RunEvent,
)
from gateway.runs.progress import MODES, progress
from gateway.runs.speech import speaking_nodes
from gateway.runs.transcript import Transcript
from gateway.store.checkpoints import RunMemory, StepMemory, new_memory
from gateway.wire import encoding

logger = logging.getLogger("fermata.graph")

AnyGraph: TypeAlias = Pregel[Any, Any, Any, Any] | StateGraph[Any, Any, Any, Any]
Factory: TypeAlias = Callable[..., "AnyGraph | Awaitable[AnyGraph]"]

A_SECOND = timedelta(seconds=1)
STRICT_RESUME = "__pregel_strict_resume"  # private to LangGraph; a contract test watches it
_TASK_NOTE = re.compile(r"During task with name '([^']+)'")
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


@dataclass(slots=True)
class Outset:
    """How a run is set going: with messages, or with answers on the checkpoints of its pause."""

    memory: RunMemory = field(default_factory=new_memory)
    messages: list[BaseMessage] = field(default_factory=list)
    answers: Mapping[str, Any] | None = None
    live: bool = True
    """Whether anybody reads tokens as they come; if not, models are not asked to stream."""
    progress: bool = False
    """Whether the reader asked for what is outside the standard (`runs.progress`)."""
    again: bool = False
    """The run failed after these answers: it may be past its interrupts."""
    further: bool = False
    """It goes on from its checkpoints, which need no answer."""

    def again_from_its_last_step(self) -> Outset:
        """The same run after it raised: from its last finished step, or from its beginning if it
        has none."""
        if self.answers is not None:
            return replace(self, again=True)
        return replace(self, further=self.memory.has_checkpoints)


class ServedGraph:
    """A graph, compiled and ready: one per model name, shared by all its runs."""

    def __init__(self, name: str, declared: Graph, compiled: Pregel[Any, Any, Any, Any]) -> None:
        self.name = name
        self.declared = declared
        self._graph = compiled
        self._has_messages = "messages" in compiled.channels
        self.prunes = not _rebuilds_from_older_checkpoints(compiled)
        self._sharing = frozenset(_sharing_subgraphs(compiled))
        self._input_schema = {} if declared.input else _input_schema(name, compiled)
        self._speaking = _declared_speakers(declared, compiled)
        wanted = declared.settings
        self.settings = None if wanted is None else PublishedSettings.of(wanted)

    @property
    def description(self) -> str:
        return self.declared.description

    def run(self, outset: Outset, current: CurrentRun) -> AsyncIterator[RunEvent]:
        """The events of one run; the last is its outcome. Raises `LeaseLost`, and what cancels the
        task."""
        return _Drive(self, outset, current).events()

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
        schema = self._graph.context_schema
        if schema is None:
            return None
        return published if schema is type(published) else published.model_dump()

    def drawn(self) -> str:
        """Its topology as Mermaid, subgraphs opened, by LangGraph's own drawing."""
        return self._graph.get_graph(xray=True).draw_mermaid()

    def first_input(self, messages: list[BaseMessage]) -> Any:
        """The graph's input for a conversation. Raises `InvalidRequest` if none can be made of
        it."""
        if self.declared.input is not None:
            return self.declared.input(messages)
        return _default_input(self._input_schema, messages)


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
        self.graph = copy.copy(served._graph)  # Pregel.copy validates it anew, at each run
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
            self._publish_settings()
            pieces = self._rejection_pieces()
            if pieces is None:
                async for part in await self._parts():
                    for piece in self._pieces(part):
                        yield piece
                await self._look_ahead()
                pieces = self._result_pieces()
            for piece in pieces:
                yield piece
            outcome: Paused | Completed | Failed = self._outcome()
        except LeaseLost:
            raise  # an effect was refused to who may not move the run: nor may it say how that ends
        except Exception as error:
            logger.exception("run %s of %s failed", self.current.run_id, self.served.name)
            outcome = self._failure(_explained(error, self.interrupts.values()))
        self.served.silence(self.transcript.unconfirmed)
        yield outcome

    def _publish_settings(self) -> None:
        """Read again here, since a resumed run has only what was stored of the first request."""
        if self.served.settings is None:
            return
        published = self.served.settings.parse(self.current.settings.metadata)
        enter_run(replace(self.current, published=published))
        self.context = self.served.context_of(published)

    async def _parts(self) -> AsyncIterator[Any]:
        modes: list[Any] = ["messages", "updates"] if self.outset.live else ["updates"]
        if not self.served._has_messages:
            modes.append("values")
        if self.outset.progress:
            modes += MODES
        return self.graph.astream(
            await self._input(),
            self.config,
            stream_mode=modes,
            version="v2",
            subgraphs=True,
            durability="sync" if isinstance(self.outset.memory, StepMemory) else "exit",
            context=self.context,
        )

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
            for saved in self.outset.memory.list(
                {"configurable": {"thread_id": self.current.run_id}}
            ):
                # Of a run that goes on by itself, what a subgraph said is told when its node ends.
                if saved.config["configurable"]["checkpoint_ns"] and self.outset.further:
                    continue
                held += _as_list(saved.checkpoint["channel_values"].get("messages"))
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
            elif self.served._has_messages:
                yield from self.transcript.update(written)

    def _result_pieces(self) -> Iterable[Any]:
        """Graphs without `messages` in their state say what they have to say with their result."""
        if self.interrupts or self.awaited:
            return
        if self.served._has_messages and self.served.declared.output is None:
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
            message = f"The answer does not fit what the question asks for: {_reasons(error)}"
            return Failed(message, "invalid_interrupt_answer", usage, refused_answer=True)
        return Failed(*_told(error), usage=usage, final=isinstance(error, RunFailed))

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


def _input_schema(name: str, graph: Pregel[Any, Any, Any, Any]) -> Mapping[str, Any]:
    """What the graph takes. LangGraph runs states that pydantic cannot describe, such as one that
    holds a `typing.TypedDict` before Python 3.12; what has messages is given them then."""
    try:
        return graph.get_input_jsonschema()
    except PydanticUserError as error:
        if "messages" in graph.channels:
            return {}
        reason = str(error).partition("\n")[0]
        raise StartupError(
            f"Model {name!r}: what it takes as its input cannot be told ({reason});"
            " say it with Graph(input=…)."
        ) from error


def _default_input(schema: Mapping[str, Any], messages: list[BaseMessage]) -> Any:
    if schema.get("type") == "string":
        return _last_text(messages)
    if schema.get("type") == "array":
        return messages
    properties = schema.get("properties") or {}
    if not properties or "messages" in properties:
        return {"messages": messages}
    texts = [key for key, value in properties.items() if value.get("type") == "string"]
    text = _last_text(messages)
    if len(texts) == 1 and set(schema.get("required", texts)) <= set(texts):
        return {texts[0]: text}
    return _json_input(text, properties)


def _json_input(text: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    try:
        value = encoding.loads(text)
    except InvalidRequest:
        value = None
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"This graph takes a JSON object with {', '.join(sorted(properties))}"
            " as its last user text.",
            param="input",
        )
    return value


def _last_text(messages: Sequence[BaseMessage]) -> str:
    texts = [message.text for message in messages if isinstance(message, HumanMessage)]
    return texts[-1] if texts else ""


def _explained(error: Exception, interrupts: Iterable[Interrupt]) -> Exception:
    """LangGraph says "Type is not msgpack serializable: Interrupt"; people want to know which
    value."""
    for interrupt in interrupts:
        try:
            encoding.to_jsonable(interrupt.value)
        except RunFailed as unfit:
            return unfit
        place = _beyond_64_bits(interrupt.value, "payload")
        if place is not None:
            return RunFailed(f"{place} is an integer beyond 64 bits, which cannot be stored.")
    return error


def _beyond_64_bits(value: Any, place: str) -> str | None:
    if isinstance(value, int):
        return place if not -(2**63) <= value < 2**64 else None
    entries: Iterable[tuple[str, Any]] = ()
    if isinstance(value, Mapping):
        entries = ((f"{place}.{key}", inner) for key, inner in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        entries = ((f"{place}[{index}]", inner) for index, inner in enumerate(value))
    found = (_beyond_64_bits(inner, inner_place) for inner_place, inner in entries)
    return next((hit for hit in found if hit is not None), None)


def _reasons(error: BaseException) -> str:
    """What a validator says about an answer: about what the reviewer sent, so no secret."""
    if isinstance(error, ValidationError):
        return "; ".join(
            f"{'.'.join(map(str, one['loc'])) or 'value'}: {one['msg']}"
            for one in error.errors(include_url=False, include_context=False, include_input=False)
        )
    return str(error)


def _told(error: Exception) -> tuple[str, str]:
    """What a client may know of a failure: where and what kind. An exception's own text may hold
    secrets."""
    if isinstance(error, FermataError):
        return error.message, error.error_code
    notes = "\n".join(getattr(error, "__notes__", ()))
    task = _TASK_NOTE.search(notes)
    where = f" in node '{task[1]}'" if task else ""
    return f"The graph failed{where} with {type(error).__name__}.", "run_failed"
