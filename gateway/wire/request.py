"""`POST /v1/responses`: the body, parsed once into a frozen `CreateResponse`.

Every field of the OpenAI SDK's `responses.create` is accepted, and null for any optional one;
unknown fields are kept in `extra`. Refused is what breaks a type or a bound, and what would be a
lie: a field whose meaning would be dropped in a way that changes the answer. One error names one
parameter.

The fields are a table, `FIELDS`; only those that were sent are looked at, so a small request is
parsed in a few microseconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from gateway.wire import checks
from gateway.wire.encoding import Json, canonical
from gateway.wire.history import FunctionCallOutput, Item, parse_input
from gateway.wire.lies import refuse_lies


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the client declares. Only function tools have more than `type` and `raw`."""

    type: str
    raw: Mapping[str, Json]
    name: str | None = None
    description: str | None = None
    parameters: Mapping[str, Json] | None = None
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class TextFormat:
    """`text.format`; name, schema, description and strict belong to `json_schema`."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema: Mapping[str, Json] | None = None
    description: str | None = None
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class ReasoningConfig:
    """`reasoning`: how much a model shall think, and how much of that is told."""

    effort: str | None = None
    summary: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateResponse:
    """What the client wants. `raw` is the whole body, `extra` its fields that nobody knows.

    `extensions`: a header asks for events outside the standard. `seed` and `stop` are of Chat
    Completions only (`wire.chat_request`). `told_previous_id` is what the echo says instead of
    `previous_response_id`, if a connection's memory stood in for it.
    """

    model: str
    raw: Mapping[str, Json]
    input: tuple[Item, ...] = ()
    background: bool = False
    conversation: str | None = None
    extensions: bool = False
    frequency_penalty: float = 0.0
    include: tuple[str, ...] = ()
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    parallel_tool_calls: bool = True
    presence_penalty: float = 0.0
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    reasoning: ReasoningConfig | None = None
    safety_identifier: str | None = None
    seed: int | None = None
    service_tier: str = "default"
    stop: tuple[str, ...] = ()
    store: bool = True
    stream: bool = False
    temperature: float | None = None
    text_format: TextFormat = TextFormat()
    told_previous_id: str | None = None
    verbosity: str | None = None
    tool_choice: str | Mapping[str, Json] = "auto"
    tools: tuple[Tool, ...] = ()
    top_logprobs: int = 0
    top_p: float | None = None
    truncation: str = "disabled"
    user: str | None = None
    extra: Mapping[str, Json] = field(default_factory=dict)

    @property
    def continues(self) -> bool:
        """Whether the context is here, and the input only what is new."""
        return self.previous_response_id is not None or self.conversation is not None

    @property
    def outputs(self) -> tuple[FunctionCallOutput, ...]:
        """The function call outputs of the input, in its order."""
        return tuple(item for item in self.input if isinstance(item, FunctionCallOutput))

    @property
    def echo(self) -> dict[str, Json]:
        """What the Response resource says about the request: always the same fields."""
        return _echo(self)


def parse_create(body: bytes | str | dict[str, Json]) -> CreateResponse:
    """Parse a request body. Raises `InvalidRequest` naming the one parameter that is wrong."""
    raw = checks.body(body)
    values, extra = checks.by_table(raw, FIELDS)
    _check_together(raw, values)
    _move_text(values)
    for key in _NOT_KEPT:
        values.pop(key, None)
    return CreateResponse(raw=raw, extra=extra, **values)


def parse_tools(echoed: list[Json]) -> tuple[Tool, ...]:
    """The tools of a request, from their echo in its response."""
    return _tools(echoed, "tools")


def request_fingerprint(request: CreateResponse) -> bytes:
    """SHA-256 over the whole body, however its keys were ordered: is it the same request again?"""
    return hashlib.sha256(canonical(request.raw)).digest()


# --- rules over several fields ---------------------------------------------------------------


def _check_together(raw: dict[str, Json], values: dict[str, Any]) -> None:
    if "model" not in values:
        checks.missing("model")
    if "conversation" in values and "previous_response_id" in values:
        message = (
            "Mutually exclusive parameters: 'previous_response_id' and 'conversation'. "
            "Ensure you are only providing one of them."
        )
        checks.refuse("previous_response_id", message, "mutually_exclusive_parameters")
    if "input" not in values and not {"conversation", "previous_response_id"} & values.keys():
        checks.missing("input")
    if values.get("background") and values.get("store") is False:
        message = "'background' needs 'store': a response that is not stored cannot be polled."
        checks.refuse("background", message, "unsupported_value")
    refuse_lies(raw)


def _move_text(values: dict[str, Any]) -> None:
    if "text" in values:
        values["text_format"], values["verbosity"] = values.pop("text")


# --- one field -------------------------------------------------------------------------------


def _conversation(value: Json, path: str) -> str:
    if isinstance(value, dict):
        return checks.required(value, "id", path, _NAME)
    return _NAME(value, path)


def _include(value: Json, path: str) -> tuple[str, ...]:
    names = checks.array(value, path)
    return tuple(checks.string(one, f"{path}[{n}]") for n, one in enumerate(names))


def metadata_of(value: Json, path: str) -> dict[str, str]:
    """At most 16 pairs of texts: keys up to 64 characters, values up to 512."""
    pairs = checks.mapping(value, path)
    if len(pairs) > 16:
        message = f"Invalid '{path}': it has {len(pairs)} pairs, the most is 16."
        checks.refuse(path, message, "object_above_max_properties")
    for key, one in pairs.items():
        if len(key) > 64:
            message = f"Invalid '{path}': the key {checks.shown(key)} has more than 64 characters."
            checks.refuse(path, message, "string_above_max_length")
        checks.text_of(0, 512)(one, f"{path}.{key if key.isprintable() else checks.shown(key)}")
    return pairs


def _reasoning(value: Json, path: str) -> ReasoningConfig:
    fields = checks.mapping(value, path)
    old = checks.optional(fields, "generate_summary", path, _SUMMARY)
    return ReasoningConfig(
        effort=checks.optional(fields, "effort", path, _EFFORT),
        summary=checks.optional(fields, "summary", path, _SUMMARY) or old,
    )


def _text(value: Json, path: str) -> tuple[TextFormat, str | None]:
    fields = checks.mapping(value, path)
    wanted = checks.optional(fields, "format", path, _text_format) or TextFormat()
    return wanted, checks.optional(fields, "verbosity", path, _VERBOSITY)


def _text_format(value: Json, path: str) -> TextFormat:
    fields = checks.mapping(value, path)
    kind = checks.required(fields, "type", path, checks.one_of("text", "json_object", _SCHEMA))
    if kind != _SCHEMA:
        return TextFormat(cast(Any, kind))
    return structured(fields, path, checks.required(fields, "schema", path, checks.mapping))


def structured(fields: Mapping[str, Json], path: str, schema: Mapping[str, Json]) -> TextFormat:
    """The format of an answer that has to fit a schema, from the object that names it."""
    return TextFormat(
        type=_SCHEMA,
        name=checks.required(fields, "name", path, checks.function_name),
        schema=schema,
        description=checks.optional(fields, "description", path, checks.string),
        strict=checks.optional(fields, "strict", path, checks.boolean),
    )


def _tool_choice(value: Json, path: str) -> str | Mapping[str, Json]:
    if isinstance(value, str):
        return checks.one_of("none", "auto", "required")(value, path)
    if not isinstance(value, dict):
        checks.wrong_type(value, path, "a string or an object")
    kind = checks.required(value, "type", path, checks.string)
    if kind == "function":
        checks.required(value, "name", path, checks.string)
    if kind != "allowed_tools":
        return value
    checks.required(value, "tools", path, checks.array)
    mode = checks.optional(value, "mode", path, checks.one_of("none", "auto", "required"))
    return value | {"mode": mode or "auto"}


def _tools(value: Json, path: str) -> tuple[Tool, ...]:
    tools = checks.array(value, path)
    return tuple(_tool(one, f"{path}[{n}]") for n, one in enumerate(tools))


def _tool(value: Json, path: str) -> Tool:
    fields = checks.mapping(value, path)
    kind = checks.required(fields, "type", path, checks.string)
    if kind != "function":
        return Tool(kind, fields, checks.optional(fields, "name", path, checks.string))
    return function_tool(fields, fields, path)


def function_tool(raw: Mapping[str, Json], fields: Mapping[str, Json], path: str) -> Tool:
    """A function, from the object that says its name and parameters; `raw` is what is echoed."""
    return Tool(
        type="function",
        raw=raw,
        name=checks.required(fields, "name", path, checks.function_name),
        description=checks.optional(fields, "description", path, checks.string),
        parameters=checks.optional(fields, "parameters", path, checks.mapping),
        strict=checks.optional(fields, "strict", path, checks.boolean),
    )


_SCHEMA: Literal["json_schema"] = "json_schema"
_NAME = checks.text_of(1, 1024)
_SHORT = checks.text_of(0, 1024)
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_EFFORT = checks.one_of(*REASONING_EFFORTS)
_SUMMARY = checks.one_of("auto", "concise", "detailed")
_VERBOSITY = checks.one_of("low", "medium", "high")

FIELDS: dict[str, checks.Check[Any]] = {
    "access_programs": checks.anything,
    "background": checks.boolean,
    "background_options": checks.anything,
    "context_management": checks.anything,
    "conversation": _conversation,
    "frequency_penalty": checks.number(-2, 2),
    "generate": checks.anything,
    "image": checks.anything,
    "include": _include,
    "input": parse_input,
    "instructions": checks.string,
    "max_output_tokens": checks.integer(1),
    "max_tool_calls": checks.integer(1),
    "metadata": metadata_of,
    "model": _NAME,
    "moderation": checks.anything,
    "n": checks.integer(1),
    "parallel_tool_calls": checks.boolean,
    "presence_penalty": checks.number(-2, 2),
    "previous_response_id": _NAME,
    "prompt": checks.anything,
    "prompt_cache_key": _SHORT,
    "prompt_cache_options": checks.anything,
    "prompt_cache_retention": checks.one_of("in_memory", "in-memory", "24h"),
    "reasoning": _reasoning,
    "safety_identifier": _SHORT,
    "service_tier": checks.one_of(
        "auto", "default", "flex", "scale", "priority", "fast", "ultrafast"
    ),
    "store": checks.boolean,
    "stream": checks.boolean,
    "stream_options": checks.mapping,
    "temperature": checks.number(0, 2),
    "text": _text,
    "tool_choice": _tool_choice,
    "tools": _tools,
    "top_logprobs": checks.integer(0, 20),
    "top_p": checks.number(0, 1),
    "truncation": checks.one_of("auto", "disabled"),
    "user": checks.string,
}
"""Every field that means something here, and how it is read."""

_NOT_KEPT = (
    "access_programs",
    "background_options",
    "context_management",
    "generate",
    "image",
    "moderation",
    "n",
    "prompt",
    "prompt_cache_options",
    "stream_options",
)
"""Fields that are accepted and change nothing; `raw` has them, where `wire.lies` looks at some."""


# --- the echo --------------------------------------------------------------------------------


def _echo(request: CreateResponse) -> dict[str, Json]:
    conversation = request.conversation
    return {
        "model": request.model,
        "previous_response_id": request.told_previous_id or request.previous_response_id,
        "conversation": None if conversation is None else {"id": conversation},
        "instructions": request.instructions,
        "tools": [_tool_echo(tool) for tool in request.tools],
        "tool_choice": request.tool_choice,
        "parallel_tool_calls": request.parallel_tool_calls,
        "text": _text_echo(request),
        "reasoning": _reasoning_echo(request.reasoning),
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "top_logprobs": request.top_logprobs,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "truncation": request.truncation,
        "store": request.store,
        "background": request.background,
        "service_tier": request.service_tier,
        "metadata": request.metadata,
        "user": request.user,
        "safety_identifier": request.safety_identifier,
        "prompt_cache_key": request.prompt_cache_key,
        "prompt_cache_retention": request.prompt_cache_retention,
    }


def _tool_echo(tool: Tool) -> Json:
    if tool.type != "function":
        return tool.raw
    filled = {"description": None, "parameters": None, "strict": None}
    return filled | dict(tool.raw)


def _text_echo(request: CreateResponse) -> Json:
    wanted = request.text_format
    echoed: dict[str, Json] = {"type": wanted.type}
    if wanted.type == _SCHEMA:
        echoed |= {
            "name": wanted.name,
            "description": wanted.description,
            "schema": wanted.schema,
            "strict": wanted.strict or False,
        }
    if request.verbosity is None:
        return {"format": echoed}
    return {"format": echoed, "verbosity": request.verbosity}


def _reasoning_echo(reasoning: ReasoningConfig | None) -> Json:
    if reasoning is None:
        return None
    return {"effort": reasoning.effort, "summary": reasoning.summary}
