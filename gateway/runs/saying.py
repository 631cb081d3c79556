"""A response that no graph gives and nobody keeps: said at once."""

from __future__ import annotations

import time
from dataclasses import replace

from gateway.runs.replies import SaidReply
from gateway.wire.ids import new_id
from gateway.wire.items import Response
from gateway.wire.request import CreateResponse
from gateway.wire.writer import Writer


def said(request: CreateResponse, text: str) -> SaidReply:
    """`text` as the whole answer to `request`: no run, no row, and so never stored."""
    kept = replace(request, store=False, background=False)
    response = Response.of_request(kept, new_id("resp"), int(time.time()))
    writer = Writer(response)
    frames = writer.begin()
    frames += [*writer.text("said", text), *writer.close("said")]
    frames += writer.complete(completed_at=int(time.time()))
    return SaidReply(response.id, frames, writer.resource())
