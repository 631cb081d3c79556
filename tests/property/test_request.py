"""C40: whatever a client sends, it is taken and echoed, or refused naming one parameter."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from gateway.errors import InvalidRequest
from gateway.wire.history import OPAQUE_TYPES
from gateway.wire.input_items import as_resource
from gateway.wire.items import Response
from gateway.wire.request import (
    CreateResponse,
    parse_create,
    request_fingerprint,
)

WORDS = st.sampled_from(
    [
        *("message", "function_call", "function_call_output", "reasoning", "item_reference"),
        *("user", "assistant", "input_text", "input_image", "refusal", "function", "json_schema"),
        *("auto", "", "\ud800", "a\nb", *OPAQUE_TYPES[:3]),
    ]
)
KEYS = st.sampled_from(
    [
        *("type", "role", "content", "text", "id", "call_id", "output", "name", "arguments"),
        *("summary", "format", "schema", "tools", "mode", "image_url", "parameters", "effort"),
        "a\nb",
    ]
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), FLOATS, WORDS, st.text(max_size=5))
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=5)),
    max_leaves=15,
)
FIELDS = sorted({*ResponseCreateParamsBase.__annotations__, "stream", "n", "generate", "other"})
BODIES = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5)


def parsed(body: bytes | str) -> CreateResponse | InvalidRequest:
    try:
        return parse_create(body)
    except InvalidRequest as refused:
        error = refused
    assert len(error.message.splitlines()) == 1
    return error


@settings(max_examples=100, deadline=None)
@given(BODIES, st.lists(VALUES, max_size=3))
def test_C40_nothing_that_is_json_breaks_the_parser(body: dict[str, Any], items: list[Any]) -> None:
    sent = {"model": "m", "input": items} | body
    request = parsed(json.dumps(sent))
    if isinstance(request, InvalidRequest):
        assert request.param
        return
    Response.of_request(request, "resp_1", 1)
    request_fingerprint(request)
    for item in request.input:
        as_resource(item)


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.binary(max_size=40), st.text(max_size=40)))
def test_C40_nothing_at_all_breaks_the_parser(body: bytes | str) -> None:
    parsed(body)
