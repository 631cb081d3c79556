"""Which operation takes and tells what. An operation that is not here is told by its path alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.http.openapi.shapes import Schema, either, one_of, text, whole
from gateway.wire.paging import MOST


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `takes` and `tells` name schemas, None is plain text; `streams` if
    it can be asked for events instead; `refuses` are the statuses of its errors."""

    tells: str | None
    takes: str | None = None
    streams: bool = False
    refuses: tuple[int, ...] = ()
    query: Mapping[str, Schema] = field(default_factory=dict)
    open: bool = False
    """No credentials are needed, whatever FERMATA_AUTH says."""


# An empty query counts as not sent.
_PAGING: Mapping[str, Schema] = {
    "after": text(),
    "limit": either(whole(1, MOST), {"const": ""}),
}
_ITEM_PAGING: Mapping[str, Schema] = {**_PAGING, "order": one_of("asc", "desc", "")}
_CONVERSATION = "/v1/conversations/{conversation_id}"
_METRICS = ("text/plain", "application/openmetrics-text")
_REFUSALS = (400, 403, 404, 409, 410, 413, 422, 500, 503)

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("post", "/v1/responses"): Operation("Response", "CreateResponse", True, _REFUSALS),
    ("get", "/v1/responses/{response_id}"): Operation(
        "Response",
        streams=True,
        refuses=(400, 404, 503),
        query={"stream": one_of("true", "false"), "starting_after": whole(0, 10**9 - 1)},
    ),
    ("delete", "/v1/responses/{response_id}"): Operation(
        "DeletedResponse", refuses=(404, 409, 503)
    ),
    ("post", "/v1/responses/{response_id}/cancel"): Operation("Response", refuses=(404, 409, 503)),
    ("get", "/v1/responses/{response_id}/input_items"): Operation(
        "ItemList",
        refuses=(400, 404, 503),
        query=_ITEM_PAGING,
    ),
    ("post", "/v1/responses/input_tokens"): Operation(
        "InputTokens", "CountInputTokens", refuses=(400, 404, 413, 500, 503)
    ),
    ("post", "/v1/responses/compact"): Operation(
        "CompactedResponse", "CreateResponse", refuses=(400, 404, 413, 500, 503)
    ),
    ("post", "/v1/chat/completions"): Operation(
        "ChatCompletion", "CreateChatCompletion", True, _REFUSALS
    ),
    ("post", "/v1/conversations"): Operation(
        "Conversation", "CreateConversation", refuses=(400, 413, 503)
    ),
    ("get", _CONVERSATION): Operation("Conversation", refuses=(404, 503)),
    ("post", _CONVERSATION): Operation(
        "Conversation", "UpdateConversation", refuses=(400, 404, 413, 503)
    ),
    ("delete", _CONVERSATION): Operation("DeletedConversation", refuses=(400, 404, 503)),
    ("get", f"{_CONVERSATION}/items"): Operation(
        "ItemList", refuses=(400, 404, 503), query=_ITEM_PAGING
    ),
    ("post", f"{_CONVERSATION}/items"): Operation(
        "ItemList", "CreateItems", refuses=(400, 404, 413, 503)
    ),
    ("get", f"{_CONVERSATION}/items/{{item_id}}"): Operation("Item", refuses=(404, 503)),
    ("delete", f"{_CONVERSATION}/items/{{item_id}}"): Operation(
        "Conversation", refuses=(400, 404, 503)
    ),
    ("get", "/v1/interrupts"): Operation(
        "InterruptList",
        refuses=(400, 503),
        query={**_PAGING, "status": one_of("pending")},
    ),
    ("get", "/v1/interrupts/{call_id}"): Operation("Interrupt", refuses=(404, 503)),
    ("post", "/v1/interrupts/{call_id}/answer"): Operation(
        "Interrupt", "Answer", refuses=(400, 403, 404, 409, 410, 413, 503)
    ),
    ("get", "/v1/models"): Operation("ModelList"),
    ("get", "/v1/models/{model}"): Operation("ModelPage", refuses=(404,)),
    ("get", "/metrics"): Operation(None, refuses=(403, 503)),
    ("get", "/healthz"): Operation("Status", open=True),
    ("get", "/readyz"): Operation("Status", refuses=(503,), open=True),
}

WHY: Mapping[int, str] = {
    400: "The request cannot be served as it is; `param` names what is wrong.",
    401: "No credentials, or none that are valid.",
    403: "These credentials may not do this.",
    404: "There is no such model, response or question.",
    409: "Somebody is working on it: try again after `Retry-After`.",
    410: "The question's time is over, or its run was withdrawn.",
    413: "The body is too long.",
    422: "The same Idempotency-Key came with another body.",
    500: "The graph failed, in a way that this API can only tell as an error.",
    503: "The database is away, or this process is shutting down.",
}


def spelled(operation: Operation, *, guarded: bool) -> dict[str, Any]:
    """The operation as OpenAPI writes it; `guarded` if credentials are asked for here at all."""
    told: dict[str, Any] = {"responses": _responses(operation, guarded and not operation.open)}
    if operation.takes is not None:
        schema = {"$ref": f"#/components/schemas/{operation.takes}"}
        told["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    if operation.query:
        told["parameters"] = [
            {"name": name, "in": "query", "required": False, "schema": schema}
            for name, schema in operation.query.items()
        ]
    if guarded and operation.open:
        told["security"] = []
    return told


def _responses(operation: Operation, guarded: bool) -> dict[str, Any]:
    content: dict[str, Any] = {
        "application/json": {"schema": {"$ref": f"#/components/schemas/{operation.tells}"}}
    }
    if operation.tells is None:
        content = {kind: {"schema": {"type": "string"}} for kind in _METRICS}
    if operation.streams:
        content["text/event-stream"] = {}  # no schema could say what stands in `data:`
    statuses = sorted({*operation.refuses, *((401,) if guarded else ())})
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    refusals = {str(one): {"description": WHY[one], "content": error} for one in statuses}
    return {"200": {"description": "It was done.", "content": content}, **refusals}
