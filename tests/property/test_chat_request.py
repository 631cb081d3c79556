"""C40 for Chat Completions and the WebSocket: taken and translated, or refused naming one field."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsBase

from gateway.errors import InvalidRequest
from gateway.runs.conversation import conversation
from gateway.wire.chat_request import ChatRequest, parse_chat
from gateway.wire.input_items import as_resource
from gateway.wire.items import Response
from gateway.wire.request import request_fingerprint
from gateway.wire.socket import parse_turn
from gateway.wire.tasks import task_answer

T = TypeVar("T")

WORDS = st.sampled_from(
    [
        *("system", "developer", "user", "assistant", "tool", "function", "custom", "text"),
        *("image_url", "input_audio", "file", "video_url", "refusal", "json_schema", "auto"),
        *("allowed_tools", "audio", "call_1", "", "\ud800", "a\nb", "USER: x"),
    ]
)
KEYS = st.sampled_from(
    [
        *("type", "role", "content", "text", "id", "tool_call_id", "tool_calls", "function"),
        *("custom", "name", "arguments", "url", "image_url", "file", "file_data", "json_schema"),
        *("schema", "tools", "mode", "allowed_tools", "input_audio", "data", "refusal", "a\nb"),
    ]
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), FLOATS, WORDS, st.text(max_size=5))
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=5)),
    max_leaves=15,
)
MESSAGES = st.lists(
    st.one_of(
        VALUES,
        st.fixed_dictionaries({"role": WORDS, "content": VALUES}, optional={"tool_calls": VALUES}),
        st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": WORDS, "content": VALUES}),
    ),
    max_size=3,
)
FIELDS = sorted({*CompletionCreateParamsBase.__annotations__, "stream", "other"} - {"messages"})
BODIES = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4)


@settings(max_examples=150, deadline=None)
@given(BODIES, MESSAGES)
def test_C40_no_chat_breaks_the_parser(body: dict[str, Any], messages: list[Any]) -> None:
    sent = json.dumps({"model": "m", "messages": messages} | body)
    chat = refused_or(lambda: parse_chat(sent))
    if isinstance(chat, InvalidRequest):
        assert chat.param
    else:
        assert_translated(chat)


def refused_or(act: Callable[[], T]) -> T | InvalidRequest:
    """What comes of it, or the refusal, which must be one line."""
    try:
        return act()
    except InvalidRequest as refused:
        error = refused
    assert len(error.message.splitlines()) == 1
    return error


def assert_translated(chat: ChatRequest) -> None:
    """What is translated can be echoed, stored, fingerprinted, and made a conversation of."""
    request = chat.create
    assert len(chat.places) == len(request.input)
    Response.of_request(request, "resp_1", 1)
    request_fingerprint(request)
    assert task_answer("title_generation", request)
    for item in request.input:
        as_resource(item)
    messages = refused_or(lambda: conversation((), request.input, None))
    if isinstance(messages, InvalidRequest):
        assert chat.param(messages.param) == "messages"


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.binary(max_size=40), st.text(max_size=40), VALUES.map(json.dumps)))
def test_C40_no_message_breaks_a_connection(message: bytes | str) -> None:
    refused_or(lambda: parse_turn(message))
