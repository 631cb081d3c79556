"""The gateway as an ASGI application in this process, and a client that validates what it gets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import httpx2
from fastapi import FastAPI
from openai import AsyncOpenAI
from psycopg import AsyncConnection
from psycopg.rows import dict_row

from gateway import Graph
from gateway.app import create_app
from gateway.settings import Settings
from gateway.store import audit
from tests.openresponses import Json, check_stream, read_frames, validate_resource


@dataclass
class Api:
    """A client of one running gateway."""

    http: httpx.AsyncClient
    database_url: str
    app: FastAPI

    def openai(self, **more: Any) -> AsyncOpenAI:
        """The official client, talking to the application in this process."""
        transport = httpx2.ASGITransport(self.app, raise_app_exceptions=False)
        http = httpx2.AsyncClient(transport=transport)
        return AsyncOpenAI(
            base_url="http://gateway/v1", api_key="unused", http_client=http, max_retries=0, **more
        )

    async def post(self, body: Any, **more: Any) -> httpx.Response:
        """Any body, as it is: bytes, or JSON in ASCII, so that lone surrogates can be sent."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.http.post("/v1/responses", content=content, **more)

    async def create(self, model: str, said: Any, **fields: Any) -> Json:
        """The resource of a JSON request, validated."""
        answer = await self.post({"model": model, "input": said, **fields})
        assert answer.status_code == 200, answer.text
        validate_resource(answer.json())
        return dict(answer.json())

    async def stream(self, model: str, said: Any, **fields: Any) -> tuple[list[Json], Json]:
        """The events of a stream, validated one by one, and the last one's resource."""
        answer = await self.post({"model": model, "input": said, "stream": True, **fields})
        assert answer.status_code == 200, answer.text
        events = read_frames(answer.content)
        return events, check_stream(events)

    async def told(self, model: str, said: Any, *, stream: bool, **fields: Any) -> Json:
        """The resource, in either mode."""
        if stream:
            return (await self.stream(model, said, **fields))[1]
        return await self.create(model, said, **fields)

    async def refused(self, body: Any) -> tuple[int, Json]:
        """Status and error of a refusal, checked as an envelope."""
        answer = await self.post(body)
        return answer.status_code, envelope(answer)

    async def get(self, response_id: str) -> httpx.Response:
        return await self.http.get(f"/v1/responses/{response_id}")

    async def sql(self, statement: str, *params: Any) -> list[dict[str, Any]]:
        """What the database says."""
        connect = AsyncConnection.connect(self.database_url, autocommit=True, row_factory=dict_row)
        async with await connect as conn:
            cursor = await conn.execute(statement, params)  # type: ignore[call-overload]
            return list(await cursor.fetchall()) if cursor.description else []

    async def until(self, statement: str, *params: Any) -> None:
        """Wait until the statement finds a row."""
        async with asyncio.timeout(30):
            while not await self.sql(statement, *params):  # noqa: ASYNC110  # a database tells nobody
                await asyncio.sleep(0.02)

    async def run_of(self, response: Json) -> str:
        (row,) = await self.sql(
            "SELECT run_id FROM fermata.responses WHERE id = %s", response["id"]
        )
        return str(row["run_id"])

    async def checkpoint_rows(self, run_id: str) -> int:
        """How many rows LangGraph's tables hold of the run."""
        counts = " + ".join(
            f"(SELECT count(*) FROM {table} WHERE thread_id = %s)"
            for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
        )
        (row,) = await self.sql(f"SELECT {counts} AS rows", run_id, run_id, run_id)
        return int(row["rows"])


def envelope(answer: httpx.Response) -> Json:
    """The error of an answer that must be one envelope, in one line, and never a 500."""
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body.keys() == {"error"}
    error: Json = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    assert len(error["message"].splitlines()) == 1
    assert isinstance(error["type"], str)
    assert isinstance(error["code"], str)
    assert error["param"] is None or error["param"]
    assert "Traceback" not in answer.text
    locked = error["code"] == "conversation_locked"  # a 400: no SDK repeats it unless it is told to
    retried = answer.status_code == 409 or locked
    assert ("retry-after" in answer.headers) == retried
    should = {"false": False, "true": True}.get(answer.headers.get("x-should-retry", ""))
    assert should is (True if locked else None if retried else False)
    return error


def output(call: Json | str, value: Any = "yes") -> Json:
    """The answer to a call."""
    call_id = call if isinstance(call, str) else call["call_id"]
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def calls(response: Json) -> list[Json]:
    return [item for item in response["output"] if item["type"] == "function_call"]


def texts(response: Json) -> list[str]:
    """The text of every message."""
    return [
        "".join(part["text"] for part in item["content"])
        for item in response["output"]
        if item["type"] == "message"
    ]


@asynccontextmanager
async def serving(
    database_url: str, graphs: Mapping[str, Graph], **environ: str
) -> AsyncIterator[Api]:
    """A gateway in this process, with its background work; settings by name: `LEASE_TTL="5s"`."""
    named = {f"FERMATA_{name}": value for name, value in environ.items()}
    settings = Settings.from_env({"FERMATA_DATABASE_URL": database_url, **named})
    app = create_app(settings, graphs)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
            yield Api(http, database_url, app)


async def whole_audit(database_url: str) -> None:
    """P7, after whatever a test did: nothing that happened is missing in the audit."""
    async with await AsyncConnection.connect(
        database_url, autocommit=True, row_factory=dict_row
    ) as conn:
        _, wrong = await audit.verify(conn)
    assert wrong == []
