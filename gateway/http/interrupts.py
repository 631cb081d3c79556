"""`/v1/interrupts`: open questions, for reviewers who are not the client that asked."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import InvalidRequest
from gateway.http.auth import principal_of
from gateway.http.body import json_response, read_body
from gateway.http.state import ready
from gateway.runs.open_questions import OpenQuestion, one_question, open_questions
from gateway.runs.reviewing import answer_one
from gateway.wire import checks, encoding
from gateway.wire.encoding import Json
from gateway.wire.paging import parse_limit

router = APIRouter()


@router.get("/v1/interrupts", response_model=None)
async def list_interrupts(request: Request) -> Response:
    """What the principal may answer, oldest first; `limit` and `after` page through it."""
    query = request.query_params
    if query.get("status", "pending") != "pending":
        raise InvalidRequest("Only pending questions are listed.", param="status")
    found, more = await open_questions(
        ready(request).coordinator.database,
        principal_of(request),
        parse_limit(query.get("limit")),
        query.get("after"),
    )
    ids = [question.call_id for question in found]
    return json_response(
        {
            "object": "list",
            "data": [_resource(question) for question in found],
            "first_id": ids[0] if ids else None,
            "last_id": ids[-1] if ids else None,
            "has_more": more,
        }
    )


@router.get("/v1/interrupts/{call_id}", response_model=None)
async def retrieve_interrupt(request: Request, call_id: str) -> Response:
    """One question, whatever became of it."""
    return await _told(request, call_id)


@router.post("/v1/interrupts/{call_id}/answer", response_model=None)
async def answer_interrupt(request: Request, call_id: str) -> Response:
    """Answer one question; the last answer of a batch resumes the run in the background."""
    gateway = ready(request)
    body = checks.body(await read_body(request, gateway.settings.max_body_bytes))
    await answer_one(gateway.coordinator, call_id, _output(body), principal_of(request))
    return await _told(request, call_id)


async def _told(request: Request, call_id: str) -> Response:
    database = ready(request).coordinator.database
    return json_response(_resource(await one_question(database, principal_of(request), call_id)))


def _output(body: dict[str, Json]) -> str:
    """The answer as a client's `output` would spell it: `output` itself, or the whole body."""
    if not body:
        raise InvalidRequest("The answer is missing.", param="output")
    answer = body.get("output", body)
    return answer if isinstance(answer, str) else encoding.dumps(answer)


def _resource(question: OpenQuestion) -> dict[str, Any]:
    return {
        "id": question.call_id,
        "object": "fermata.interrupt",
        "call_id": question.call_id,
        "response_id": question.response_id,
        "model": question.model,
        "name": question.name,
        "requester": question.requester,
        "status": question.status,
        "answerable": question.answerable,
        "question": encoding.loads(question.question.arguments()),
        "created_at": _seconds(question.created_at),
        "expires_at": _seconds(question.expires_at),
        "answered_at": _seconds(question.answered_at),
        "answered_by": question.answered_by,
    }


def _seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())
