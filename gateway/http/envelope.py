"""Errors as the client sees them: one envelope for everything, framework errors included."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import FermataError, InvalidRequest, MethodNotAllowed, NotFound, Unauthenticated
from gateway.wire import encoding
from gateway.wire.items import error_resource


def error_response(error: FermataError) -> Response:
    """The envelope, with the header that tells the SDKs whether a retry can help."""
    retry = error.retry_after
    headers = {"x-should-retry": "false"} if retry is None else {"retry-after": str(retry)}
    if retry is not None and error.status < 409:
        headers["x-should-retry"] = "true"  # else the SDKs repeat 408, 409, 429 and 5xx only
    if error.status == Unauthenticated.status:
        headers["www-authenticate"] = "Bearer"
    body = encoding.dumps({"error": error_resource(error)}).encode()
    return Response(body, error.status, headers, media_type="application/json")


async def on_fermata_error(request: Request, error: Exception) -> Response:
    """Our own errors know their answer."""
    assert isinstance(error, FermataError)
    return error_response(error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """The framework's: unknown routes, wrong methods."""
    assert isinstance(error, HTTPException)
    if error.status_code == MethodNotAllowed.status:
        return error_response(MethodNotAllowed(f"{request.method} is not allowed here."))
    if error.status_code == NotFound.status:
        return error_response(NotFound(f"There is nothing at {request.url.path}."))
    return error_response(InvalidRequest(str(error.detail)))
