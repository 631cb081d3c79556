"""The document says what the parsers do: what it allows is taken, what it forbids is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gateway.app import create_app
from gateway.errors import InvalidRequest
from gateway.settings import Settings
from gateway.wire.chat_request import parse_chat
from gateway.wire.request import parse_create

DOCUMENT = create_app(Settings.from_env({}), {}).openapi()
SCHEMAS = DOCUMENT["components"]["schemas"]
EVENTS = "text/event-stream"
RECORDED = json.loads((Path(__file__).parents[1] / "cases" / "client_requests.json").read_text())


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    )


CREATE, CHAT, ITEM = (
    validator(name) for name in ("CreateResponse", "CreateChatCompletion", "InputItem")
)


def taken(parse: Any, body: dict[str, Any]) -> bool:
    try:
        parse(body)
    except InvalidRequest:
        return False
    return True


def test_every_operation_is_described() -> None:
    for path, methods in DOCUMENT["paths"].items():
        for method, told in methods.items():
            content = told["responses"]["200"]["content"]
            schemas = [one["schema"] for kind, one in content.items() if kind != EVENTS]
            assert all(schemas), f"{method} {path} is missing in OPERATIONS"


def test_no_reference_leads_nowhere_and_no_schema_is_unused() -> None:
    text = json.dumps(DOCUMENT)
    named = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}

    assert named == set(SCHEMAS)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_is_one(name: str) -> None:
    Draft202012Validator.check_schema(SCHEMAS[name])


@pytest.mark.parametrize("record", RECORDED, ids=lambda record: record["client"])
def test_what_real_clients_send_is_allowed(record: dict[str, Any]) -> None:
    CREATE.validate(record["body"])


# Values that are near what fields take: the right ones, and each a little wrong.
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 25),
    # No whole floats: 2.0 is an integer to JSON Schema, and none to OpenAI, which refuses it.
    st.sampled_from([-(2**63), 2**63, 0.5, 1.5]),
    st.sampled_from(
        ["", "x", "auto", "none", "required", "low", "max", "default", "disabled", "detailed"]
    ),
    st.sampled_from(["24h", "text", "json_schema", "function", "allowed_tools", "message"]),
    st.sampled_from(["user", "tool", "input_text", "refusal", "a b", "x" * 65, "x" * 1025]),
)
_KEYS = st.sampled_from(
    [
        *("type", "name", "text", "role", "content", "id", "call_id", "output", "schema"),
        *("format", "mode", "tools", "effort", "summary", "arguments", "verbosity", "strict"),
        *("parameters", "image_url", "file_id", "refusal", "encrypted_content", "x" * 65),
    ]
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=5),
    max_leaves=10,
)


@given(st.sampled_from(sorted(SCHEMAS["CreateResponse"]["properties"].keys() - {"model"})), _VALUES)
@example("metadata", {"x" * 65: ""})
@example("text", {"format": {"type": "json_schema", "name": "a b", "schema": {}}})
@example("tools", [{"type": "function", "name": "n", "parameters": None}])
def test_one_field_of_a_response(name: str, value: Any) -> None:
    body = {"model": "m", "input": "hi", name: value}

    assert taken(parse_create, body) == CREATE.is_valid(body)


@given(
    st.sampled_from(sorted(SCHEMAS["CreateChatCompletion"]["properties"].keys() - {"model"})),
    _SCALARS,
)
def test_one_field_of_a_chat(name: str, value: Any) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], name: value}
    if name == "messages" and value is None:
        return  # null is not sent, which the document cannot say of a required field

    assert taken(parse_chat, body) == CHAT.is_valid(body)


_TYPES = st.sampled_from(
    [
        *("message", "function_call", "function_call_output", "reasoning", "item_reference"),
        *("custom_tool_call", "mcp_call", "unheard_of", None, 7),
    ]
)
_PARTS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(
                ["input_text", "output_text", "refusal", "input_image", "input_file", "x"]
            ),
            "text": _SCALARS,
            "refusal": _SCALARS,
            "image_url": st.sampled_from([None, "data:", 7]),
            "file_id": st.sampled_from([None, "file_1", 7]),
        },
    ),
    max_size=2,
)
ITEMS = st.fixed_dictionaries(
    {},
    optional={
        "type": _TYPES,
        "role": st.sampled_from(["user", "assistant", "system", "developer", "tool", None, 7]),
        "content": _PARTS | _SCALARS,
        "call_id": st.sampled_from(["call_1", "", "x" * 1025, None, 7]),
        "name": st.sampled_from(["get_weather", "", None, 7]),
        "arguments": st.sampled_from(["{}", {}, None, 7]),
        "output": _PARTS | _SCALARS,
        "id": st.sampled_from(["msg_1", "", None, 7]),
        "summary": _PARTS | _SCALARS,
    },
)


_SOME = st.sampled_from([None, True, False, "x", "", 7])
_TOGETHER = ("input", "previous_response_id", "conversation", "background", "store")


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(_TOGETHER, _SOME)))
def test_fields_that_need_or_exclude_each_other(fields: dict[str, Any]) -> None:
    body = {"model": "m", **fields}

    assert taken(parse_create, body) == CREATE.is_valid(body)


@given(ITEMS)
def test_an_item(item: dict[str, Any]) -> None:
    body = {"model": "m", "input": [item]}

    assert taken(parse_create, body) == ITEM.is_valid(item) == CREATE.is_valid(body)
