"""`/v1/responses` and its neighbours over ASGI: bad input, frames, modes, pauses and resumes."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import enum
import json
import math
import uuid
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import httpx
import pydantic
import pytest

from tests.integration.api import Api, calls, envelope, output, texts
from tests.integration.small_graphs import EFFECTS, PAYLOADS
from tests.openresponses import Json, read_frames

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
WEATHER = [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


# --- C40: whatever is sent -------------------------------------------------------------------

OPTIONAL = (
    *("background", "conversation", "include", "instructions", "max_output_tokens", "metadata"),
    *("max_tool_calls", "parallel_tool_calls", "previous_response_id", "prompt", "reasoning"),
    *("prompt_cache_key", "safety_identifier", "service_tier", "store", "stream", "text"),
    *("stream_options", "temperature", "tool_choice", "tools", "top_logprobs", "top_p"),
    *("truncation", "user", "moderation", "frequency_penalty", "presence_penalty"),
)
TOOL = {"type": "function", "name": "f", "description": "\ud800", "strict": None}

GOOD: dict[str, Json] = {
    "null for every optional field": {"input": "hi", **dict.fromkeys(OPTIONAL)},
    "empty input": {"input": []},
    "empty text": {"input": ""},
    "empty content": {"input": [user([])]},
    "developer and system": {
        "input": [
            {"role": "developer", "content": "d"},
            {"role": "system", "content": [{"type": "input_text", "text": "s"}]},
            user("hi"),
        ]
    },
    "messages without type and with null": {
        "input": [user("a"), {"type": None, "id": None, "status": None, **user("b")}]
    },
    "unknown extra fields": {
        "input": [{**user("hi"), "extra": {"x": [1]}}],
        "something": {"else": [None]},
        "n": 1,
    },
    "NUL and lone surrogates in texts": {
        "input": [user("a\u0000b\ud800c"), user([{"type": "input_text", "text": "\udfff\u0000"}])],
        "instructions": "\u0000\ud800",
    },
    "NUL and lone surrogates in ids and metadata": {
        "input": [{"id": "\u0000\ud800", **user("hi")}],
        "metadata": {"a\u0000\ud800": "\u0000\udc00", "": ""},
        "user": "\u0000\ud800",
        "safety_identifier": "\ud800",
        "prompt_cache_key": "\u0000",
    },
    "tools with odd texts and null": {"input": "hi", "tools": [TOOL]},
    "huge integers": {
        "input": [{**user("hi"), "extra": 2**70}],
        "max_output_tokens": 10**30,
        "tools": [{**TOOL, "parameters": {"maximum": -(2**70), "a": 10**400}}],
    },
    "many levels": {
        "input": [{**user("hi"), "extra": deep(150)}],
        "tools": [{**TOOL, "parameters": deep(150)}],
    },
    "line ends of every kind": {"input": "a\r\nb\u2028c\u2029d\u0085e\x1f"},
    "everything above ASCII": {"input": "Grüße 💥 \U0010ffff", "instructions": "日本"},
    "an hour of talk": {"input": [user("hi"), {"role": "assistant", "content": "ho"}] * 300},
    "reasoning and built-in calls": {
        "input": [
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
            {"type": "web_search_call", "id": "ws_1", "status": "completed"},
            user("hi"),
        ]
    },
}


@BOTH
@pytest.mark.parametrize("model", ["remember", "ask"])
@pytest.mark.parametrize("name", GOOD)
async def test_C40_odd_input_is_served(api: Api, name: str, model: str, stream: bool) -> None:
    body = {**GOOD[name], "model": model, "stream": stream}
    answer = await api.post(body)
    assert answer.status_code == 200, answer.text
    told = read_frames(answer.content)[-1]["response"] if stream else answer.json()
    assert told["status"] == "completed"
    stored = await api.get(told["id"])
    assert stored.json() == told
    if model == "ask":
        (call,) = calls(told)
        said = {"model": model, "input": [output(call)], "previous_response_id": told["id"]}
        resumed = await api.post(said)
        assert texts(resumed.json())[-1] == "answer: 'yes'"


async def test_C40_numbers_beyond_all_bounds_are_taken_or_refused(api: Api) -> None:
    """`1e400` reads as Infinity, which JSON cannot give back; beside an integer beyond 64 bits."""
    for tool in (
        b'{"type":"function","name":"f","parameters":{"a":1e400}}',
        b'{"type":"function","name":"f","parameters":{"a":1e400,"b":1180591620717411303424}}',
    ):
        for item in (
            b'{"role":"user","content":"hi"}',
            b'{"role":"user","content":"hi","x":1e400,"y":1180591620717411303424}',
        ):
            sent = b'{"model":"remember","input":[%b],"tools":[%b]}' % (item, tool)
            answer = await api.post(sent)
            assert answer.status_code in (200, 400), (sent, answer.text)


BAD: dict[str, tuple[Any, str | None]] = {
    "nothing": (b"", None),
    "half of it": (b'{"model": "remember", "input": "hi', None),
    "no JSON": (b"model=remember&input=hi", None),
    "NaN": (b'{"model": "remember", "input": "hi", "temperature": NaN}', None),
    "no UTF-8": (b'{"model": "remember", "input": "\xff\xfe"}', None),
    "null": (b"null", None),
    "an array": ([], None),
    "a string": ("hi", None),
    "a number": (b"1", None),
    "100 000 brackets": (b"[" * 100_000, None),
    "100 000 objects": (b'{"a":' * 100_000, None),
    "300 levels": ({"model": "remember", "input": "hi", "x": deep(300)}, None),
    "5000 digits": (b'{"model": "remember", "input": "hi", "top_p": ' + b"1" * 5000 + b"}", None),
    "no model": ({"input": "hi"}, "model"),
    "a null model": ({"model": None, "input": "hi"}, "model"),
    "a model that is a number": ({"model": 5, "input": "hi"}, "model"),
    "an empty model": ({"model": "", "input": "hi"}, "model"),
    "no input": ({"model": "remember"}, "input"),
    "an input that is a number": ({"model": "remember", "input": 5}, "input"),
    "an input that is an object": ({"model": "remember", "input": user("hi")}, "input"),
    "a string where an item is expected": ({"model": "remember", "input": ["hi"]}, "input[0]"),
    "null where an item is expected": ({"model": "remember", "input": [None]}, "input[0]"),
    "an item of no type": ({"model": "remember", "input": [{}]}, "input[0].type"),
    "an unknown type": (
        {"model": "remember", "input": [user("a"), {"type": "\ud800"}]},
        "input[1].type",
    ),
    "an unknown role": (
        {"model": "remember", "input": [{"role": "king", "content": ""}]},
        "input[0].role",
    ),
    "no content": ({"model": "remember", "input": [{"role": "user"}]}, "input[0].content"),
    "a part that is a string": (
        {"model": "remember", "input": [user(["hi"])]},
        "input[0].content[0]",
    ),
    "an image without a source": (
        {"model": "remember", "input": [user([{"type": "input_image"}])]},
        "input[0].content[0].image_url",
    ),
    "metadata that is a string": ({"metadata": "x"}, "metadata"),
    "metadata of numbers": ({"metadata": {"a": 2**70}}, "metadata.a"),
    "too much metadata": ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
    "tools that are an object": ({"tools": {}}, "tools"),
    "a tool that is a string": ({"tools": ["f"]}, "tools[0]"),
    "a tool without a name": ({"tools": [{"type": "function"}]}, "tools[0].name"),
    "a tool with an odd name": (
        {"tools": [{"type": "function", "name": "\u0000"}]},
        "tools[0].name",
    ),
    "text that is a string": ({"text": "json"}, "text"),
    "reasoning that is a string": ({"reasoning": "high"}, "reasoning"),
    "stream that is a string": ({"stream": "true"}, "stream"),
    "store that is a number": ({"store": 1}, "store"),
    "a hot temperature": ({"temperature": 10**400}, "temperature"),
    "an infinite temperature": (
        b'{"model": "remember", "input": "hi", "temperature": 1e400}',
        None,
    ),
    "no tokens": ({"max_output_tokens": 0}, "max_output_tokens"),
    "a previous response that is an object": (
        {"previous_response_id": {}},
        "previous_response_id",
    ),
    "a stored prompt": ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    "an answer without call_id": (
        {"input": [{"type": "function_call_output", "output": "x"}]},
        "input[0].call_id",
    ),
    "an answer without output": (
        {"input": [{"type": "function_call_output", "call_id": "call_1"}]},
        "input[0].output",
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_C40_bad_input_names_one_parameter(api: Api, name: str) -> None:
    body, param = BAD[name]
    if isinstance(body, dict) and "input" not in body and "model" not in body:
        body = {"input": "hi", **body}
    if isinstance(body, dict) and "model" not in body and name != "no model":
        body = {"model": "remember", **body}
    status, error = await api.refused(body)
    assert (status, error["param"]) == (400, param)
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) < 2000


@BOTH
@pytest.mark.parametrize(
    "id",
    [
        "resp_gone",
        "\u0000",
        "\ud800",
        "💥",
        "x" * 1024,
        "'; DROP TABLE fermata.runs; --",
        " ",
        "\n",
    ],
)
async def test_C40_an_unknown_previous_response_is_a_400(api: Api, id: str, stream: bool) -> None:
    status, error = await api.refused(
        {"model": "remember", "input": "hi", "previous_response_id": id, "stream": stream}
    )
    assert (status, error["code"]) == (400, "previous_response_not_found")
    assert error["param"] == "previous_response_id"


@pytest.mark.parametrize("id", ["call_gone", "\u0000", "\ud800", "💥", "x" * 1024])
async def test_C40_an_unknown_call_is_a_400(api: Api, id: str) -> None:
    status, error = await api.refused({"model": "remember", "input": [output(id)]})
    assert (status, error["param"]) == (400, "input")
    assert error["message"].startswith("No tool call found for function call output")


@pytest.mark.parametrize(
    "id",
    ["resp_gone", "%00", "%ed%a0%80", "%F0%9F%92%A5", "x" * 5000, "%20", "a%2Fb", "%0a", "..%2f"],
)
async def test_C40_an_unknown_response_is_a_404(api: Api, id: str) -> None:
    answer = await api.get(id)
    assert answer.status_code == 404, answer.text
    assert envelope(answer)["code"] == "not_found"


async def test_C40_queries_with_brackets_are_fine(api: Api) -> None:
    told = await api.create("remember", "hi")
    odd = "include[]=reasoning.encrypted_content&include[]=x&a=%00&=&include[0][b]=%ff"
    answer = await api.http.get(f"/v1/responses/{told['id']}?{odd}")
    assert answer.json() == told
    posted = await api.http.post(f"/v1/responses?{odd}", json={"model": "remember", "input": "x"})
    assert posted.status_code == 200


@pytest.mark.parametrize("model", ["gone", "\u0000", "\ud800", "💥", "x" * 1024, "../remember"])
async def test_an_unknown_model_is_a_404(api: Api, model: str) -> None:
    status, error = await api.refused({"model": model, "input": "hi"})
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")


@pytest.mark.parametrize("announced", [True, False], ids=["content-length", "chunked"])
async def test_C40_a_body_over_the_limit_is_a_413(api: Api, announced: bool) -> None:
    body = json.dumps({"model": "remember", "input": "x" * (20 * 2**20)}).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 2**20):
            yield body[start : start + 2**20]

    answer = await api.http.post("/v1/responses", content=body if announced else pieces())
    assert answer.status_code == 413
    assert envelope(answer)["code"] == "request_too_large"


async def test_a_large_body_under_the_limit_is_served(api: Api) -> None:
    told = await api.create("remember", "x" * 2**20)
    assert len(texts(told)[0]) > 2**20


# --- envelopes and headers -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/responses/", 404),
        ("GET", "/v1/responses", 405),
        ("PUT", "/v1/responses", 405),
        ("PATCH", "/v1/responses/resp_1", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/v1/models/gone", 404),
        ("GET", "/v1/models/%00", 404),
    ],
)
async def test_every_route_answers_with_the_envelope(
    api: Api, method: str, path: str, status: int
) -> None:
    answer = await api.http.request(method, path)
    assert answer.status_code == status
    envelope(answer)
    assert answer.headers["x-request-id"]


async def test_a_sane_request_id_is_taken_over(api: Api) -> None:
    async def sent(value: str | bytes) -> str:
        body = {"model": "remember", "input": "hi"}
        answer = await api.post(body, headers=[(b"x-request-id", value)])
        return str(answer.headers["x-request-id"])

    assert await sent("my-id.1:2") == "my-id.1:2"
    assert await sent("x" * 128) == "x" * 128
    for insane in ("x" * 129, "two words", "", b"\xff", b"a\tb"):
        assert (await sent(insane)).startswith("req_")


@BOTH
async def test_every_answer_says_how_long_it_took(api: Api, stream: bool) -> None:
    for body in ({"model": "remember", "input": "hi", "stream": stream}, {"model": 5}):
        answer = await api.post(body)
        assert int(answer.headers["openai-processing-ms"]) >= 0
        assert answer.headers["x-request-id"].startswith("req_")
    assert "openai-processing-ms" in (await api.http.get("/healthz")).headers


async def test_health(api: Api) -> None:
    assert (await api.http.get("/healthz")).status_code == 200
    assert (await api.http.get("/readyz")).status_code == 200


# --- frames ----------------------------------------------------------------------------------


async def test_a_stream_is_made_of_plain_frames(api: Api) -> None:
    answer = await api.post({"model": "several", "input": "hi", "stream": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert b"\r" not in answer.content
    assert answer.content.endswith(b"\n\ndata: [DONE]\n\n")
    assert answer.content.count(b"[DONE]") == 1
    assert b"\nid:" not in answer.content
    frames = answer.content.removesuffix(b"\n\n").split(b"\n\n")
    for frame in frames[:-1]:
        name, data = frame.split(b"\n")
        event = json.loads(data.removeprefix(b"data: "))
        assert name.decode() == f"event: {event['type']}"
    numbers = [event["sequence_number"] for event in read_frames(answer.content)]
    assert numbers == list(range(len(numbers)))


async def test_no_accept_header_is_needed_and_any_is_fine(api: Api) -> None:
    body = {"model": "remember", "input": "hi", "stream": True}
    for accept in ("", "application/json", "text/html"):
        answer = await api.post(body, headers={"accept": accept})
        assert answer.headers["content-type"].startswith("text/event-stream")


async def test_tokens_are_told_one_by_one(api: Api) -> None:
    events, told = await api.stream("several", "hi")
    deltas = [one["delta"] for one in events if one["type"] == "response.output_text.delta"]
    assert len(deltas) > 4
    assert "".join(deltas) == "".join(texts(told))


async def test_a_refusal_of_the_request_comes_before_any_frame(api: Api) -> None:
    answer = await api.post({"model": "gone", "input": "hi", "stream": True})
    assert answer.headers["content-type"] == "application/json"
    assert answer.status_code == 404


# --- the same in both modes ------------------------------------------------------------------


def shape(item: Json) -> Json:
    """An item without the ids that are minted each time."""
    return {key: value for key, value in item.items() if key not in ("id", "call_id")}


@pytest.mark.parametrize(
    ("model", "status", "kinds"),
    [
        ("several", "completed", ["message", "message"]),
        ("tool", "completed", ["message", "function_call"]),
        ("reasoning", "completed", ["reasoning", "message"]),
        ("refusal", "completed", ["message"]),
        ("truncation", "incomplete", ["message"]),
        ("usage", "completed", ["message"]),
        ("model-usage", "completed", ["message"]),
        ("remember", "completed", ["message"]),
        ("fail", "failed", ["message"]),
    ],
)
async def test_json_and_stream_give_the_same(
    api: Api, model: str, status: str, kinds: list[str]
) -> None:
    plain = await api.create(model, "hi", tools=WEATHER)
    _, streamed = await api.stream(model, "hi", tools=WEATHER)
    assert [item["type"] for item in plain["output"]] == kinds
    assert [shape(item) for item in plain["output"]] == [shape(item) for item in streamed["output"]]
    for field in ("status", "usage", "error", "incomplete_details", "tools", "model"):
        assert plain[field] == streamed[field], field
    assert plain["status"] == status
    for told in (plain, streamed):
        assert (await api.get(told["id"])).json() == told


async def test_what_is_said_thought_called_and_counted(api: Api) -> None:
    assert texts(await api.create("several", "hi")) == ["one two three", "four five"]
    (call,) = calls(await api.create("tool", "hi", tools=WEATHER))
    assert call["name"] == "weather"
    assert call["call_id"] == "call_weather"
    assert json.loads(call["arguments"]) == {"city": "Köln"}
    assert calls(await api.create("tool", "hi")) == []
    reasoning, _ = (await api.create("reasoning", "hi"))["output"]
    assert reasoning["summary"] == [{"type": "summary_text", "text": "Hm."}]
    (refusal,) = (await api.create("refusal", "hi"))["output"]
    assert refusal["content"] == [{"type": "refusal", "refusal": "I will not."}]
    cut = await api.create("truncation", "hi")
    assert cut["incomplete_details"] == {"reason": "max_output_tokens"}


@BOTH
@pytest.mark.parametrize(("model", "times"), [("usage", 1), ("model-usage", 2)])
async def test_tokens_are_counted_once_a_model_call(
    api: Api, model: str, times: int, stream: bool
) -> None:
    """Of models that are said and thought, and of a message that a node brings with its usage."""
    usage = (await api.told(model, "hi", stream=stream))["usage"]
    counted = [usage[key] for key in ("input_tokens", "output_tokens", "total_tokens")]
    assert counted == [10 * times, 5 * times, 15 * times]
    assert usage["input_tokens_details"]["cached_tokens"] == 4 * times
    assert usage["output_tokens_details"]["reasoning_tokens"] == 2 * times


async def test_the_graph_sees_the_settings_and_the_client_their_echo(api: Api) -> None:
    fields: Json = {"temperature": 0.5, "tools": WEATHER, "metadata": {"k": "ü"}}
    told = await api.create("settings", "hi", **fields)
    assert texts(told) == ["0.5 ['weather'] {'k': '\\xfc'}"]
    assert (told["temperature"], told["metadata"]) == (0.5, {"k": "ü"})


async def test_a_resumed_graph_sees_the_settings_it_was_started_with(api: Api) -> None:
    fields: Json = {"temperature": 0.5, "tools": WEATHER, "metadata": {"k": "v"}}
    paused = await api.create("ask-settings", "hi", **fields)
    told = await api.create(
        "ask-settings",
        [output(calls(paused)[0])],
        previous_response_id=paused["id"],
        temperature=1.5,
    )
    assert texts(told)[-1] == "0.5 ['weather'] {'k': 'v'}"


# --- failing ---------------------------------------------------------------------------------


@BOTH
async def test_C29_C32_a_failing_first_request_says_so_and_leaves_nothing(
    api: Api, stream: bool
) -> None:
    told = await api.told("fail", "hi", stream=stream)
    assert told["status"] == "failed"
    assert told["error"]["code"] == "run_failed"
    assert "ValueError" in told["error"]["message"]
    assert "fail" in told["error"]["message"]
    assert "secret" not in json.dumps(told)
    run_id = await api.run_of(told)
    assert await api.checkpoint_rows(run_id) == 0
    assert await api.sql("SELECT id FROM fermata.runs WHERE id = %s", run_id) == []


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Order:
    id: str
    amount: Decimal


class Limits(pydantic.BaseModel):
    top: int


PAYLOADS["rich"] = {
    "decimal": Decimal("49.90"),
    "datetime": dt.datetime(2026, 12, 1, tzinfo=dt.UTC),
    "uuid": uuid.UUID(int=1),
    "bytes": b"\x00\xff",
    "set": {1},
    "enum": Colour.RED,
    "dataclass": Order("ORDER-1", Decimal("1.10")),
    "pydantic": Limits(top=3),
    "tuple": (1, 2),
    "text": "Grüße 💥",
}
PAYLOADS["none"] = None
PAYLOADS["a question"] = "Really?"
PAYLOADS["surrogate"] = {"text": "a\ud800b"}
PAYLOADS["NaN"] = {"items": [{"price": math.nan}]}
PAYLOADS["Infinity"] = [math.inf]
PAYLOADS["lone NaN"] = math.nan
PAYLOADS["huge"] = {"n": 2**70}
PAYLOADS["lambda"] = {"call": lambda: None}


async def test_C15_payloads_of_every_kind_become_json(api: Api) -> None:
    told = await api.create("ask-any", "rich")
    payload = json.loads(calls(told)[0]["arguments"])["payload"]
    assert payload == {
        "decimal": "49.90",
        "datetime": "2026-12-01T00:00:00+00:00",
        "uuid": "00000000-0000-0000-0000-000000000001",
        "bytes": "AP8=",
        "set": [1],
        "enum": "red",
        "dataclass": {"id": "ORDER-1", "amount": "1.10"},
        "pydantic": {"top": 3},
        "tuple": [1, 2],
        "text": "Grüße 💥",
    }


@BOTH
@pytest.mark.parametrize("name", ["rich", "none", "a question", "surrogate"])
async def test_C15_any_payload_can_be_answered(api: Api, name: str, stream: bool) -> None:
    paused = await api.told("ask-any", name, stream=stream)
    (call,) = calls(paused)
    assert call["name"] == "interrupt"
    assert json.loads(call["arguments"])["expects"] == "any"
    told = await api.told(
        "ask-any", [output(call, "fine")], stream=stream, previous_response_id=paused["id"]
    )
    assert texts(told) == ["answer: 'fine'"]


@BOTH
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("NaN", "payload.items[0].price is NaN"),
        ("Infinity", "payload[0] is Infinity"),
        ("lone NaN", "payload is NaN"),
        ("huge", "payload.n is an integer beyond 64 bits"),
        ("lambda", "payload.call is a function"),
    ],
)
async def test_C15_what_cannot_be_told_fails_the_run_naming_the_place(
    api: Api, name: str, place: str, stream: bool
) -> None:
    told = await api.told("ask-any", name, stream=stream)
    assert told["status"] == "failed"
    assert calls(told) == []
    assert place in told["error"]["message"]
    run_id = await api.run_of(told)
    assert await api.checkpoint_rows(run_id) == 0
    assert await api.sql("SELECT id FROM fermata.runs WHERE id = %s", run_id) == []


@BOTH
async def test_C16_a_subgraph_that_could_never_be_resumed_fails_its_run(
    api: Api, stream: bool
) -> None:
    told = await api.told("forgetful", "hi", stream=stream)
    assert told["status"] == "failed"
    assert calls(told) == []
    assert "checkpointer=False" in told["error"]["message"]
    assert await api.checkpoint_rows(await api.run_of(told)) == 0


# --- pausing and resuming --------------------------------------------------------------------


async def test_a_pause_in_json_is_only_the_call_and_in_a_stream_has_the_notice(api: Api) -> None:
    plain = await api.create("ask", "hi")
    assert [item["type"] for item in plain["output"]] == ["function_call"]
    events, streamed = await api.stream("ask", "hi")
    assert [item["type"] for item in streamed["output"]] == ["message", "function_call"]
    assert texts(streamed) == ["I will ask you."]
    assert events[-1]["type"] == "response.completed"
    for told in (plain, streamed):
        (call,) = calls(told)
        assert call["name"] == "go_on"
        assert call["status"] == "completed"
        assert json.loads(call["arguments"]) == {
            "expects": "any",
            "question": "Go on?",
            "payload": {"question": "Go on?"},
        }
        assert told["status"] == "completed"
        assert (await api.get(told["id"])).json() == told


@BOTH
async def test_C29_an_answer_goes_on_without_the_notice_and_leaves_no_checkpoint(
    api: Api, stream: bool
) -> None:
    paused = await api.told("ask", "hi", stream=stream)
    run_id = await api.run_of(paused)
    assert await api.checkpoint_rows(run_id) > 0
    told = await api.told(
        "ask", [output(calls(paused)[0])], stream=stream, previous_response_id=paused["id"]
    )
    assert texts(told) == ["answer: 'yes'"]
    assert told["previous_response_id"] == paused["id"]
    assert EFFECTS[run_id] == ["announced", "answered"]
    assert await api.checkpoint_rows(run_id) == 0
    assert (await api.get(told["id"])).json() == told


async def test_C01_text_to_a_waiting_run_is_refused_and_nothing_moves(api: Api) -> None:
    paused = await api.create("ask", "hi")
    (call,) = calls(paused)
    status, error = await api.refused(
        {"model": "ask", "input": "please hurry", "previous_response_id": paused["id"]}
    )
    assert status == 400
    assert error["message"] == f"No tool output found for function call {call['call_id']}."
    assert "answered" not in EFFECTS[await api.run_of(paused)]


@BOTH
async def test_C02_a_repeat_is_told_the_same_response(api: Api, stream: bool) -> None:
    paused = await api.create("ask", "hi")
    said = [output(calls(paused)[0])]
    first = await api.create("ask", said, previous_response_id=paused["id"])
    again = await api.told("ask", said, stream=stream, previous_response_id=paused["id"])
    assert again == first
    assert EFFECTS[await api.run_of(paused)].count("answered") == 1


async def test_C02_twenty_at_once_are_one_and_a_dissenter_is_told(api: Api) -> None:
    paused = await api.create("ask", "hi")
    (call,) = calls(paused)

    async def answer(value: str) -> httpx.Response:
        return await api.post(
            {"model": "ask", "input": [output(call, value)], "previous_response_id": paused["id"]}
        )

    answers = await asyncio.gather(*(answer("yes" if n % 2 else "no") for n in range(20)))
    told = {one.text for one in answers if one.status_code == 200}
    assert len(told) == 1
    refused = [one for one in answers if one.status_code != 200]
    assert len(refused) == 10
    assert {envelope(one)["code"] for one in refused} == {"interrupt_already_answered"}
    assert EFFECTS[await api.run_of(paused)].count("answered") == 1


async def test_C03_an_old_answer_never_meets_the_second_question(api: Api) -> None:
    first = await api.create("twice", "hi")
    (one,) = calls(first)
    second = await api.create("twice", [output(one, "a")], previous_response_id=first["id"])
    (two,) = calls(second)
    assert two["call_id"] != one["call_id"]
    again = await api.create("twice", [output(one, "a")], previous_response_id=first["id"])
    assert again == second
    assert await api.create("twice", [output(one, "a")]) == second
    status, _ = await api.refused(
        {"model": "twice", "input": [output(one, "a")], "previous_response_id": second["id"]}
    )
    assert status == 400
    last = await api.create("twice", [output(two, "b")], previous_response_id=second["id"])
    assert texts(last) == ["a b"]


@BOTH
async def test_C05_three_questions_are_one_batch_answered_in_any_order(
    api: Api, stream: bool
) -> None:
    paused = await api.told("fan", "hi", stream=stream)
    asked = {json.loads(one["arguments"])["payload"]["item"]: one for one in calls(paused)}
    assert set(asked) == {"a", "b", "c"}
    assert len({one["call_id"] for one in asked.values()}) == 3
    said = [output(call, item.upper()) for item, call in reversed(asked.items())]
    told = await api.told("fan", said, stream=stream, previous_response_id=paused["id"])
    assert texts(told) == ["a=A b=B c=C"]


async def test_C06_two_of_three_answers_move_nothing(api: Api) -> None:
    paused = await api.create("fan", "hi")
    one, two, three = calls(paused)
    body = {"model": "fan", "input": [output(three), output(one)]}
    for named in ({"previous_response_id": paused["id"]}, {}):
        status, error = await api.refused({**body, **named})
        assert (status, error["param"]) == (400, "input")
        assert two["call_id"] in error["message"]
    assert await api.run_of(paused) not in EFFECTS
    told = await api.create("fan", [output(call) for call in (one, two, three)])
    assert texts(told) == ["a=yes b=yes c=yes"]


async def test_C07_the_same_call_twice_is_refused(api: Api) -> None:
    paused = await api.create("ask", "hi")
    (call,) = calls(paused)
    for second in ("yes", "no"):
        status, error = await api.refused(
            {
                "model": "ask",
                "input": [output(call, "yes"), output(call, second)],
                "previous_response_id": paused["id"],
            }
        )
        assert (status, error["param"]) == (400, "input[1].call_id")
    assert texts(await api.create("ask", [output(call)])) == ["answer: 'yes'"]


def as_call(item: Json) -> Json:
    """A call as clients echo it."""
    return {key: item[key] for key in ("type", "call_id", "name", "arguments")}


@pytest.mark.parametrize("echoed", [False, True], ids=["outputs", "calls and outputs"])
@pytest.mark.parametrize("named", [False, True], ids=["by call", "by response"])
async def test_C08_answers_to_two_runs_move_neither(api: Api, named: bool, echoed: bool) -> None:
    runs = [await api.create("ask", "hi") for _ in range(2)]
    asked = [calls(one)[0] for one in runs]
    said = [output(call) for call in asked]
    if echoed:
        said = [*map(as_call, asked), *said]
    more = {"previous_response_id": runs[0]["id"]} if named else {}
    status, error = await api.refused({"model": "ask", "input": said, **more})
    assert (status, error["param"]) == (400, "input")
    for paused in runs:
        assert "answered" not in EFFECTS[await api.run_of(paused)]
        told = await api.create("ask", [output(calls(paused)[0])])
        assert texts(told) == ["answer: 'yes'"]


ANSWERS: list[tuple[str, Any, Any]] = [
    ("empty", "", ""),
    ("blank", " \n", " \n"),
    ("zero", "0", 0),
    ("false", "false", False),
    ("null as text", "null", None),
    ("an empty list", "[]", []),
    ("an object", '{"action": "approve"}', {"action": "approve"}),
    ("quoted", '"yes"', "yes"),
    ("text", "yes", "yes"),
    ("half JSON", '{"a": ', '{"a": '),
    ("NaN", "NaN", "NaN"),
    ("beyond all floats", "1e400", "1e400"),
    (
        "parts",
        [{"type": "input_text", "text": "[1, "}, {"type": "output_text", "text": "2]"}],
        [1, 2],
    ),
    ("no parts", [], ""),
]


@pytest.mark.parametrize(("name", "sent", "value"), ANSWERS, ids=[one[0] for one in ANSWERS])
async def test_C09_C14_a_raw_answer_is_json_or_the_text_itself(
    api: Api, name: str, sent: Any, value: Any
) -> None:
    paused = await api.create("ask", "hi")
    told = await api.create(
        "ask", [output(calls(paused)[0], sent)], previous_response_id=paused["id"]
    )
    assert texts(told) == [f"answer: {value!a}"]


@pytest.mark.parametrize("sent", ["a\u0000b", '{"deep": ["\\u0000"]}', str(2**70)])
async def test_C09_what_could_not_be_stored_is_refused_and_the_question_stays_open(
    api: Api, sent: str
) -> None:
    """LangGraph keeps plain texts in a jsonb column: an accepted answer with NUL would be lost."""
    paused = await api.create("ask", "hi")
    status, error = await api.refused(
        {
            "model": "ask",
            "previous_response_id": paused["id"],
            "input": [output(calls(paused)[0], sent)],
        }
    )
    assert (status, error["code"]) == (400, "invalid_interrupt_answer")
    told = await api.create(
        "ask", [output(calls(paused)[0], "fine")], previous_response_id=paused["id"]
    )
    assert texts(told) == ["answer: 'fine'"]


async def test_C09_a_megabyte_is_an_answer(api: Api) -> None:
    paused = await api.create("ask", "hi")
    told = await api.create("ask", [output(calls(paused)[0], "x" * 2**20)])
    assert len(texts(told)[0]) == 2**20 + len("answer: ''")


@pytest.mark.parametrize(
    "sent", ["a\ud800b", '"\\ud800"', str(2**70), f"[{2**70}]", "[" * 150 + "]" * 150]
)
async def test_C09_odd_answers_complete_or_are_refused(api: Api, sent: str) -> None:
    """Never a run that can neither complete nor be answered otherwise."""
    paused = await api.create("ask", "hi")
    body = {"model": "ask", "input": [output(calls(paused)[0], sent)]}
    answer = await api.post(body)
    if answer.status_code == 200:
        assert answer.json()["status"] == "completed", answer.text
        assert texts(answer.json())[0].startswith("answer: ")
        return
    envelope(answer)
    assert texts(await api.create("ask", [output(calls(paused)[0])])) == ["answer: 'yes'"]


@pytest.mark.parametrize(
    "sent",
    [
        None,
        {},
        {"action": "approve"},
        5,
        True,
        ["yes"],
        [{"type": "input_image", "image_url": "x"}],
        [{"type": "input_text"}],
    ],
)
async def test_C09_what_is_neither_text_nor_parts_is_refused_and_stays_pending(
    api: Api, sent: Any
) -> None:
    paused = await api.create("ask", "hi")
    (call,) = calls(paused)
    for named in ({"previous_response_id": paused["id"]}, {}):
        status, error = await api.refused({"model": "ask", "input": [output(call, sent)], **named})
        assert status == 400
        assert error["param"].startswith("input[0].output")
    assert texts(await api.create("ask", [output(call)])) == ["answer: 'yes'"]


@BOTH
async def test_C12_a_node_that_raises_once_is_tried_again_with_the_same_request(
    api: Api, stream: bool
) -> None:
    paused = await api.create("flaky", "hi")
    run_id = await api.run_of(paused)
    said = [output(calls(paused)[0])]
    failed = await api.told("flaky", said, stream=stream, previous_response_id=paused["id"])
    assert failed["status"] == "failed"
    assert "secret" not in json.dumps(failed)
    assert await api.checkpoint_rows(run_id) > 0
    status, error = await api.refused(
        {"model": "flaky", "input": [output(said[0]["call_id"], "no")]}
    )
    assert (status, error["code"]) == (400, "interrupt_already_answered")
    told = await api.told("flaky", said, stream=stream, previous_response_id=paused["id"])
    assert texts(told)[-1] == "through"
    assert told["id"] != failed["id"]
    assert EFFECTS[run_id] == ["answered", "effect", "attempt", "attempt"]
    assert await api.checkpoint_rows(run_id) == 0
    again = await api.create("flaky", said, previous_response_id=paused["id"])
    assert again == told


async def test_another_model_cannot_answer(api: Api) -> None:
    paused = await api.create("ask", "hi")
    body = {"model": "flaky", "input": [output(calls(paused)[0])]}
    status, error = await api.refused(body)
    assert (status, error["param"]) == (400, "model")


# --- store: false and histories --------------------------------------------------------------


@BOTH
async def test_an_unstored_response_is_invisible(api: Api, stream: bool) -> None:
    told = await api.told("remember", "hi", stream=stream, store=False)
    assert told["store"] is False
    assert (await api.get(told["id"])).status_code == 404
    assert await api.sql("SELECT id FROM fermata.responses WHERE id = %s", told["id"]) == []
    status, error = await api.refused(
        {"model": "remember", "input": "and?", "previous_response_id": told["id"]}
    )
    assert (status, error["code"]) == (400, "previous_response_not_found")


@BOTH
async def test_an_unstored_question_is_invisible_but_can_be_answered(
    api: Api, stream: bool
) -> None:
    paused = await api.told("ask", "hi", stream=stream, store=False)
    (call,) = calls(paused)
    assert (await api.get(paused["id"])).status_code == 404
    said = [user("hi"), as_call(call), output(call)]
    told = await api.told("ask", said, stream=stream, store=False)
    assert texts(told) == ["answer: 'yes'"]
    assert (await api.get(told["id"])).status_code == 404
    assert await api.told("ask", said, stream=stream, store=False) == told


async def test_a_question_is_answered_by_its_call_alone_with_the_whole_history(api: Api) -> None:
    paused = await api.create("ask", "hi")
    (call,) = calls(paused)
    rewritten = {**as_call(call), "arguments": '{"rewritten":true}'}
    old = {"type": "function_call", "call_id": "call_old", "name": "f", "arguments": "{}"}
    said = [
        user("earlier"),
        old,
        output("call_old", "Error: tool not found"),
        {"role": "assistant", "content": "I see."},
        user("hi"),
        rewritten,
        output(call, "yes"),
    ]
    told = await api.create("ask", said)
    assert texts(told) == ["answer: 'yes'"]
    assert told["previous_response_id"] is None


async def test_an_answered_question_in_the_middle_of_a_history_is_history(api: Api) -> None:
    paused = await api.create("ask", "hi")
    (call,) = calls(paused)
    run_id = await api.run_of(paused)
    await api.create("ask", [output(call)], previous_response_id=paused["id"])
    said = [user("hi"), as_call(call), output(call), {"role": "assistant", "content": "ok"}]
    told = await api.create("ask", [*said, user("again")])
    assert calls(told)[0]["call_id"] != call["call_id"]
    assert await api.run_of(told) != run_id
    assert EFFECTS[run_id].count("answered") == 1


async def test_the_context_of_a_continuation_is_what_was_said_before(api: Api) -> None:
    first = await api.create("remember", "one", instructions="not carried over")
    assert texts(first) == ["system:not carried over\nhuman:one"]
    second = await api.create(
        "remember", "two", previous_response_id=first["id"], instructions="be brief"
    )
    reply = texts(first)[0]
    assert texts(second) == [f"system:be brief\nhuman:one\nai:{reply}\nhuman:two"]
    third = await api.create("remember", "three", previous_response_id=second["id"])
    expected = f"human:one\nai:{reply}\nhuman:two\nai:{texts(second)[0]}\nhuman:three"
    assert texts(third) == [expected]


@pytest.mark.parametrize(
    ("named", "echoed"),
    [(True, ()), (True, ("call",)), (False, ()), (False, ("call",)), (False, ("message", "call"))],
)
async def test_the_context_after_an_answer_holds_everything_once(
    api: Api, named: bool, echoed: tuple[str, ...]
) -> None:
    paused = await api.create("ask", "hi")
    (call,) = calls(paused)
    echo = {"message": user("hi"), "call": as_call(call)}
    said = [*(echo[one] for one in echoed), output(call)]
    more = {"previous_response_id": paused["id"]} if named else {}
    told = await api.create("ask", said, **more)
    await api.sql("UPDATE fermata.responses SET model = 'remember' WHERE id = %s", told["id"])
    after = await api.create("remember", "and now", previous_response_id=told["id"])
    lines = ["human:hi", "ai: calls go_on", "tool:yes", "ai:answer: 'yes'", "human:and now"]
    assert texts(after)[0].split("\n") == lines


async def test_a_client_tool_is_answered_by_response_or_by_history(api: Api) -> None:
    asked = await api.create("tool", "hi", tools=WEATHER)
    (call,) = calls(asked)
    await api.sql("UPDATE fermata.responses SET model = 'remember' WHERE id = %s", asked["id"])
    for said in ([output(call, "sunny")], [as_call(call), output(call, "sunny")]):
        told = await api.create("remember", said, previous_response_id=asked["id"])
        assert texts(told) == ["human:hi\nai:Let me see. calls weather\ntool:sunny"]
    resent = await api.create("remember", [user("hi"), as_call(call), output(call, "sunny")])
    assert texts(resent) == ["human:hi\nai: calls weather\ntool:sunny"]


async def test_a_client_tool_without_its_output_is_named(api: Api) -> None:
    asked = await api.create("tool", "hi", tools=WEATHER)
    status, error = await api.refused(
        {"model": "tool", "input": "and?", "previous_response_id": asked["id"]}
    )
    assert (status, error["param"]) == (400, "input")
    assert "call_weather" in error["message"]


async def test_an_item_reference_is_the_stored_item(api: Api) -> None:
    first = await api.create("remember", "one")
    item = first["output"][0]
    said = [user("one"), {"type": "item_reference", "id": item["id"]}, user("two")]
    told = await api.create("remember", said)
    assert texts(told) == [f"human:one\nai:{texts(first)[0]}\nhuman:two"]


async def test_an_unknown_item_reference_is_refused(api: Api) -> None:
    status, error = await api.refused(
        {"model": "remember", "input": [{"type": "item_reference", "id": "msg_\u0000"}]}
    )
    assert (status, error["param"]) == (400, "input[0].id")


@BOTH
async def test_a_graph_that_ends_its_process_fails_its_run_and_nothing_else(
    api: Api, stream: bool
) -> None:
    for model, said in (("exits", "async"), ("exits", "sync"), ("exits-in-words", "hi")):
        told = await api.told(model, said, stream=stream)
        assert told["status"] == "failed"
    assert (await api.create("remember", "hi"))["status"] == "completed"
