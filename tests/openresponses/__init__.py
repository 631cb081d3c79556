"""Judges what the gateway emits: events, resources and whole streams.

Two yardsticks: the OpenAI SDK's types, strictly and with their required fields, and for what it
covers the Open Responses schema in this directory (version 2026-04-24, see README.md). Where they
differ from what Fermata does, `DEVIATIONS` says so and why; nothing else is excused.
"""

from __future__ import annotations

import functools
import json
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from openai.types.responses import CompactedResponse, ResponseItemList, ResponseStreamEvent
from openai.types.responses import Response as SdkResponse
from openai.types.responses.response_error import ResponseError
from openai.types.responses.responses_server_event import ResponseWsError

Json = dict[str, Any]

_DOCUMENT = Path(__file__).parent / "openapi-2026-04-24.json"

TERMINAL = ("response.completed", "response.incomplete", "response.failed")


# --- where we differ -------------------------------------------------------------------------


@dataclass(frozen=True)
class Deviation:
    """`schema` of Open Responses is widened by `widen`; None is about the SDK's types."""

    schema: str | None
    widen: Callable[[Json], None]
    reason: str


def _set(field: str, schema: Json) -> Callable[[Json], None]:
    return lambda found: found["properties"].update({field: schema})


def _any_of(*more: Json) -> Callable[[Json], None]:
    def widen(found: Json) -> None:
        narrow = dict(found)
        found.clear()
        found["anyOf"] = [narrow, *more]

    return widen


_OTHER_TOOL = {
    "type": "object",
    "required": ["type"],
    "properties": {"type": {"type": "string", "not": {"enum": ["function", "allowed_tools"]}}},
}

DEVIATIONS = (
    Deviation(
        "JsonSchemaResponseFormat",
        _set("schema", {"type": "object"}),
        "The document allows only null for the schema that the client sent; we echo it, as "
        "OpenAI does and `parse()` needs.",
    ),
    Deviation(
        "Tool",
        _any_of(_OTHER_TOOL),
        "The document knows function tools only; Codex and others declare more, and what was "
        "sent is echoed.",
    ),
    Deviation(
        "FunctionToolChoice",
        _any_of(_OTHER_TOOL),
        "The same for `tool_choice`: the SDK knows nine kinds, the document three.",
    ),
    Deviation(
        "ReasoningEffortEnum",
        lambda found: found["enum"].extend(["minimal", "max"]),
        "The SDK's `minimal` and `max` are missing in the document.",
    ),
    Deviation(
        None,
        lambda found: None,
        "The SDK types the code of a response's error as a closed list of OpenAI's own codes; ours "
        "(`run_failed`, …) say what happened here. The clients read any text.",
    ),
    Deviation(
        None,
        lambda found: None,
        "`fermata:<name>` events are in neither; only clients that ask for them get them.",
    ),
)


# --- validating ------------------------------------------------------------------------------


def validate_event(event: Json) -> None:
    """Raises what is wrong with one event: pydantic's or jsonschema's error, or AssertionError."""
    kind = event["type"]
    if kind.startswith("fermata:"):
        assert isinstance(event["sequence_number"], int), event
        return
    excused = dict(event)
    if "response" in event:
        validate_resource(event["response"])
        excused["response"] = _with_sdk_code(event["response"])
    _sdk_events()[kind].model_validate_json(_text(excused), strict=True)
    schema = _event_schemas().get(kind)
    assert schema is not None, f"Open Responses has no event {kind}"
    _validator(schema).validate(event)


def validate_socket_error(event: Json) -> None:
    """Raises what is wrong with an `error` event of the WebSocket transport."""
    ResponseWsError.model_validate_json(_text(event), strict=True)
    _validator("WebSocketErrorEvent").validate(event)
    assert event["status"] >= 400
    assert event["error"].keys() >= {"code", "message", "type", "param"}


def validate_resource(resource: Json) -> None:
    """Raises what is wrong with one Response resource."""
    SdkResponse.model_validate_json(_text(_with_sdk_code(resource)), strict=True)
    _validator("ResponseResource").validate(resource)
    for field in _NEVER_NULL:
        assert resource[field] is not None, f"{field} is null"
    assert resource["text"]["format"] is not None
    for field in _NULLABLE:
        assert field in resource, f"{field} is missing"
    for item in resource["output"]:
        validate_item(item)
    if resource["error"] is not None:
        assert resource["error"].keys() >= {"code", "message", "type", "param"}
    if resource["usage"] is not None:
        assert resource["usage"]["input_tokens_details"].keys() >= {
            "cached_tokens",
            "cache_write_tokens",
        }


