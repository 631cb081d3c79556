"""`POST /v1/chat/completions`: the body, as the `CreateResponse` that says the same.

There is one pipeline: a chat request is a Responses request in other words, so everything behind
the wire knows only that. Every field of the SDK's `chat.completions.create` is accepted, null
for any optional one; refused is, as in `wire.request`, what breaks a type or would be a lie.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

from gateway.wire import checks
from gateway.wire.chat_messages import parse_messages
from gateway.wire.encoding import Json
from gateway.wire.lies import refuse_lies
from gateway.wire.request import (
    FIELDS,
    REASONING_EFFORTS,
    CreateResponse,
    ReasoningConfig,
    TextFormat,
    Tool,
    function_tool,
    structured,
)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a chat client wants. `places` are the messages that the items of the input come from."""

    create: CreateResponse
    places: tuple[int, ...]
    include_usage: bool = False

    def param(self, param: str | None) -> str | None:
        """The chat client's own name of a parameter of the Responses request."""
        if param is None:
            return None
        match = _INPUT.fullmatch(param)
        if match is None:
            return "messages" if param == "previous_response_id" else param
        index, rest = match[1], match[2] or ""
        if index is None or int(index) >= len(self.places):
            return "messages"
        return f"messages[{self.places[int(index)]}]{_FIELD_OF_ITEM.get(rest, '')}"


_INPUT = re.compile(r"input(?:\[(\d+)\](\..+)?)?")
_FIELD_OF_ITEM = {".output": ".content", ".call_id": ".tool_call_id", ".content": ".content"}


def parse_chat(body: bytes | str | dict[str, Json]) -> ChatRequest:
    """Parse a request body. Raises `InvalidRequest` naming the one parameter that is wrong."""
    raw = checks.body(body)
    values, extra = checks.by_table(raw, _FIELDS)
    for needed in ("model", "messages"):
        if needed not in values:
            checks.missing(needed)
    _refuse_lies(raw)
    return _translated(raw, values, extra)


def _translated(
    raw: dict[str, Json], values: dict[str, Any], extra: dict[str, Json]
) -> ChatRequest:
    placed = values.pop("messages")
    options = values.pop("stream_options", {})
    effort = values.pop("reasoning_effort", None)
    most = [values.pop(name, None) for name in ("max_completion_tokens", "max_tokens")]
    kept = {key: value for key, value in values.items() if key not in _NOT_KEPT}
    create = CreateResponse(
        raw=raw,
        extra=extra,
        input=tuple(one.item for one in placed),
        max_output_tokens=most[0] if most[0] is not None else most[1],
        reasoning=None if effort is None else ReasoningConfig(effort=effort),
        text_format=kept.pop("response_format", TextFormat()),
        # OpenAI's default here: a chat client has no id to come back with.
        store=kept.pop("store", False),
        **kept,
    )
    return ChatRequest(
        create, tuple(one.place for one in placed), options.get("include_usage") is True
    )


# --- what would be a lie ---------------------------------------------------------------------


def _refuse_lies(raw: dict[str, Json]) -> None:
    refuse_lies(raw)
    for key in ("functions", "function_call"):
        if raw.get(key) is not None:
            message = (
                f"'{key}' is not supported: a result without an id cannot be matched to its call. "
                "Use 'tools' and 'tool_choice'."
            )
            checks.refuse(key, message, "unsupported_parameter")
    if raw.get("logit_bias"):
        message = "'logit_bias' is not supported: a graph has no tokens to favour."
        checks.refuse("logit_bias", message, "unsupported_parameter")
    if "audio" in (raw.get("modalities") or ()):
        message = "'modalities' with audio is not supported: a run answers in text."
        checks.refuse("modalities", message, "unsupported_parameter")
    one, other = raw.get("max_completion_tokens"), raw.get("max_tokens")
    if one is not None and other is not None and one != other:
        message = "'max_tokens' and 'max_completion_tokens' say different things."
        checks.refuse("max_tokens", message, "mutually_exclusive_parameters")


# --- one field -------------------------------------------------------------------------------


