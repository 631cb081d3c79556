"""Bodies: a request's, read up to a limit; a response's, as JSON."""

from __future__ import annotations

from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from gateway.errors import BodyTooLarge, InvalidRequest
from gateway.wire import encoding


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises `BodyTooLarge` as soon as more than `limit` bytes are announced or
    come."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit:
        raise _too_large(limit)
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            chunks.append(chunk)
    except ClientDisconnect:
        raise InvalidRequest("The body ended before it was whole.") from None
    return b"".join(chunks)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is longer than {limit} bytes.")


def json_response(value: Any) -> Response:
    """A JSON value as a response."""
    return Response(encoding.dumps(value).encode(), media_type="application/json")
