"""A finished response, told again from its stored resource."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.errors import FermataError
from gateway.wire.encoding import Json
from gateway.wire.items import Response, Usage
from gateway.wire.writer import DONE, Frames, Writer


def replay(resource: Mapping[str, Json]) -> Iterator[bytes]:
    """All frames of a finished response, from its stored resource: same ids, same output."""
    writer = Writer(Response.of_resource(resource))
    yield from writer.begin()
    for item in resource["output"]:
        yield from _replay_item(writer, item)
    yield from _replay_end(writer, resource)
    yield DONE


def lost(response: Response, error: FermataError) -> Iterator[bytes]:
    """All frames of a response whose end cannot be told here: a stream ends with `response.failed`,
    never with a bare `error`."""
    writer = Writer(response)
    yield from writer.begin()
    yield from writer.fail(error)
    yield DONE


def _replay_item(writer: Writer, item: Mapping[str, Json]) -> Iterator[bytes]:
    key = item["id"]
    if item["type"] == "function_call":
        yield from writer.function_call(item["call_id"], item["name"], item["arguments"])
        return
    for part in item.get("content", ()):
        if part["type"] == "refusal":
            yield from writer.refusal(key, part["refusal"])
        else:
            yield from writer.text(key, part["text"])
    for part in item.get("summary", ()):
        yield from writer.reasoning(key, part["text"])
    yield from writer.close(key, item["status"])


def _replay_end(writer: Writer, resource: Mapping[str, Json]) -> Frames:
    usage = resource["usage"] and Usage.of_resource(resource["usage"])
    status = resource["status"]
    if status == "completed":
        return writer.complete(completed_at=resource["completed_at"], usage=usage)
    if status == "incomplete":
        return writer.incomplete(resource["incomplete_details"]["reason"], usage=usage)
    if status == "cancelled":
        return writer.cancel(usage=usage)
    return writer.fail(resource["error"], usage=usage)
