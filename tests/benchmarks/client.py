"""The load: HTTP and the Responses wire, nothing that only our gateway does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp

from tests.benchmarks.cases import Case
from tests.benchmarks.graphs import ANSWER
from tests.benchmarks.measure import RunFailed

_DELTA: Final = b'"response.output_text.delta"'
_ENDS: Final = (b'"response.completed"', b'"response.failed"', b'"response.incomplete"')
_TIMEOUT: Final = aiohttp.ClientTimeout(total=120)


class Client:
    """One server; as many connections as there are runs at once, kept alive."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        self._session = session
        self._url = f"{base_url}/responses"

    async def run(self, case: Case) -> int:
        """One run of `case`; how many units it was. Raises RunFailed."""
        try:
            return await self._run(case)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise RunFailed(type(error).__name__) from error

    async def _run(self, case: Case) -> int:
        body = {"model": case.model, "input": "Refund order 1001", "stream": case.streamed}
        response, deltas = await self._create(body)
        if case.answers:
            answers = [_answer(item) for item in _calls(response)]
            if not answers:
                raise RunFailed("did not pause")
            body |= {"previous_response_id": response["id"], "input": answers}
            response, _ = await self._create(body)
        if _calls(response):
            raise RunFailed("paused")
        return deltas if case.unit == "deltas" else 1

    async def _create(self, body: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """The finished response and how many deltas came before it."""
        async with self._session.post(self._url, json=body) as reply:
            if reply.status != 200:
                raise RunFailed(f"{reply.status} {_code(await reply.read())}")
            if body["stream"]:
                response, deltas = await _read_events(reply)
            else:
                response, deltas = json.loads(await reply.read()), 0
        if response["status"] != "completed":
            raise RunFailed(f"status {response['status']}")
        return response, deltas


@asynccontextmanager
async def connect(base_url: str) -> AsyncIterator[Client]:
    """A client of the server at `base_url`, which ends in `/v1`."""
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Authorization": "Bearer benchmark"}
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, timeout=_TIMEOUT
    ) as session:
        yield Client(session, base_url)


async def _read_events(reply: aiohttp.ClientResponse) -> tuple[dict[str, Any], int]:
    # Chunks, split here: a coroutine step a line is CPU time that the server next to us lacks.
    rest, deltas = b"", 0
    async for chunk in reply.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            if _DELTA in line:
                deltas += 1
            elif any(end in line for end in _ENDS):
                return json.loads(line[5:])["response"], deltas
    raise RunFailed("the stream ended early")


def _calls(response: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for item in response["output"] if item["type"] == "function_call"]


def _answer(call: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call["call_id"], "output": ANSWER}


def _code(body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
        return str(error.get("code") or error.get("type"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return "without an error body"
