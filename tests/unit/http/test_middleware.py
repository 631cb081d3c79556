"""What every response carries, whatever happens to it."""

from __future__ import annotations

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from gateway.http.middleware import RequestFacts


async def broken(request: Request) -> Response:
    raise ValueError("a secret of ours")


async def fine(request: Request) -> Response:
    return Response(b"fine")


app = RequestFacts(Router([Route("/broken", broken), Route("/fine", fine)]))


async def ask(path: str, **headers: str) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.get(path, headers=headers)


async def test_a_bug_of_ours_is_a_500_in_the_envelope_and_no_secret_leaves() -> None:
    response = await ask("/broken")
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "server_error"
    assert "secret" not in response.text
    assert response.headers["x-request-id"].startswith("req_")
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("sent", ["abc-123", "0f9c.ABC_~"])
async def test_a_sane_request_id_is_taken_over(sent: str) -> None:
    response = await ask("/fine", **{"x-request-id": sent})
    assert response.headers["x-request-id"] == sent
    assert response.headers["openai-processing-ms"].isdigit()


@pytest.mark.parametrize("sent", ["", "a b", "x" * 129])
async def test_any_other_request_id_is_replaced(sent: str) -> None:
    response = await ask("/fine", **{"x-request-id": sent})
    assert response.headers["x-request-id"].startswith("req_")
