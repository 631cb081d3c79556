"""Requests made up from our own OpenAPI document, and from it a little wrong: by schemathesis.

No operation may answer with a 500, with a status or a body that the document does not tell, or take
what the document forbids; and none may hang. `make fuzz EXAMPLES=1000` looks longer, at random.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import given
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from gateway.app import create_app
from gateway.settings import Settings
from tests.acceptance.server import Server
from tests.fuzzing import tried

EXAMPLES = 12
PATIENCE = 20.0  # seconds that an answer may take
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
)
MODELS = ("echo", "interruptible-approval", "two-questions")
SCHEMA = schemathesis.openapi.from_dict(create_app(Settings.from_env({}), {}).openapi())
OPERATIONS = {
    f"{found.method.upper()} {found.path}": found
    for found in (result.ok() for result in SCHEMA.get_all_operations())
}
WRONG = [name for name, found in OPERATIONS.items() if found.body or found.query]


@pytest.fixture(scope="module")
def known(server: Server) -> dict[str, str]:
    """Ids that are there, so that paths lead somewhere."""
    with httpx.Client(base_url=server.base_url) as http:
        asked = http.post("/responses", json={"model": MODELS[1], "input": "Refund order ORDER-1"})
        made = http.post("/conversations", json={"items": [{"role": "user", "content": "Hi"}]})
        items = http.get(f"/conversations/{made.json()['id']}/items")
    return {
        "response_id": asked.json()["id"],
        "call_id": asked.json()["output"][0]["call_id"],
        "conversation_id": made.json()["id"],
        "item_id": items.json()["data"][0]["id"],
        "model": "echo",
    }


def led_somewhere(case: Any, known: dict[str, str], number: int) -> None:
    """Of two made-up ids and models one becomes a real one; deletions keep what is there."""
    if case.method != "DELETE" and number % 2:
        for name in case.path_parameters or ():
            case.path_parameters[name] = known.get(name, case.path_parameters[name])
    body = case.body
    model = body.get("model") if isinstance(body, dict) else None
    if isinstance(model, str) and 0 < len(model) <= 1024:  # else it may be what is wrong
        body["model"] = MODELS[number % len(MODELS)]


def fuzz(name: str, mode: GenerationMode, server: Server, known: dict[str, str]) -> None:
    numbers = itertools.count()

    @tried(EXAMPLES)
    @given(case=OPERATIONS[name].as_strategy(generation_mode=mode))
    def sent(case: Any) -> None:
        led_somewhere(case, known, next(numbers))
        answer = case.call(base_url=server.url, timeout=PATIENCE)
        case.validate_response(answer, checks=CHECKS)
        if answer.status_code >= 400:
            assert json.loads(answer.content)["error"]["message"]

    sent()


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_the_document_allows(name: str, server: Server, known: dict[str, str]) -> None:
    fuzz(name, GenerationMode.POSITIVE, server, known)


@pytest.mark.parametrize("name", WRONG)
def test_what_the_document_forbids(name: str, server: Server, known: dict[str, str]) -> None:
    fuzz(name, GenerationMode.NEGATIVE, server, known)
