"""What graph code may know about the run it is part of.

    from gateway import current_run, current_settings

Both work in any node, tool or subgraph of a run that the gateway started, sync or async; outside
of one, `current_settings()` gives empty settings and `current_run()` raises `LookupError`.
`current_settings(Model)` gives the settings that the graph itself publishes by
`Graph(settings=Model)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar, overload

from pydantic import BaseModel

from gateway.human.ledger import Ledger
from gateway.wire.encoding import dumps, parse
from gateway.wire.request import CreateResponse


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function that the client declared and will run itself when it is called.

    `parameters` is a JSON Schema, or None if the client sent none.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What the request that started the run asked for, for graphs that can use it.

    A value of None means that the client did not say. A resumed run keeps the settings it was
    started with. Source of the fields: the request of OpenAI's `responses.create`;
    `seed` and `stop` are those of `chat.completions.create`.
    """

    instructions: str | None = None
    tools: tuple[FunctionTool, ...] = ()
    tool_choice: str | Mapping[str, Any] = "auto"
    parallel_tool_calls: bool = True
    metadata: Mapping[str, str] = field(default_factory=dict)
    text_format: Mapping[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    reasoning: Mapping[str, Any] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()


def settings_of(request: CreateResponse) -> RunSettings:
    """The settings that a request asks for."""
    wanted = request.text_format
    reasoning = request.reasoning
    return RunSettings(
        instructions=request.instructions,
        tools=tuple(
            FunctionTool(tool.name, tool.description or "", tool.parameters, tool.strict or False)
            for tool in request.tools
            if tool.type == "function" and tool.name is not None
        ),
        tool_choice=request.tool_choice,
        parallel_tool_calls=request.parallel_tool_calls,
        metadata=request.metadata,
        text_format=None if wanted.type == "text" else asdict(wanted),
        temperature=request.temperature,
        top_p=request.top_p,
        max_output_tokens=request.max_output_tokens,
        reasoning=None if reasoning is None else asdict(reasoning),
        user=request.user,
        safety_identifier=request.safety_identifier,
        seed=request.seed,
        stop=request.stop,
    )


def settings_text(settings: RunSettings) -> str:
    """The settings as JSON text, to be kept with a run that waits."""
    return dumps(asdict(settings))


def settings_from(text: str) -> RunSettings:
    """The settings back from `settings_text`; fields that a later version added are left out."""
    stored = parse(text)
    fields = {key: value for key, value in stored.items() if key in RunSettings.__slots__}
    fields["tools"] = tuple(FunctionTool(**tool) for tool in stored["tools"])
    fields["stop"] = tuple(stored.get("stop", ()))
    return RunSettings(**fields)


@dataclass(frozen=True, slots=True)
class CurrentRun:
    """The facts of a run: `run_id` is the LangGraph thread, `requester` the subject that started
    it, `published` what the request set of `Graph(settings=Model)`. `ledger` is where its effects
    are kept; graph code uses `effect` instead."""

    run_id: str
    response_id: str
    tenant: str
    requester: str
    settings: RunSettings
    published: BaseModel | None = None
    ledger: Ledger | None = field(default=None, repr=False, compare=False)


_CURRENT: ContextVar[CurrentRun] = ContextVar("fermata_run")
_NO_SETTINGS = RunSettings()


def current_run() -> CurrentRun:
    """The run that the calling graph code is part of.

    Raises `LookupError` outside of a run that the gateway started.
    """
    return _CURRENT.get()


Published = TypeVar("Published", bound=BaseModel)


@overload
def current_settings() -> RunSettings: ...
@overload
def current_settings(model: type[Published]) -> Published: ...
def current_settings(model: type[Published] | None = None) -> RunSettings | Published:
    """The settings of the run, or empty settings outside of a run that the gateway started.

    With the model of `Graph(settings=Model)`: what the request set of it, by its `metadata`;
    outside of a run the model's defaults, so that a node can be tested by itself. Raises
    `TypeError` if the run's graph does not publish this model, pydantic's `ValidationError` if
    there is no run and a field has no default.
    """
    run = _CURRENT.get(None)
    if model is None:
        return run.settings if run is not None else _NO_SETTINGS
    if run is None:
        return model()
    if isinstance(run.published, model):
        return run.published
    raise TypeError(f"The graph of this run does not publish {model.__name__}: Graph(settings=…).")


_REHEARSED: ContextVar[Ledger] = ContextVar("fermata_rehearsed_ledger")


def current_ledger() -> Ledger:
    """The ledger of the run that the calling code is part of, or of `effects_in_memory`.

    Raises `LookupError` outside of both.
    """
    run = _CURRENT.get(None)
    if run is not None and run.ledger is not None:
        return run.ledger
    rehearsed = _REHEARSED.get(None)
    if rehearsed is None:
        raise LookupError(
            "There is no run here that effects could be recorded for;"
            " in a test, use `with effects_in_memory():`."
        )
    return rehearsed


@contextmanager
def ledger_for_tests(ledger: Ledger) -> Iterator[None]:
    """While the block runs, code that is in no run of the gateway's has this ledger."""
    token = _REHEARSED.set(ledger)
    try:
        yield
    finally:
        _REHEARSED.reset(token)


def enter_run(run: CurrentRun) -> None:
    """Make `run` the current one for the calling task and all that it starts."""
    _CURRENT.set(run)


def in_a_run(context: Context | None = None) -> bool:
    """Whether the context, or the calling code's, belongs to a run that the gateway started."""
    current = _CURRENT.get(None) if context is None else context.get(_CURRENT)
    return current is not None