def _response_format(value: Json, path: str) -> TextFormat:
    fields = checks.mapping(value, path)
    kind = checks.required(
        fields, "type", path, checks.one_of("text", "json_object", "json_schema")
    )
    if kind != "json_schema":
        return TextFormat(cast(Any, kind))
    wanted, where = checks.required(fields, "json_schema", path, checks.mapping), f"{path}.{kind}"
    return structured(wanted, where, checks.optional(wanted, "schema", where, checks.mapping) or {})


def _tools(value: Json, path: str) -> tuple[Tool, ...]:
    tools = checks.array(value, path)
    return tuple(_tool(one, f"{path}[{n}]") for n, one in enumerate(tools))


def _tool(value: Json, path: str) -> Tool:
    """Chat nests what Responses has flat; `raw` is the flat form, as that is what is echoed."""
    fields = checks.mapping(value, path)
    kind = checks.required(fields, "type", path, checks.string)
    if kind != "function":
        inner = checks.optional(fields, kind, path, checks.mapping) or {}
        return Tool(
            kind, {"type": kind, **inner}, checks.optional(inner, "name", path, checks.string)
        )
    function, where = checks.required(fields, kind, path, checks.mapping), f"{path}.{kind}"
    return function_tool({"type": kind, **function}, function, where)


def _tool_choice(value: Json, path: str) -> str | dict[str, Json]:
    if isinstance(value, str):
        return checks.one_of("none", "auto", "required")(value, path)
    if not isinstance(value, dict):
        checks.wrong_type(value, path, "a string or an object")
    kind = checks.required(value, "type", path, checks.string)
    if kind not in ("function", "custom", "allowed_tools"):
        raise checks.unknown(kind, f"{path}.type", ("function", "custom", "allowed_tools"))
    inner, where = checks.required(value, kind, path, checks.mapping), f"{path}.{kind}"
    if kind != "allowed_tools":
        return {"type": kind, "name": checks.required(inner, "name", where, checks.string)}
    tools = checks.required(inner, "tools", where, checks.array)
    mode = checks.optional(inner, "mode", where, checks.one_of("auto", "required"))
    allowed = [_allowed(one, f"{where}.tools[{n}]") for n, one in enumerate(tools)]
    return {"type": kind, "mode": mode or "auto", "tools": allowed}


def _allowed(value: Json, path: str) -> Json:
    fields = checks.mapping(value, path)
    kind = checks.required(fields, "type", path, checks.string)
    inner = checks.required(fields, kind, path, checks.mapping)
    return {"type": kind, "name": checks.required(inner, "name", f"{path}.{kind}", checks.string)}


def _stop(value: Json, path: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        checks.wrong_type(value, path, "a string or an array of strings")
    return tuple(checks.string(one, f"{path}[{n}]") for n, one in enumerate(value))


def _modalities(value: Json, path: str) -> list[Json]:
    names = checks.array(value, path)
    for n, name in enumerate(names):
        checks.string(name, f"{path}[{n}]")
    return names


_SHARED = (
    "frequency_penalty",
    "metadata",
    "model",
    "moderation",
    "n",
    "parallel_tool_calls",
    "presence_penalty",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "top_logprobs",
    "top_p",
    "user",
)
"""Fields that mean the same in both APIs."""

_FIELDS: dict[str, checks.Check[Any]] = {name: FIELDS[name] for name in _SHARED} | {
    "audio": checks.anything,
    "function_call": checks.anything,
    "functions": checks.anything,
    "logit_bias": checks.mapping,
    "logprobs": checks.boolean,
    "max_completion_tokens": checks.integer(1),
    "max_tokens": checks.integer(1),
    "messages": parse_messages,
    "modalities": _modalities,
    "prediction": checks.anything,
    "reasoning_effort": checks.one_of(*REASONING_EFFORTS),
    "response_format": _response_format,
    "seed": checks.integer(-(2**63), 2**63 - 1),
    "stop": _stop,
    "tool_choice": _tool_choice,
    "tools": _tools,
    "verbosity": checks.one_of("low", "medium", "high"),
    "web_search_options": checks.anything,
}

_NOT_KEPT = (
    "audio",
    "function_call",
    "functions",
    "logit_bias",
    "logprobs",
    "modalities",
    "moderation",
    "n",
    "prediction",
    "prompt_cache_options",
    "web_search_options",
)
"""Fields that are accepted and change nothing; `raw` has them."""
