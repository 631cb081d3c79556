"""The header `Fermata-Events: 1`: events outside the standard, for streams that ask for them."""

from __future__ import annotations

from dataclasses import replace

from starlette.datastructures import Headers

from gateway.wire.request import CreateResponse

HEADER = "fermata-events"


def with_extensions(request: CreateResponse, headers: Headers) -> CreateResponse:
    """The request, marked if its client asks for more. A background stream is told to whoever reads
    it, now and later, and so never has any."""
    if headers.get(HEADER) != "1" or not request.stream or request.background:
        return request
    return replace(request, extensions=True)
