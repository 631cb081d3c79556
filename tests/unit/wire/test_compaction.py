"""Compactions: a history in one item, read again where it is sent."""

from __future__ import annotations

import base64
import json
import zlib
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.runs.measuring import carried
from gateway.wire import compaction
from gateway.wire.history import Compaction, Item, Message, parse_input, unfolded
from gateway.wire.input_items import as_resource

WORDS = st.sampled_from(["yes", "no", "\u0000\ud800", "go on"])
MESSAGES = st.builds(
    lambda role, text: {"role": role, "content": text},
    st.sampled_from(["user", "assistant", "developer"]),
    WORDS,
)


def said(items: list[Item]) -> list[tuple[str, str]]:
    return [(item.role, item.text) for item in items if isinstance(item, Message)]


@given(st.lists(MESSAGES, max_size=12), st.booleans())
def test_a_compacted_history_is_the_history(sent: list[Any], stripped: bool) -> None:
    """In its order, whether or not the client keeps the ids of what it sends back."""
    history = parse_input(sent)
    output = carried(history)
    assert [one["role"] for one in output[:-1]] == ["user"] * (len(output) - 1)
    if stripped:
        output = [{key: one[key] for key in one if key != "id"} for one in output]
    again = unfolded(parse_input([*output, {"role": "user", "content": "new"}]))
    assert said(again) == [*said(list(history)), ("user", "new")]


def test_calls_outputs_reasoning_and_images_are_in_it() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    sent = [
        {"role": "user", "content": [image]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "id": "rs_1"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "fc_1"},
        {"type": "function_call_output", "call_id": "c", "output": "x", "id": "fco_1"},
    ]
    history = parse_input(sent)
    again = unfolded(parse_input(carried(history)))
    assert [type(one) for one in again] == [type(one) for one in history]
    assert [as_resource(one)["id"] for one in again[1:]] == ["rs_1", "fc_1", "fco_1"]


def test_a_message_that_the_client_dropped_is_gone_and_the_rest_is_there() -> None:
    sent = [{"role": role, "content": role} for role in ("user", "assistant")]
    (*_, item) = carried(parse_input(sent))
    assert said(unfolded(parse_input([item]))) == [("assistant", "assistant")]


def test_a_compaction_of_a_compaction() -> None:
    sent = [{"role": role, "content": role} for role in ("user", "assistant")]
    once = carried(parse_input(sent))
    more = [*once, {"role": "user", "content": "next"}]
    twice = carried(unfolded(parse_input(more)))
    assert [one["type"] for one in twice] == ["message", "message", "compaction"]
    whole = [("user", "user"), ("assistant", "assistant"), ("user", "next")]
    assert said(unfolded(parse_input(twice))) == whole


def packed(value: Any) -> str:
    return (
        "fermata1." + base64.urlsafe_b64encode(zlib.compress(json.dumps(value).encode())).decode()
    )


def test_a_compaction_is_kept_and_given_back_as_it_is() -> None:
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": packed([])}
    (parsed,) = parse_input([item])
    assert isinstance(parsed, Compaction)
    assert as_resource(parsed) == item


BOMB = zlib.compress(b"[" + b" " * (compaction.MOST_UNPACKED + 1) + b"]")


@pytest.mark.parametrize(
    "content",
    [
        None,
        7,
        "",
        "gAAAAABpM0Yj-of-somebody-else",
        "fermata1.",
        "fermata1.%%%",
        "fermata1.ü",
        "fermata1." + base64.urlsafe_b64encode(b"no zlib").decode(),
        "fermata1." + base64.urlsafe_b64encode(BOMB).decode(),
        packed([])[:-4],
        packed({}),
        packed([1]),
        packed([{"type": "nonsense"}]),
        packed([{"type": "item_reference", "id": "msg_1"}]),
        packed([{"type": "compaction", "encrypted_content": packed([])}]),
    ],
    ids=lambda content: str(content)[:20],
)
def test_C40_what_was_not_packed_here_is_refused(content: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_input([{"type": "compaction", "encrypted_content": content}])
    assert refusal.value.param == "input[0].encrypted_content"


def test_what_is_too_long_to_be_sent_back_is_not_compacted() -> None:
    noise = "".join(chr(33 + byte % 90) for byte in Random(1).randbytes(2**24))
    with pytest.raises(InvalidRequest) as refusal:
        compaction.pack([noise])
    assert refusal.value.param == "input"
