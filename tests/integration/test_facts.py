"""Every response says which request it answers and how long that took, whatever it is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.api import Api

CHAT = {"model": "usage", "messages": [{"role": "user", "content": "x"}]}
BODY = {"model": "usage", "input": "x"}

REQUESTS: dict[str, tuple[str, str, Any]] = {
    "json": ("POST", "/v1/responses", BODY),
    "stream": ("POST", "/v1/responses", {**BODY, "stream": True}),
    "failed stream": ("POST", "/v1/responses", {**BODY, "model": "fail", "stream": True}),
    "chat": ("POST", "/v1/chat/completions", CHAT),
    "chat stream": ("POST", "/v1/chat/completions", {**CHAT, "stream": True}),
    "failed chat": ("POST", "/v1/chat/completions", {**CHAT, "model": "fail"}),
    "refusal": ("POST", "/v1/responses", {"model": "nobody", "input": "x"}),
    "no json": ("POST", "/v1/responses", None),
    "no route": ("GET", "/v1/nowhere", None),
    "wrong method": ("PUT", "/v1/responses", None),
    "unknown id": ("GET", "/v1/responses/resp_unknown", None),
    "health": ("GET", "/healthz", None),
    "metrics": ("GET", "/metrics", None),
}


@pytest.mark.parametrize("kind", REQUESTS)
async def test_every_response_carries_its_facts(api: Api, kind: str) -> None:
    method, path, body = REQUESTS[kind]
    answer = await api.http.request(method, path, json=body)
    assert answer.headers["x-request-id"].startswith("req_")
    assert int(answer.headers["openai-processing-ms"]) >= 0
    assert len(answer.headers.get_list("x-request-id")) == 1
    named = await api.http.request(method, path, json=body, headers={"x-request-id": "mine-1"})
    assert named.headers["x-request-id"] == "mine-1"


@pytest.mark.parametrize("sent", ["a b", "x" * 129, "ümlaut", ""])
async def test_an_id_that_is_not_sane_is_replaced(api: Api, sent: str) -> None:
    answer = await api.http.get("/healthz", headers={"x-request-id": sent.encode()})  # type: ignore[dict-item]
    assert answer.headers["x-request-id"].startswith("req_")
