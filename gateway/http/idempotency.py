"""The header Idempotency-Key."""

from __future__ import annotations

import re

from starlette.requests import Request

from gateway.errors import InvalidRequest
from gateway.runs.idempotency import Key
from gateway.wire.request import CreateResponse, request_fingerprint

_KEY = re.compile(r"[\x21-\x7e]{1,255}")


def key_of(request: Request, wanted: CreateResponse) -> Key | None:
    """What the client named this request. Raises `InvalidRequest` if it is no name."""
    name = request.headers.get("idempotency-key")
    if name is None:
        return None
    if not _KEY.fullmatch(name):
        raise InvalidRequest("Idempotency-Key takes 1 to 255 printable ASCII characters.")
    return Key(name, request_fingerprint(wanted))