def validate_item(item: Json) -> None:
    """What `wire.md` asks of an output item beyond both schemas."""
    assert item["id"], item
    if item["type"] == "message":
        assert item["status"] in ("in_progress", "completed", "incomplete"), item
        for part in item["content"]:
            if part["type"] == "output_text":
                assert part["annotations"] == [], part
                assert part["logprobs"] == [], part
    if item["type"] == "function_call":
        assert 0 < len(item["call_id"]) <= 64, item
        assert 0 < len(item["name"]) <= 64, item
        assert item["name"].replace("-", "").replace("_", "").isalnum(), item
        assert item["name"].isascii(), item
        assert item["status"], item
        if item["status"] == "completed":
            assert isinstance(json.loads(item["arguments"]), dict), item


def validate_items(found: Json, *, of: Any = ResponseItemList) -> None:
    """Raises what is wrong with a list of items: `input_items`, or a conversation's with `of`."""
    if not found["data"]:
        assert (found["first_id"], found["last_id"], found["has_more"]) == (None, None, False)
        return
    of.model_validate_json(_text(found), strict=True)
    assert found.keys() == {"object", "data", "first_id", "last_id", "has_more"}
    assert (found["first_id"], found["last_id"]) == (
        found["data"][0]["id"],
        found["data"][-1]["id"],
    )
    for item in found["data"]:
        validate_listed_item(item)


def validate_compaction(resource: Json) -> None:
    """Raises what is wrong with what `/v1/responses/compact` returns.

    The SDK types its output as output items, but documents user messages in it, as do its examples.
    """
    _validator("CompactResource").validate(resource)
    made = [item for item in resource["output"] if item["type"] == "compaction"]
    CompactedResponse.model_validate_json(_text({**resource, "output": made}), strict=True)
    assert resource["usage"]["input_tokens_details"].keys() >= {"cached_tokens"}


def validate_listed_item(item: Json) -> None:
    """Raises what is wrong with an item as lists have it, input or output."""
    if item["type"] in _LISTED:
        _validator("ItemField").validate(item)
    assert item["id"], item


_LISTED = ("message", "function_call", "function_call_output", "reasoning", "compaction")
"""What Open Responses knows; the SDK knows the items of OpenAI's built-in tools as well."""

_NEVER_NULL = [
    "id",
    "object",
    "created_at",
    "status",
    "model",
    "output",
    "tools",
    "tool_choice",
    "truncation",
    "parallel_tool_calls",
    "text",
    "top_p",
    "temperature",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "store",
    "background",
    "service_tier",
]
_NULLABLE = [
    "completed_at",
    "incomplete_details",
    "previous_response_id",
    "instructions",
    "error",
    "reasoning",
    "usage",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
]


def _text(value: Json) -> bytes:
    """For pydantic's JSON reader, which refuses the lone surrogates that SDKs read happily."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _with_sdk_code(resource: Json) -> Json:
    """The deviation of the error's code, applied: any of our codes counts as one of the SDK's."""
    error = resource.get("error")
    if not error or not isinstance(error.get("code"), str):
        return resource
    known = typing.get_args(ResponseError.model_fields["code"].annotation)
    code = error["code"] if error["code"] in known else "server_error"
    return {**resource, "error": {**error, "code": code}}


@functools.cache
def _sdk_events() -> dict[str, Any]:
    """The SDK's event models by their `type`."""
    models = typing.get_args(typing.get_args(ResponseStreamEvent)[0])
    return {
        kind: model
        for model in models
        for kind in typing.get_args(model.model_fields["type"].annotation)
    }


@functools.cache
def _document() -> Json:
    document: Json = json.loads(_DOCUMENT.read_text())
    for deviation in DEVIATIONS:
        if deviation.schema is not None:
            deviation.widen(document["components"]["schemas"][deviation.schema])
    return document


@functools.cache
def _event_schemas() -> dict[str, str]:
    """The names of the document's event schemas by the event's `type`."""
    schemas = _document()["components"]["schemas"]
    events = {name: found for name, found in schemas.items() if name.endswith("StreamingEvent")}
    return {found["properties"]["type"]["enum"][0]: name for name, found in events.items()}


@functools.cache
def _validator(schema: str) -> Draft202012Validator:
    components = _document()["components"]
    return Draft202012Validator(
        {"$ref": f"#/components/schemas/{schema}", "components": components}
    )


# --- whole streams ---------------------------------------------------------------------------


def read_frames(frames: bytes | Iterable[bytes]) -> list[Json]:
    """The events of a stream as it was sent, checked as frames; comments and `[DONE]` are skipped.

    Given an iterable, each of its elements must be one whole frame.
    """
    whole = [frames] if isinstance(frames, bytes) else list(frames)
    return [event for one in whole for event in _read(one, single=not isinstance(frames, bytes))]


