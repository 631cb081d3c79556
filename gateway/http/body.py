"""A request's body, read up to a limit."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request

from gateway.errors import BodyTooLarge, InvalidRequest


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
