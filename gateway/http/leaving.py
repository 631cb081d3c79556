"""The result of a reply, for a client that may leave before it is there."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from gateway.runs.replies import Reply


async def result_of(reply: Reply, request: Request) -> bytes:
    """The Response resource as JSON. If the run goes with its client, the connection is watched
    meanwhile."""
    if not reply.goes_with_client:
        return await reply.result()
    left = asyncio.create_task(_left(request))
    result = asyncio.create_task(reply.result())
    await asyncio.wait((left, result), return_when=asyncio.FIRST_COMPLETED)
    if not result.done():
        reply.leave()
    left.cancel()
    return await result


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