def _read(sent: bytes, *, single: bool) -> Iterator[Json]:
    assert b"\r" not in sent, sent
    assert sent.endswith(b"\n\n"), sent
    found = sent[:-2].split(b"\n\n")
    assert len(found) == 1 or not single, f"several frames in one write: {sent!r}"
    for frame in found:
        if frame.startswith(b":") or frame == b"data: [DONE]":
            continue
        name, text = frame.split(b"\n")
        event: Json = json.loads(text.removeprefix(b"data: "))
        assert name == b"event: " + event["type"].encode(), frame
        assert len(text.decode().splitlines()) == 1, "a client would split this line"
        yield event


def fold(events: Iterable[Json]) -> list[Json]:
    """The output as a client builds it from the deltas alone; the done events only set statuses.

    Raises AssertionError if a done event says something else than the deltas did, or if items
    interleave or are out of order.
    """
    output: list[Json] = []
    for event in events:
        fold_one = _FOLDS.get(event["type"])
        if fold_one is not None:
            fold_one(output, event)
    return output


def _added(output: list[Json], event: Json) -> None:
    assert event["output_index"] == len(output), event
    assert not output or output[-1]["status"] != "in_progress", "the item before is still open"
    item = json.loads(json.dumps(event["item"]))
    empty = {"message": "content", "reasoning": "summary", "function_call": "arguments"}
    assert not item[empty[item["type"]]], item
    output.append(item)


def _open_item(output: list[Json], event: Json) -> Json:
    item = output[-1]
    assert event["output_index"] == len(output) - 1, event
    assert event["item_id"] == item["id"], event
    assert item["status"] == "in_progress", event
    return item


def _part_added(output: list[Json], event: Json) -> None:
    parts, index = _parts(_open_item(output, event), event)
    assert index == len(parts), event
    parts.append(dict(event["part"]))


def _delta(output: list[Json], event: Json) -> None:
    part, field = _open_part(output, event)
    assert event["delta"], "an empty delta says nothing"
    part[field] += event["delta"]


def _text_done(output: list[Json], event: Json) -> None:
    part, field = _open_part(output, event)
    assert event["refusal" if field == "refusal" else "text"] == part[field], event


def _part_done(output: list[Json], event: Json) -> None:
    assert event["part"] == _open_part(output, event)[0], event


def _open_part(output: list[Json], event: Json) -> tuple[Json, str]:
    parts, index = _parts(_open_item(output, event), event)
    assert index == len(parts) - 1, event
    return parts[index], "refusal" if parts[index]["type"] == "refusal" else "text"


def _parts(item: Json, event: Json) -> tuple[list[Json], int]:
    if item["type"] == "reasoning":
        return item["summary"], event["summary_index"]
    return item["content"], event["content_index"]


def _arguments_delta(output: list[Json], event: Json) -> None:
    assert event["delta"], "an empty delta says nothing"
    _open_item(output, event)["arguments"] += event["delta"]


def _arguments_done(output: list[Json], event: Json) -> None:
    assert event["arguments"] == _open_item(output, event)["arguments"], event


def _done(output: list[Json], event: Json) -> None:
    assert event["output_index"] == len(output) - 1, event
    item = output[-1]
    item["status"] = event["item"]["status"]
    assert event["item"] == item, event


_FOLDS: dict[str, Callable[[list[Json], Json], None]] = {
    "response.output_item.added": _added,
    "response.content_part.added": _part_added,
    "response.reasoning_summary_part.added": _part_added,
    "response.output_text.delta": _delta,
    "response.refusal.delta": _delta,
    "response.reasoning_summary_text.delta": _delta,
    "response.output_text.done": _text_done,
    "response.refusal.done": _text_done,
    "response.reasoning_summary_text.done": _text_done,
    "response.content_part.done": _part_done,
    "response.reasoning_summary_part.done": _part_done,
    "response.function_call_arguments.delta": _arguments_delta,
    "response.function_call_arguments.done": _arguments_done,
    "response.output_item.done": _done,
}


def check_stream(events: list[Json], *, validate: bool = True) -> Json:
    """Everything that a whole stream must be; gives the last event's resource.

    `validate=False` leaves the schemas out, for property tests that look at thousands of streams.
    """
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert kinds[0] == "response.created"
    assert kinds[1] in ("response.in_progress", "response.queued")
    assert kinds.count("response.in_progress") == 1
    assert [kind for kind in kinds if kind in TERMINAL] == [kinds[-1]]
    snapshots = [event["response"] for event in events if "response" in event]
    assert len({(one["id"], one["created_at"], one["model"]) for one in snapshots}) == 1
    assert all(one["output"] == [] for one in snapshots[:-1])
    last: Json = snapshots[-1]
    assert fold(events) == last["output"]
    ids = [item["id"] for item in last["output"]]
    assert len(set(ids)) == len(ids)
    if validate:
        for event in events:
            validate_event(event)
    return last
