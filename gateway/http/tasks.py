"""Task requests of chat front ends: known by a header that the operator names, never run."""

from __future__ import annotations

from starlette.datastructures import Headers

from gateway.errors import ModelNotFound
from gateway.http.state import Gateway
from gateway.runs.replies import SaidReply
from gateway.runs.saying import said
from gateway.wire.request import CreateResponse
from gateway.wire.tasks import named_task, task_answer


def task_reply(gateway: Gateway, headers: Headers, request: CreateResponse) -> SaidReply | None:
    """The answer to a task; None for a real turn. Raises `ModelNotFound`."""
    header = gateway.settings.task_header
    task = None if header is None else named_task(headers.get(header))
    if task is None:
        return None
    if request.model not in gateway.coordinator.graphs:
        raise ModelNotFound(request.model)
    return said(request, task_answer(task, request))
