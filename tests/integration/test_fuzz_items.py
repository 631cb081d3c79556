"""Made-up conversations through the whole gateway: no 500, no hang, no broken envelope (C40)."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzzing import tried
from tests.integration.api import Api, calls, envelope
from tests.integration.small_graphs import EFFECTS
from tests.openresponses import check_stream, read_frames, validate_resource

EXAMPLES = 25
PATIENCE = 20.0  # seconds that an answer may take
THE_CALL = "the call"  # stands for the id of the question that waits
THE_ITEM = "the item"  # and this for the id of an item that is stored

_TEXTS = st.sampled_from(
    [
        "",
        " ",
        "hi",
        "no",
        "null",
        "[]",
        "{}",
        '{"action": "reject"}',
        "NaN",
        "\x00",
        "\ud800",
        "🎼",
        "x" * 5000,
    ]
)
_IDS = st.sampled_from([THE_ITEM, "msg_1", "fc_1", ""])
_CALL_IDS = st.sampled_from([THE_CALL, "call_1", "call_2"])
_PARTS = st.one_of(
    st.fixed_dictionaries({"type": st.sampled_from(["input_text", "output_text"]), "text": _TEXTS}),
    st.fixed_dictionaries({"type": st.just("refusal"), "refusal": _TEXTS}),
    st.fixed_dictionaries({"type": st.just("input_image"), "image_url": _TEXTS}),
    st.fixed_dictionaries({"type": st.just("input_file"), "file_id": _TEXTS}),
)
_CONTENT = _TEXTS | st.lists(_PARTS, max_size=3)
_ITEMS = st.one_of(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system", "developer"]),
            "content": _CONTENT,
        },
        optional={"type": st.just("message"), "id": _IDS},
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("function_call"),
            "call_id": _CALL_IDS,
            "name": st.sampled_from(["go_on", "get_weather", "ä b", "x" * 200]),
        },
        optional={"arguments": _TEXTS | st.just({}), "id": _IDS},
    ),
    st.fixed_dictionaries(
        {"type": st.just("function_call_output"), "call_id": _CALL_IDS, "output": _CONTENT},
        optional={"id": _IDS},
    ),
    st.fixed_dictionaries(
        {"type": st.just("reasoning"), "summary": st.lists(_PARTS, max_size=1)},
        optional={"encrypted_content": _TEXTS, "id": _IDS},
    ),
    st.fixed_dictionaries({"type": st.just("item_reference"), "id": _IDS}),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["mcp_call", "computer_call_output", "custom_tool_call"])},
        optional={"id": _IDS, "call_id": _CALL_IDS},
    ),
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
)
_FIELDS = st.fixed_dictionaries(
    {"input": st.lists(_ITEMS, max_size=5)},
    optional={
        "stream": st.booleans(),
        "store": st.booleans(),
        "instructions": _TEXTS,
        "metadata": st.dictionaries(_TEXTS.filter(lambda text: len(text) < 64), _TEXTS, max_size=2),
        "tools": st.just([{"type": "function", "name": "get_weather", "parameters": {}}]),
        "anything": _JSON,
    },
)
_EACH = tried(EXAMPLES)


async def judged(api: Api, body: Any) -> None:
    """Send it; whatever is told must be whole."""
    with anyio.fail_after(PATIENCE):
        answer = await api.post(body)
    if answer.status_code != 200:
        envelope(answer)
    elif answer.headers["content-type"].startswith("text/event-stream"):
        check_stream(read_frames(answer.content))
    else:
        validate_resource(answer.json())


def with_ids(fields: dict[str, Any], **ids: str) -> dict[str, Any]:
    text = json.dumps(fields)
    for name, id in ids.items():
        text = text.replace(f"the {name}", id)
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("model", ["remember", "ask"])
@_EACH
@given(fields=_FIELDS)
async def test_a_made_up_conversation(api: Api, model: str, fields: dict[str, Any]) -> None:
    known = await api.create("remember", "Hi.")

    await judged(api, {"model": model, **with_ids(fields, item=known["output"][0]["id"])})


@pytest.mark.parametrize("named", [True, False], ids=["previous", "history"])
@_EACH
@given(fields=_FIELDS)
async def test_made_up_items_for_a_run_that_waits(
    api: Api, named: bool, fields: dict[str, Any]
) -> None:
    """Whatever is said to it: the run has taken one answer, or none and still can be answered."""
    asked = await api.create("ask", "Go on?")
    (call,) = calls(asked)
    body = with_ids(fields, call=call["call_id"], item=call["id"])
    if named:
        body["previous_response_id"] = asked["id"]
    await judged(api, {"model": "ask", **body})

    answer = {"type": "function_call_output", "call_id": call["call_id"], "output": "yes"}
    after = await api.post({"model": "ask", "input": [answer]})
    done = EFFECTS[await api.run_of(asked)]
    assert done == ["announced", "answered"]
    if after.status_code != 200:
        assert envelope(after)["code"] == "interrupt_already_answered"


@_EACH
@given(body=_JSON | st.binary(max_size=40))
async def test_a_body_of_any_kind(api: Api, body: Any) -> None:
    await judged(api, body)
