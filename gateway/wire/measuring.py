"""`/v1/responses/input_tokens` and `/v1/responses/compact`: bodies parsed once. Pure.

The fields are those of `responses.create`, which both look at; what only matters to a run changes
nothing.
"""

from __future__ import annotations

from gateway.wire import checks
from gateway.wire.request import CreateResponse, parse_create


def parse_input_tokens(body: bytes) -> tuple[CreateResponse, bool]:
    """What to count, and whether a model is named: it may be missing, and so may the input."""
    fields = checks.body(body)
    named = fields.get("model") is not None
    model = fields["model"] if named else "none"
    said = fields.get("input")
    return parse_create({**fields, "model": model, "input": [] if said is None else said}), named


def parse_compact(body: bytes) -> CreateResponse:
    """What to compact."""
    return parse_create(checks.body(body))
